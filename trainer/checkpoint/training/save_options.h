#pragma once

#include <cstdint>
#include <vector>

#include "trainer/checkpoint/engine/saver.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/state/gathered_states.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// How the ranks of a run save.
[[nodiscard]] native::SaveOptions save_options(const trainer::RunConfig& config);

/// How a run of `config` writes files: with save_lora_config_adapter `lora_config` is in them.
[[nodiscard]] native::FileOptions file_options(const trainer::RunConfig& config);

/// True if only the first ranks of their groups write ZeRO-1's states: dist_ckpt_parallel_dist_opt
/// is false.
[[nodiscard]] bool gathers_states(const trainer::RunConfig& config);

/// Arguments of one save.
struct SaveArguments {
  std::int64_t step = 0;
  double lr = 0;
  bool weights_only = false;  ///< even if the configuration asks for states
  GatherShards gather = gather_shards;
};

/// The files of a checkpoint of such a run that one of its ranks has, in each format that it saves.
/// Collective where gathers_states().
[[nodiscard]] std::vector<native::FileJob> checkpoint_jobs(const trainer::RunConfig& config,
                                                           const native::RankContent& rank,
                                                           const SaveArguments& arguments);

}  // namespace trellis::checkpoint
