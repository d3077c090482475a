#include "trainer/pipeline/scheduler.h"

#include <algorithm>
#include <stdexcept>

namespace trellis::trainer {

std::string to_string(const Task& task) {
  static constexpr const char* kNames[] = {"ForwardPreprocess", "ForwardStep",  "ForwardPostprocess", "BackwardPreprocess",
                                           "BackwardStep",      "BackwardPostprocess", "ReduceGrads"};
  const std::string name = kNames[static_cast<int>(task.kind)];
  return task.kind == TaskKind::kReduceGrads ? name : name + "(" + std::to_string(task.microbatch) + ")";
}

Train1F1BSchedule::Train1F1BSchedule(int num_microbatches, int num_stages, int stage)
    : num_microbatches_(num_microbatches), num_stages_(num_stages), stage_(stage) {
  if (num_microbatches < 1 || stage < 0 || stage >= num_stages) {
    throw std::logic_error("schedule of stage " + std::to_string(stage) + " of " + std::to_string(num_stages) + " with " +
                           std::to_string(num_microbatches) + " micro-batches");
  }
}

int Train1F1BSchedule::num_warmup_microbatches() const { return std::min(num_stages_ - stage_ - 1, num_microbatches_); }

int Train1F1BSchedule::max_in_flight() const { return std::min(num_stages_ - stage_, num_microbatches_); }

void Train1F1BSchedule::add_forward(std::vector<Task>& tasks, int microbatch) const {
  if (!is_first()) tasks.push_back({TaskKind::kForwardPreprocess, microbatch});
  tasks.push_back({TaskKind::kForwardStep, microbatch});
  if (!is_last()) tasks.push_back({TaskKind::kForwardPostprocess, microbatch});
}

void Train1F1BSchedule::add_backward(std::vector<Task>& tasks, int microbatch) const {
  if (!is_last()) tasks.push_back({TaskKind::kBackwardPreprocess, microbatch});
  tasks.push_back({TaskKind::kBackwardStep, microbatch});
  if (!is_first()) tasks.push_back({TaskKind::kBackwardPostprocess, microbatch});
}

std::vector<Task> Train1F1BSchedule::tasks() const {
  const int warmup = num_warmup_microbatches();
  std::vector<Task> tasks;
  for (int i = 0; i < warmup; ++i) add_forward(tasks, i);
  for (int i = warmup; i < num_microbatches_; ++i) {
    add_forward(tasks, i);
    add_backward(tasks, i - warmup);
  }
  for (int i = num_microbatches_ - warmup; i < num_microbatches_; ++i) add_backward(tasks, i);
  tasks.push_back({TaskKind::kReduceGrads, -1});
  return tasks;
}

}  // namespace trellis::trainer
