#include "trainer/config/schedule/scheduler.h"

#include <algorithm>
#include <stdexcept>

#include "base/error.h"

namespace trellis::trainer {
namespace {

void check(const PipelineShape& shape, int rank) {
  if (shape.num_microbatches >= 1 && shape.num_chunks >= 1 && rank >= 0 && rank < shape.num_ranks)
    return;
  throw std::logic_error("schedule of rank " + std::to_string(rank) + " of " +
                         std::to_string(shape.num_ranks) + " with " +
                         std::to_string(shape.num_microbatches) + " micro-batches and " +
                         std::to_string(shape.num_chunks) + " chunks");
}

/// A task list under construction: which steps have a neighbour to receive from and to send to.
class TaskList {
 public:
  TaskList(const PipelineShape& shape, int rank) : shape_(shape), rank_(rank) {}

  void add_forward(int microbatch, int chunk = 0) {
    if (!is_first(chunk)) tasks_.push_back({TaskKind::kForwardPreprocess, microbatch, chunk});
    tasks_.push_back({TaskKind::kForwardStep, microbatch, chunk});
    if (!is_last(chunk)) tasks_.push_back({TaskKind::kForwardPostprocess, microbatch, chunk});
  }
  void add_backward(int microbatch, int chunk = 0) {
    if (!is_last(chunk)) tasks_.push_back({TaskKind::kBackwardPreprocess, microbatch, chunk});
    tasks_.push_back({TaskKind::kBackwardStep, microbatch, chunk});
    if (!is_first(chunk)) tasks_.push_back({TaskKind::kBackwardPostprocess, microbatch, chunk});
  }
  std::vector<Task> end_of_training_step() {
    tasks_.push_back({TaskKind::kReduceGrads, -1});
    return std::move(tasks_);
  }
  std::vector<Task> end() { return std::move(tasks_); }

 private:
  [[nodiscard]] bool is_first(int chunk) const { return shape_.stage(rank_, chunk) == 0; }
  [[nodiscard]] bool is_last(int chunk) const {
    return shape_.stage(rank_, chunk) == shape_.num_stages() - 1;
  }
  PipelineShape shape_;
  int rank_;
  std::vector<Task> tasks_;
};

}  // namespace

std::string to_string(const Task& task) {
  static constexpr const char* kNames[] = {
      "ForwardPreprocess", "ForwardStep",         "ForwardPostprocess", "BackwardPreprocess",
      "BackwardStep",      "BackwardPostprocess", "ReduceGrads"};
  const std::string name = kNames[static_cast<int>(task.kind)];
  if (task.kind == TaskKind::kReduceGrads) return name;
  return name + "(" + std::to_string(task.microbatch) +
         (task.chunk > 0 ? ", chunk " + std::to_string(task.chunk) : "") + ")";
}

std::string steps_text(const std::vector<Task>& tasks, bool with_chunks) {
  std::string text;
  for (const Task& task : tasks) {
    if (task.kind != TaskKind::kForwardStep && task.kind != TaskKind::kBackwardStep) continue;
    if (!text.empty()) text += ' ';
    text += (task.is_forward() ? "F" : "B") + std::to_string(task.microbatch);
    if (with_chunks) text += "." + std::to_string(task.chunk);
  }
  return text;
}

Train1F1BSchedule::Train1F1BSchedule(int num_microbatches, int num_stages, int stage)
    : shape_{num_microbatches, num_stages, 1}, stage_(stage) {
  check(shape_, stage);
}

int Train1F1BSchedule::num_warmup_microbatches() const {
  return std::min(shape_.num_ranks - stage_ - 1, shape_.num_microbatches);
}

int Train1F1BSchedule::max_in_flight() const {
  return std::min(shape_.num_ranks - stage_, shape_.num_microbatches);
}

std::vector<Task> Train1F1BSchedule::tasks() const {
  const int warmup = num_warmup_microbatches(), count = shape_.num_microbatches;
  TaskList tasks(shape_, stage_);
  for (int i = 0; i < warmup; ++i) tasks.add_forward(i);
  for (int i = warmup; i < count; ++i) {
    tasks.add_forward(i);
    tasks.add_backward(i - warmup);
  }
  for (int i = count - warmup; i < count; ++i) tasks.add_backward(i);
  return tasks.end_of_training_step();
}

TrainInterleavedSchedule::TrainInterleavedSchedule(const PipelineShape& shape, int rank)
    : shape_(shape), rank_(rank) {
  check(shape, rank);
  if (shape.num_chunks > 1 && shape.num_microbatches % shape.num_ranks != 0) {
    throw ConfigError(
        "distributed_strategy.virtual_pipeline_model_parallel_size: the interleaved schedule sends "
        "micro-batches in groups of "
        "pipeline_model_parallel_size: expected a number of micro-batches that is a multiple of " +
        std::to_string(shape.num_ranks) + ", got " + std::to_string(shape.num_microbatches) +
        "; change data.global_batch_size or data.micro_batch_size, or set "
        "virtual_pipeline_model_parallel_size to 1");
  }
}

int TrainInterleavedSchedule::num_warmup_steps() const {
  if (shape_.num_microbatches == shape_.num_ranks) return num_steps();
  return std::min(2 * (shape_.num_ranks - rank_ - 1) + (shape_.num_chunks - 1) * shape_.num_ranks,
                  num_steps());
}

int TrainInterleavedSchedule::max_in_flight() const {
  return std::min(num_warmup_steps() + 1, num_steps());
}

int TrainInterleavedSchedule::chunk(int step, bool forward) const {
  const int chunk = step % shape_.num_stages() / shape_.num_ranks;
  return forward ? chunk : shape_.num_chunks - 1 - chunk;
}

int TrainInterleavedSchedule::microbatch(int step) const {
  return shape_.num_ranks * (step / shape_.num_stages()) + step % shape_.num_ranks;
}

std::vector<Task> TrainInterleavedSchedule::tasks() const {
  const int warmup = num_warmup_steps(), count = num_steps();
  TaskList tasks(shape_, rank_);
  for (int i = 0; i < warmup; ++i) tasks.add_forward(microbatch(i), chunk(i, true));
  for (int i = warmup; i < count; ++i) {
    tasks.add_forward(microbatch(i), chunk(i, true));
    tasks.add_backward(microbatch(i - warmup), chunk(i - warmup, false));
  }
  for (int i = count - warmup; i < count; ++i) tasks.add_backward(microbatch(i), chunk(i, false));
  return tasks.end_of_training_step();
}

InferenceSchedule::InferenceSchedule(int num_microbatches, int num_stages, int stage)
    : shape_{num_microbatches, num_stages, 1}, stage_(stage) {
  check(shape_, stage);
}

std::vector<Task> InferenceSchedule::tasks() const {
  TaskList tasks(shape_, stage_);
  for (int i = 0; i < shape_.num_microbatches; ++i) tasks.add_forward(i);
  return tasks.end();
}

std::vector<Task> training_tasks(const PipelineShape& shape, int rank) {
  if (shape.num_chunks > 1) return TrainInterleavedSchedule(shape, rank).tasks();
  return Train1F1BSchedule(shape.num_microbatches, shape.num_ranks, rank).tasks();
}

}  // namespace trellis::trainer
