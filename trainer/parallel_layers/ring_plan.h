#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/parallel_layers/sequence_shard.h"

namespace trellis::trainer {

/// A rank's work on one block of keys and values.
struct RingStep {
  int owner = 0;           ///< the context-parallel rank whose keys and values these are
  bool sends = false;      ///< the block goes on to the next rank
  bool receives = false;   ///< the block of the next step comes from the previous rank
  RowRange queries, keys;  ///< of the rank's and of the block's rows: what reads what
  bool causal = false;     ///< row i of the queries reads keys up to row i; else all of them
  bool windowed = false;   ///< the sliding window ends within these rows: a mask says where
  bool operator==(const RingStep&) const = default;
};

/// Causal attention over a sequence that lies on the ranks of a ring. Blocks of keys and values
/// travel from each rank to the next one, as far as someone reads them: a block in contiguous order
/// ends at the last rank, or where it lies before the sliding window; no rank has a step for a
/// block that lies in its future. Gradients of a block travel with it and return to its owner from
/// where it ended.
struct RingPlan {
  std::vector<RingStep> steps;  ///< the own block first
  int next = 0, previous = 0;   ///< neighbours; members of the group
  int returned_from = 0;        ///< where the own block ends; itself when it does not travel
};

/// REQUIRES: a window only in contiguous order.
[[nodiscard]] RingPlan plan_ring(const SequenceShard& shard, std::optional<std::int64_t> window);

/// One line per step: "block 1: queries 0–3 read keys 0–3, causal; sends, receives".
[[nodiscard]] std::string to_string(const RingPlan& plan);

}  // namespace trellis::trainer
