#pragma once

#include <string>
#include <vector>

#include "trainer/checkpoint/engine/save_messages.h"
#include "trainer/checkpoint/engine/state_files.h"

/// States of a ZeRO-1 optimizer as NxD's use_zero1_dcp writes them: `optim` is one folder of DCP.
/// Its tensors are the states of each tensor- and pipeline-parallel rank's parameters, of which the
/// data-parallel ranks have rows:
///
///   base_state.model.norm.weight.exp_avg|pp-0001|tp-0003   [hidden], without |pp of one stage …
///   base_state.model.norm.weight.step                      []
///   sharded_master_weights.model.norm.weight|pp-0001|tp-0003, ema_weights.… (ours)
///
/// Experts have |ep-0002, too. shape_info and param_groups are objects, those of rank 0.
namespace trellis::checkpoint::native {

inline constexpr const char* kStatesMetadataFile = "optim/.metadata";

/// This rank's data file, `optim/__{rank}_0.distcp`. None where it has no rows.
[[nodiscard]] std::vector<FileJob> dcp_optimizer_jobs(
    const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer, double lr,
    const FilePlace& place);

/// Writes such a file and adds what is in it to `written`. Throws OutputError.
void write_states(Storage& storage, const std::string& folder, const FileJob& job,
                  const WriteBox& write, Durability durability, Written& written);
/// Writes `.metadata` for the files of all ranks and adds it to the files. Throws OutputError;
/// Error when a state is not whole.
void write_states_metadata(Storage& storage, const std::string& folder, Written& all);

}  // namespace trellis::checkpoint::native
