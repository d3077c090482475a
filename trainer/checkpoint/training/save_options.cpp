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

bool gathers_states(const trainer::RunConfig& config) {
  return config.distributed_strategy.zero1 && !config.model.dist_ckpt.parallel_dist_opt;
}

std::vector<native::FileJob> checkpoint_jobs(const trainer::RunConfig& config,
                                             const native::RankContent& rank,
                                             const SaveArguments& arguments) {
  bool has_states = !arguments.weights_only && !config.exp_manager.checkpoints.save_weights_only;
  const native::FileOptions options = file_options(config);
  std::set<std::string> masters;
  if (has_states) masters = native::weights_with_masters(rank.live, rank.optimizer);
  LiveState live = rank.live;
  native::FilePlace place = rank.place;
  if (!has_states) {
    live.optimizer.clear();
  } else if (gathers_states(config)) {
    live.optimizer =
        gathered_states(rank.parameters, live.optimizer, rank.parallel, arguments.gather);
    has_states = is_first_of_states(rank.parallel);
    place.place.zero1 = false;
  }
  std::vector<native::FileJob> jobs = native::model_jobs(live, place, options, masters);
  const auto add = [&](std::vector<native::FileJob> more) {
    std::ranges::move(more, std::back_inserter(jobs));
  };
  if (has_states) add(native::optimizer_jobs(live, rank.optimizer, arguments.lr, place, options));
  if (saves_torch_dist(config)) add(torch_dist_jobs(config, live, place, options, arguments.step));
  return jobs;
}

}  // namespace trellis::checkpoint
