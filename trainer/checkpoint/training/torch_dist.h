#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/checkpoint/engine/save_messages.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

/// A checkpoint of a run as Megatron-core has it, in its folder: `iter_0000005` of torch_dist and,
/// last, `latest_checkpointed_iteration.txt`, as Megatron-LM's `--load` expects. Every rank writes
/// boxes of the tensors that it has; equal ones are shared out among the ranks that have them.
namespace trellis::checkpoint {

/// True if a run saves a torch_dist checkpoint next to its own format.
[[nodiscard]] inline bool saves_torch_dist(const trainer::RunConfig& config) {
  return config.model.dist_ckpt.format == "torch_dist";
}

/// Data files of this rank, `model.dist_ckpt_torch_dist_multiproc` of them or, above 4 GiB each,
/// more: its share of the weights and states that it has. Where the model or a state has no place
/// in Megatron-core's form, one that says so.
[[nodiscard]] std::vector<native::FileJob> torch_dist_jobs(const trainer::RunConfig& config,
                                                           const LiveState& live,
                                                           const native::FilePlace& place,
                                                           const native::FileOptions& options,
                                                           std::int64_t step);

/// Completes the folder in `checkpoint` from the chunks of all ranks, and adds its files to
/// `written`. Throws OutputError.
void complete_torch_dist(const trainer::RunConfig& config, const Place& checkpoint,
                         const SavedPoint& point, native::Written& written);
/// The same for a save that survives without it. Returns why it could not, which is a warning, too,
/// and leaves no folder then; "": it is complete.
[[nodiscard]] std::string finish_torch_dist(const trainer::RunConfig& config,
                                            const Place& checkpoint, const SavedPoint& point,
                                            native::Written& written);

}  // namespace trellis::checkpoint
