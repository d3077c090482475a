#pragma once

#include <vector>

#include "trainer/config/schedule/tasks.h"

namespace trellis::trainer {

/// One forward, one backward: after a warm-up of forwards each stage alternates, so that it holds
/// few activations. PP = 4, M = 6:
///
///   stage 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 .  B3 .  B4 .  B5
///   stage 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 .  B4 .  B5
///   stage 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 .  B5
///   stage 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
///
/// A stage sends the activation of a forward before it waits for a gradient. That is free of
/// deadlock because sends do not block, and the next stage finds its input when it ends its
/// backward; NxD must send after, because its sends are collectives of the pair.
class Train1F1BSchedule {
 public:
  Train1F1BSchedule(int num_microbatches, int num_stages, int stage);
  /// Forwards before the first backward: min(PP − stage − 1, M).
  [[nodiscard]] int num_warmup_microbatches() const;
  /// Most micro-batches whose forward ran and whose backward did not: min(PP − stage, M).
  [[nodiscard]] int max_in_flight() const;
  /// Everything the stage does in a step, in order.
  [[nodiscard]] std::vector<Task> tasks() const;

 private:
  PipelineShape shape_;
  int stage_;
};

/// 1F1B over virtual stages: each rank holds VPP chunks of the model and a micro-batch goes round
/// the ranks VPP times, which divides the bubble by VPP. Micro-batches go in groups of PP: a group
/// passes through all chunks before the next one starts. PP = 2, VPP = 2, M = 4:
///
///   rank 0  F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0
///   rank 1  F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0
class TrainInterleavedSchedule {
 public:
  /// Throws ConfigError when VPP > 1 and PP does not divide M.
  TrainInterleavedSchedule(const PipelineShape& shape, int rank);
  /// Forward steps before the first backward: min(2·(PP − rank − 1) + (VPP − 1)·PP, M·VPP); all of
  /// them when M = PP.
  [[nodiscard]] int num_warmup_steps() const;
  /// Most (micro-batch, chunk) pairs whose forward ran and whose backward did not: min(warm-up + 1,
  /// M·VPP).
  [[nodiscard]] int max_in_flight() const;
  /// Chunk of the i-th forward step: (i mod PP·VPP) / PP; of the i-th backward step the same,
  /// counted from the last chunk.
  [[nodiscard]] int chunk(int step, bool forward) const;
  /// Micro-batch of the i-th forward or backward step: PP·(i / (PP·VPP)) + i mod PP.
  [[nodiscard]] int microbatch(int step) const;
  [[nodiscard]] std::vector<Task> tasks() const;

 private:
  [[nodiscard]] int num_steps() const { return shape_.num_microbatches * shape_.num_chunks; }
  PipelineShape shape_;
  int rank_;
};

/// Forward only: receive, compute, send, for each micro-batch. Not with virtual stages.
class InferenceSchedule {
 public:
  InferenceSchedule(int num_microbatches, int num_stages, int stage);
  [[nodiscard]] std::vector<Task> tasks() const;

 private:
  PipelineShape shape_;
  int stage_;
};

/// Tasks of `rank` in a training step: 1F1B, interleaved when VPP > 1.
[[nodiscard]] std::vector<Task> training_tasks(const PipelineShape& shape, int rank);

}  // namespace trellis::trainer
