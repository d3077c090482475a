#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/config/schedule/messages.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Shape and type of the tensor that crosses a stage border: [s/TP, b, h] with sequence
/// parallelism, else [s, b, h], in the compute type.
struct BorderTensor {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
};

/// Point-to-point communication between neighbouring pipeline stages.
///
/// Sends do not block. One send per channel may be under way: the next one first waits for it,
/// which bounds memory. Receives are posted early and in the order in which the neighbour sends, so
/// this wait never stops a rank permanently (tests/trainer/schedule/scheduler_test.cpp plays it).
class PipelineComm {
 public:
  /// `border`: of every stage border. None: each border is learned from the first tensor that
  /// crosses it, whose sizes and type travel ahead.
  PipelineComm(ParallelGroup pipeline, const PipelineShape& shape, at::Device device,
               const std::optional<BorderTensor>& border);

  /// A pass begins in which this rank gets `incoming`.
  void begin(const IncomingMessages& incoming);
  /// Lets a message arrive while other work goes on. No effect while its border is not known, or
  /// when it was posted before.
  void post(const Message& message);
  /// Waits for a message.
  [[nodiscard]] at::Tensor receive(const Message& message);
  /// Throws ConfigError when the tensor differs from what crossed this border before.
  void send(const Message& message, const at::Tensor& tensor);
  /// Waits for the sends under way.
  void finish();

 private:
  struct Sending {
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
    void wait();
  };
  struct Arriving {
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
  };
  struct Channel {
    std::vector<Message> order;
    std::size_t posted = 0;
  };
  /// The border that a message crosses: number i lies before stage i.
  [[nodiscard]] std::optional<BorderTensor>& border_of(const Message& message);
  [[nodiscard]] int tag(const Message& message) const;
  [[nodiscard]] bool is_local(int peer) const { return peer == group_.rank; }
  void start_receive(const Message& message, int from);
  void learn_border(const Message& message, int from);
  void announce_border(const Message& message, const at::Tensor& tensor, int to);
  void check_border(const Message& message, const at::Tensor& tensor);

  ParallelGroup group_;
  PipelineShape shape_;
  at::Device device_;
  std::vector<std::optional<BorderTensor>> borders_;
  std::map<int, Channel> incoming_;       ///< by sender
  std::map<Message, Arriving> arriving_;  ///< posted, not taken yet
  std::map<int, Sending> sending_;        ///< by receiver
};

}  // namespace trellis::trainer
