#include "trainer/app/reshard_request.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/activity.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/app/guarded.h"
#include "trainer/app/load_device.h"
#include "trainer/checkpoint/conversion/layout/write_native.h"
#include "trainer/checkpoint/conversion/open_checkpoint.h"
#include "trainer/checkpoint/formats/native/native_source.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSource;
using checkpoint::native::NativeSource;

/// The configuration that a checkpoint was saved with, as a file for as long as it is read.
class SavedConfig {
 public:
  explicit SavedConfig(const TensorSource& source) {
    const auto* training = dynamic_cast<const NativeSource*>(&source);
    if (training == nullptr)
      throw ConfigError(source.address() + ": a checkpoint of the format " + source.format() +
                        " has no configuration of a training; name one with --config");
    const auto& text =
        training->user_content().at("hyper_parameters").at("cfg").as_string();
    path_ = fs::temp_directory_path() /
            ("trellis-" + std::to_string(getpid()) + "-" + "checkpoint.yaml");
    write_file_atomically(path_, text);
  }
  ~SavedConfig() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  SavedConfig(const SavedConfig&) = delete;
  SavedConfig& operator=(const SavedConfig&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

RunConfig target_config(const ReshardRequest& request, const TensorSource& source) {
  std::optional<SavedConfig> saved;
  if (request.config_file.empty()) saved.emplace(source);
  const std::string file = saved ? saved->path() : request.config_file;
  std::vector<std::string> overrides = request.overrides;
  if (request.data_parallel_size) {
    // Degrees first: how many ranks they take is not known before.
    const RunCheck check = check_run_config(file, overrides, request.instance);
    const int ranks = check.config.tp() * check.config.pp() * check.config.cp();
    overrides.push_back("trainer.num_nodes=1");
    overrides.push_back("trainer.devices=" + std::to_string(ranks * *request.data_parallel_size));
  }
  RunConfig config = load_run_config(file, overrides, request.instance);
  refuse_unsupported(config, /*simulate=*/false);
  use_machine({.device = "cpu", .instance = request.instance}, config);
  return config;
}

int reshard(const ReshardRequest& request) {
  Activity activity("opening the checkpoint");
  const auto source = checkpoint::open_checkpoint(request.source);
  const RunConfig config = target_config(request, *source);
  const CheckpointSection& section = config.exp_manager.checkpoints;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const checkpoint::NativeOptions options{
      .weights_only = request.weights_only || section.save_weights_only,
      .files = {section.save_xser, section.save_bf16},
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
}  // namespace trellis::trainer

extern "C" __attribute__((visibility("default"))) int trellis_checkpoint_reshard(
    const trellis::trainer::ReshardRequest* request) {
  return trellis::trainer::guarded([request] { return trellis::trainer::reshard(*request); });
}
