#pragma once

#include <cstdint>
#include <string>

#include "device/driver/record/rank_recorder.h"

namespace trellis::device {

/// Text of the error when an allocation does not fit into `recorder`'s memory: bytes asked,
/// capacity, the counters, the largest live tensors by scope, what would help. `own_thread`: the
/// caller is the rank's thread, so that scopes and shapes can be reported.
[[nodiscard]] std::string out_of_memory(RankRecorder& recorder, std::int64_t bytes,
                                        BufferCategory category, bool own_thread);

}  // namespace trellis::device
