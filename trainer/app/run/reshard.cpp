#include "trainer/requests/reshard_request.h"

#include <algorithm>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/run/verbs.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/checkpoint/training/write_native.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/saved_config.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_training.h"

namespace trellis::trainer {
namespace {

using checkpoint::TensorSource;

constexpr const char* kHuggingFace = "hugging_face";

RunConfig target_config(const ReshardRequest& request, const TensorSource& source) {
  RunConfig config =
      checkpoint::config_of(source, request.config_file, request.overrides, request.instance);
  refuse_unsupported(config, /*simulate=*/false);
  use_machine({.device = "cpu", .instance = request.instance}, config);
  // A folder of Hugging Face has the base model: the training makes the adapters.
  if (source.format() == kHuggingFace) config.model.lora.reset();
  return config;
}

std::unique_ptr<TensorSource> open_source(const ReshardRequest& request) {
  const std::string& saved = request.saved_with.empty() ? request.config_file : request.saved_with;
  if (saved.empty() || !checkpoint::nxd::is_nxd_folder(checkpoint::open_place(request.source)))
    return checkpoint::open_checkpoint(request.source);
  RunConfig config = load_run_config(
      saved, request.saved_with.empty() ? request.overrides : std::vector<std::string>(),
      request.instance);
  use_machine({.device = "cpu", .instance = request.instance}, config);
  return checkpoint::open_nxd(
      checkpoint::open_place(request.source), config,
      request.weights_only ? checkpoint::NxdPart::kWeights : checkpoint::NxdPart::kAll);
}

/// A folder of NxD has been read as the model of a configuration: its tensors say no more.
void check_model(const ReshardRequest& request, const TensorSource& source,
                 const RunConfig& config) {
  const auto step = request.weights_only ? std::nullopt : std::optional(source.point().step);
  const checkpoint::Place place = checkpoint::open_place(request.source);
  const auto folder = checkpoint::nxd::find_nxd_folder(place);
  if (!folder) return checkpoint::check_saved_model(source, config, step);
  checkpoint::check_saved_configuration(
      checkpoint::saved_configuration(checkpoint::nxd::read_training(place, *folder).content),
      source.address(), config, step);
}

int reshard(const ReshardRequest& request) {
  Activity activity("opening the checkpoint");
  const auto source = open_source(request);
  if (!request.source_format.empty() && request.source_format != source->format())
    throw ConfigError(source->address() + ": expected a checkpoint of the format " +
                      request.source_format + ", got " + source->format());
  const RunConfig config = target_config(request, *source);
  check_model(request, *source, config);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const checkpoint::NativeOptions options{.weights_only = request.weights_only,
                                          .for_nxd = request.for_nxd,
                                          .threads = std::clamp(cores, 1, 4)};
  const checkpoint::Place place = checkpoint::open_place(request.destination);
  activity.now("writing the checkpoint, bytes");
  const std::int64_t bytes = checkpoint::write_native(
      *source, place, config, options,
      [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  const nlohmann::json layout{{"tp", config.tp()},
                              {"pp", config.pp()},
                              {"vpp", config.vpp()},
                              {"dp", config.dp()},
                              {"zero1", config.distributed_strategy.zero1}};
  if (request.json) {
    std::cout << nlohmann::json({{"schema", "trellis.checkpoint_reshard/1"},
                                 {"checkpoint", place.address()},
                                 {"bytes", bytes},
                                 {"layout", layout}})
                     .dump(1)
              << "\n";
  } else {
    std::cout << terminal_line(place.address()) << ": " << bytes << " bytes of tensors, tp "
              << config.tp() << ", pp " << config.pp() << ", vpp " << config.vpp() << ", dp "
              << config.dp() << (config.distributed_strategy.zero1 ? ", ZeRO-1" : "") << "\n";
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_reshard(const ReshardRequest& request) {
  return guarded([&] { return reshard(request); });
}

}  // namespace trellis::trainer
