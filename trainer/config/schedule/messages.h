#pragma once

#include <map>
#include <optional>
#include <vector>

#include "trainer/config/schedule/tasks.h"

namespace trellis::trainer {

/// A tensor that crosses a stage border.
struct Message {
  int stage = 0;  ///< of the model, which receives it
  int microbatch = 0;
  bool is_gradient = false;
  auto operator<=>(const Message&) const = default;
};

/// The message that a task of `rank` receives, or sends; none for tasks without one.
[[nodiscard]] std::optional<Message> received_by(const Task& task, const PipelineShape& shape,
                                                 int rank);
[[nodiscard]] std::optional<Message> sent_by(const Task& task, const PipelineShape& shape,
                                             int rank);

/// The rank that sends a message: an activation comes from the stage before, a gradient from the
/// stage after.
[[nodiscard]] inline int sender(const Message& message, const PipelineShape& shape) {
  return shape.rank_of(message.stage + (message.is_gradient ? 1 : -1));
}

/// The messages from one rank to another, in the order in which the sender's schedule sends them. A
/// receiver that posts its receives in this order matches the sends whatever the two schedules are:
/// with PP = 2 and virtual stages, activations and gradients share a channel.
[[nodiscard]] std::vector<Message> messages_between(const std::vector<Task>& senders_tasks,
                                                    const PipelineShape& shape, int from, int to);

/// For each rank that sends to `rank`: its messages, in order. `tasks_of_ranks`: the schedule of
/// every rank.
using IncomingMessages = std::map<int, std::vector<Message>>;
[[nodiscard]] IncomingMessages incoming_messages(
    const std::vector<std::vector<Task>>& tasks_of_ranks, const PipelineShape& shape, int rank);

/// The messages whose receives a rank posts at the beginning of the pass at tasks[first]: those
/// that this pass and the next one receive. A message thus travels while the pass before it
/// computes, and at most two tensors wait.
[[nodiscard]] std::vector<Message> receives_to_post(const std::vector<Task>& tasks,
                                                    std::size_t first, const PipelineShape& shape,
                                                    int rank);

}  // namespace trellis::trainer
