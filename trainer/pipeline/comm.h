#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// What crosses a stage border: [s/TP, b, h] with sequence parallelism, else [s, b, h], in the compute type.
struct BorderTensor {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
};

/// Point-to-point communication between neighbouring pipeline stages.
///
/// Sends do not block. One send per direction may be under way: the next one first waits for it, which bounds memory. In 1F1B this wait
/// never stops anyone: the neighbour received message m − 1 before it could produce what this stage needed to compute message m.
class PipelineComm {
 public:
  PipelineComm(ParallelGroup pipeline, BorderTensor border) : group_(std::move(pipeline)), border_(std::move(border)) {}

  [[nodiscard]] at::Tensor recv_forward() { return receive(group_.rank - 1); }
  [[nodiscard]] at::Tensor recv_backward() { return receive(group_.rank + 1); }
  void send_forward(const at::Tensor& activation) { send(activation, group_.rank + 1, to_next_); }
  void send_backward(const at::Tensor& gradient) { send(gradient, group_.rank - 1, to_previous_); }
  /// Waits for the sends under way.
  void finish();

 private:
  struct Sending {
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
    void wait();
  };
  at::Tensor receive(int from);
  void send(const at::Tensor& tensor, int to, Sending& slot);

  ParallelGroup group_;
  BorderTensor border_;
  Sending to_next_;
  Sending to_previous_;
};

}  // namespace trellis::trainer
