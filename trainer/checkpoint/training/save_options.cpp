#include "trainer/checkpoint/training/save_options.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>

#include "trainer/checkpoint/training/lora_config.h"
#include "trainer/checkpoint/training/torch_dist.h"

namespace trellis::checkpoint {

native::SaveOptions save_options(const trainer::RunConfig& config) {
  constexpr double kGib = 1 << 30;
  const trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  const double buffer = std::ceil(section.async_buffer_gib.value_or(0) * kGib);
  return {.async = section.async,
          .parallel = config.model.dist_ckpt.parallel_save,
          .constant_structure = config.model.dist_ckpt.assume_constant_structure,
          .buffer_bytes = static_cast<std::int64_t>(buffer)};
}

native::FileOptions file_options(const trainer::RunConfig& config) {
  const trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  native::FileOptions options{section.save_xser, section.save_bf16, section.masters_replace_weights,
                              section.zero1_dcp};
  const auto& lora = config.model.lora;
  if (lora && lora->config_in_file) options.lora_config = lora_config_value(*lora);
  return options;
}

std::vector<native::FileJob> checkpoint_jobs(const trainer::RunConfig& config,
                                             const LiveState& live,
                                             const trainer::NeuronZero1Optimizer& optimizer,
                                             const native::FilePlace& place,
                                             const SaveNumbers& numbers, bool weights_only) {
  weights_only = weights_only || config.exp_manager.checkpoints.save_weights_only;
  const native::FileOptions options = file_options(config);
  std::set<std::string> masters;
  if (!weights_only) masters = native::weights_with_masters(live, optimizer);
  std::vector<native::FileJob> jobs = native::model_jobs(live, place, options, masters);
  const auto add = [&](std::vector<native::FileJob> more) {
    std::ranges::move(more, std::back_inserter(jobs));
  };
  if (!weights_only) add(native::optimizer_jobs(live, optimizer, numbers.lr, place, options));
  if (saves_torch_dist(config))
    add(torch_dist_jobs(config,
                        {live.model, weights_only ? std::vector<LiveTensor>() : live.optimizer},
                        place, options, numbers.step));
  return jobs;
}

}  // namespace trellis::checkpoint
