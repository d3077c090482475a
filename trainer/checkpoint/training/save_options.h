#pragma once

#include <cstdint>
#include <vector>

#include "trainer/checkpoint/formats/native/saver.h"
#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// How the ranks of a run save.
[[nodiscard]] native::SaveOptions save_options(const trainer::RunConfig& config);

/// How a run of `config` writes files: with save_lora_config_adapter `lora_config` is in them.
[[nodiscard]] native::FileOptions file_options(const trainer::RunConfig& config);

/// Of a save.
struct SaveNumbers {
  std::int64_t step = 0;
  double lr = 0;
};

/// The files of a checkpoint of such a run that one of its ranks has, in each format that it saves.
/// `weights_only`: even if the configuration asks for states.
[[nodiscard]] std::vector<native::FileJob> checkpoint_jobs(
    const trainer::RunConfig& config, const LiveState& live,
    const trainer::NeuronZero1Optimizer& optimizer, const native::FilePlace& place,
    const SaveNumbers& numbers, bool weights_only = false);

}  // namespace trellis::checkpoint
