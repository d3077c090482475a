#pragma once

#include <vector>

#include "trainer/pipeline/tasks.h"

namespace trellis::trainer {

/// One forward, one backward: after a warm-up of forwards each stage alternates, so that it holds few activations. PP = 4, M = 6:
///
///   stage 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 .  B3 .  B4 .  B5
///   stage 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 .  B4 .  B5
///   stage 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 .  B5
///   stage 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
///
/// A stage sends the activation of a forward before it waits for a gradient. That is free of deadlock because sends do not block, and the
/// next stage finds its input when it ends its backward; NxD must send after, because its sends are collectives of the pair.
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
  [[nodiscard]] bool is_first() const { return stage_ == 0; }
  [[nodiscard]] bool is_last() const { return stage_ == num_stages_ - 1; }
  void add_forward(std::vector<Task>& tasks, int microbatch) const;
  void add_backward(std::vector<Task>& tasks, int microbatch) const;

  int num_microbatches_;
  int num_stages_;
  int stage_;
};

}  // namespace trellis::trainer
