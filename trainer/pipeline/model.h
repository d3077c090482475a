#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include "trainer/data/data_module.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/pipeline/comm.h"
#include "trainer/pipeline/stage.h"
#include "trainer/pipeline/tasks.h"
#include "trainer/utils/scope.h"

namespace trellis::trainer {

/// Executes a stage's schedule: all micro-batches, forward and backward. One stage (PP = 1) is the same schedule without neighbours.
class NxDPPModel {
 public:
  NxDPPModel(std::unique_ptr<PipelineStage> stage, const ParallelState& parallel, int num_microbatches, BorderTensor border,
             std::shared_ptr<BackwardLayer> backward_layer);

  /// Returns the mean loss over the micro-batches and data-parallel ranks, on the device, the same on every rank. `reduce_grads` runs as
  /// the schedule's last task.
  at::Tensor run_train(const std::vector<MicroBatch>& micro_batches, const std::function<void()>& reduce_grads);

 private:
  struct InFlight {
    at::Tensor input;               ///< the received activation; its gradient goes back
    torch::autograd::Edge output;   ///< where backward starts. The output's values are free to go once they were sent.
    at::Tensor value;               ///< the output until it was sent; the scaled loss on the last stage
  };
  class TaskScope;

  void execute(const Task& task, const MicroBatch& micro_batch);
  void forward(int microbatch, const MicroBatch& micro_batch);
  void backward(int microbatch);
  at::Tensor average_loss();
  [[nodiscard]] at::Tensor to_device(const at::Tensor& host) const { return host.to(border_.options.device()); }

  std::unique_ptr<PipelineStage> stage_;
  ParallelState parallel_;
  int num_microbatches_;
  BorderTensor border_;
  std::shared_ptr<BackwardLayer> backward_layer_;
  PipelineComm comm_;
  std::vector<Task> tasks_;
  std::vector<std::string> microbatch_scopes_;
  std::vector<InFlight> in_flight_;
  at::Tensor received_grad_;
  std::vector<at::Tensor> losses_;  ///< one per micro-batch: adding them up as they come would make the first forward pass differ
};

}  // namespace trellis::trainer
