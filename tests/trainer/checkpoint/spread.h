#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/trainer/checkpoint/training_run.h"

namespace trellis::checkpoint::testing_support {

/// How a run is spread; copies of key/value heads too.
struct Spread {
  trainer::testing_support::Layout layout;
  int kv_replicator = 1;
  bool fused = false;  ///< qkv_linear with fuse_qkv
  const char* hardware = "trn2";
};

/// Layouts of up to eight ranks of one small Llama.
inline const std::vector<Spread>& spreads() {
  static const std::vector<Spread> list = {
      {{1, 1, 1}},
      {{2, 2, 2, true, true}},
      {{4, 1, 2, false, true}},
      {{1, 4, 2, false, false}},
      {{2, 1, 4, true, true}, 1, true},
      {{1, 2, 2, false, true, 2}},
      {{2, 2, 1, false, false, 2}},
      {{8, 1, 1, false, true}, 2},
      {{8, 1, 1, true, true}, 2, true, "trn1"},
      {{4, 2, 1, false, true}, 2, true},
      {{1, 1, 8, false, true}},
  };
  return list;
}

/// A run that keeps all of its checkpoints.
inline RunConfig config_of(const Spread& spread, const std::string& precision, std::int64_t steps) {
  RunConfig config = trainer::testing_support::small_llama(spread.layout, precision, steps);
  config.distributed_strategy.kv_replicator = spread.kv_replicator;
  config.hardware = spread.hardware;
  config.model.qkv_linear = spread.fused || spread.kv_replicator > 1;
  config.model.fuse_qkv = spread.fused;
  trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  section.create = true;
  section.filename = "m--{step}-{consumed_samples}";
  section.monitor = "step";
  section.mode = "max";
  section.save_top_k = -1;
  section.save_last = false;
  return config;
}

/// Where such a run keeps that of a step.
inline std::string checkpoint_of(const RunConfig& config, const std::string& folder,
                                 std::int64_t step) {
  const std::string samples = std::to_string(step * config.data.global_batch_size);
  return folder + "/m--step=" + std::to_string(step) + "-consumed_samples=" + samples + ".0.ckpt";
}

/// The same run from a checkpoint.
inline RunConfig resumed_from(RunConfig config, const std::string& checkpoint) {
  config.exp_manager.checkpoints.create = false;
  config.exp_manager.checkpoints.resume_from_checkpoint = checkpoint;
  return config;
}

/// Relative to the largest element of each tensor; infinite when one is missing.
inline double worst_difference(const Canonical& got, const Canonical& expected) {
  double worst = 0;
  for (const auto& [key, tensor] : expected) {
    const auto found = got.find(key);
    if (found == got.end()) return INFINITY;
    const double scale = std::max(tensor.abs().max().item<double>(), 1e-12);
    worst = std::max(worst, (found->second - tensor).abs().max().item<double>() / scale);
  }
  return worst;
}

inline std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Path in the folder → bytes.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[std::filesystem::relative(entry.path(), folder).string()] = content(entry.path());
  }
  return files;
}

}  // namespace trellis::checkpoint::testing_support
