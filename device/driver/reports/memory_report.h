#pragma once

#include <nlohmann/json_fwd.hpp>

#include "device/driver/record/rank_recorder.h"

/// A rank's memory as JSON. Bytes everywhere; only the rank's thread, or any when the rank rests,
/// may ask (scopes are read).
namespace trellis::device {

/// trellis.memory_stats/1: TorchNeuron's names:
/// {allocated,reserved,active}_bytes.{current,peak,allocated,freed} and the counts.
[[nodiscard]] nlohmann::json memory_stats(const MemoryAccount& memory);
/// trellis.memory_snapshot/1: the segments and their blocks under the names of PyTorch's memory
/// snapshots.
[[nodiscard]] nlohmann::json memory_snapshot(const RankRecorder& recorder);
/// trellis.memory_timeline/1: the kept events, the totals before the first, and the peak of each
/// stretch of one phase.
[[nodiscard]] nlohmann::json memory_timeline(const RankRecorder& recorder);
/// A rank's row of trellis.memory/1. When memory is unlimited also num_ooms, first_refusal and
/// live_at_peak.
[[nodiscard]] nlohmann::json memory_row(const RankRecorder& recorder);

}  // namespace trellis::device
