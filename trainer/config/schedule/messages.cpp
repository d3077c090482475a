#include "trainer/config/schedule/messages.h"

namespace trellis::trainer {

std::optional<Message> received_by(const Task& task, const PipelineShape& shape, int rank) {
  const int stage = shape.stage(rank, task.chunk);
  if (task.kind == TaskKind::kForwardPreprocess) return Message{stage, task.microbatch, false};
  if (task.kind == TaskKind::kBackwardPreprocess) return Message{stage, task.microbatch, true};
  return std::nullopt;
}

std::optional<Message> sent_by(const Task& task, const PipelineShape& shape, int rank) {
  const int stage = shape.stage(rank, task.chunk);
  if (task.kind == TaskKind::kForwardPostprocess) return Message{stage + 1, task.microbatch, false};
  if (task.kind == TaskKind::kBackwardPostprocess) return Message{stage - 1, task.microbatch, true};
  return std::nullopt;
}

std::vector<Message> messages_between(const std::vector<Task>& senders_tasks,
                                      const PipelineShape& shape, int from, int to) {
  std::vector<Message> messages;
  for (const Task& task : senders_tasks) {
    const auto message = sent_by(task, shape, from);
    if (message && shape.rank_of(message->stage) == to) messages.push_back(*message);
  }
  return messages;
}

IncomingMessages incoming_messages(const std::vector<std::vector<Task>>& tasks_of_ranks,
                                   const PipelineShape& shape, int rank) {
  IncomingMessages incoming;
  for (int from = 0; from < shape.num_ranks; ++from) {
    auto messages =
        messages_between(tasks_of_ranks[static_cast<std::size_t>(from)], shape, from, rank);
    if (!messages.empty()) incoming[from] = std::move(messages);
  }
  return incoming;
}

std::vector<Message> receives_to_post(const std::vector<Task>& tasks, std::size_t first,
                                      const PipelineShape& shape, int rank) {
  std::vector<Message> messages;
  int passes = 1;
  for (std::size_t i = first; i < tasks.size(); ++i) {
    if (i > first && !same_pass(tasks[i - 1], tasks[i]) && ++passes > 2) break;
    if (const auto message = received_by(tasks[i], shape, rank)) messages.push_back(*message);
  }
  return messages;
}

}  // namespace trellis::trainer
