#include "trainer/pipeline/model.h"

#include <optional>

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/pipeline/scheduler.h"

namespace trellis::trainer {
namespace {

bool is_forward(const Task& task) { return task.kind <= TaskKind::kForwardPostprocess; }

bool same_pass(const Task& a, const Task& b) { return a.microbatch == b.microbatch && is_forward(a) == is_forward(b); }

}  // namespace

/// One pass of one micro-batch, with its receive and its send.
class NxDPPModel::TaskScope {
 public:
  TaskScope(const Task& task, const std::string& microbatch)
      : phase_(is_forward(task) ? "phase=forward" : "phase=backward"), microbatch_(microbatch) {}

 private:
  Scope phase_;
  Scope microbatch_;
};

NxDPPModel::NxDPPModel(std::unique_ptr<PipelineStage> stage, const ParallelState& parallel, int num_microbatches, BorderTensor border,
                       std::shared_ptr<BackwardLayer> backward_layer)
    : stage_(std::move(stage)),
      parallel_(parallel),
      num_microbatches_(num_microbatches),
      border_(std::move(border)),
      backward_layer_(std::move(backward_layer)),
      comm_(parallel.get_pipeline_model_parallel_group(), border_),
      tasks_(Train1F1BSchedule(num_microbatches, parallel.get_pipeline_model_parallel_size(), parallel.get_pipeline_model_parallel_rank())
                 .tasks()),
      in_flight_(static_cast<std::size_t>(num_microbatches)) {
  for (int i = 0; i < num_microbatches; ++i) microbatch_scopes_.push_back("microbatch=" + std::to_string(i));
}

at::Tensor NxDPPModel::run_train(const std::vector<MicroBatch>& micro_batches, const std::function<void()>& reduce_grads) {
  TORCH_CHECK(static_cast<int>(micro_batches.size()) == num_microbatches_, "run_train: expected ", num_microbatches_, " micro-batches, got ",
              micro_batches.size());
  losses_.clear();
  std::optional<TaskScope> scope;
  const Task* previous = nullptr;
  for (const Task& task : tasks_) {
    if (task.kind == TaskKind::kReduceGrads) break;
    if (previous == nullptr || !same_pass(*previous, task)) {
      scope.reset();
      scope.emplace(task, microbatch_scopes_[static_cast<std::size_t>(task.microbatch)]);
    }
    execute(task, micro_batches[static_cast<std::size_t>(task.microbatch)]);
    previous = &task;
  }
  comm_.finish();
  scope.reset();
  reduce_grads();
  return average_loss();
}

void NxDPPModel::execute(const Task& task, const MicroBatch& micro_batch) {
  InFlight& flight = in_flight_[static_cast<std::size_t>(task.microbatch)];
  switch (task.kind) {
    case TaskKind::kForwardPreprocess:
      flight.input = comm_.recv_forward().requires_grad_();
      break;
    case TaskKind::kForwardStep:
      forward(task.microbatch, micro_batch);
      break;
    case TaskKind::kForwardPostprocess:
      comm_.send_forward(flight.value.detach());
      flight.value.reset();
      break;
    case TaskKind::kBackwardPreprocess:
      received_grad_ = comm_.recv_backward();
      break;
    case TaskKind::kBackwardStep:
      backward(task.microbatch);
      break;
    case TaskKind::kBackwardPostprocess:
      comm_.send_backward(flight.input.grad());
      flight.input.reset();
      break;
    case TaskKind::kReduceGrads:
      break;
  }
}

void NxDPPModel::forward(int microbatch, const MicroBatch& micro_batch) {
  InFlight& flight = in_flight_[static_cast<std::size_t>(microbatch)];
  const at::Tensor input = parallel_.is_pipeline_first_stage() ? to_device(micro_batch.input_ids) : flight.input;
  const bool is_last = parallel_.is_pipeline_last_stage();
  flight.value = stage_->forward(input, is_last ? to_device(micro_batch.labels) : at::Tensor());
  flight.output = torch::autograd::impl::gradient_edge(flight.value);
  if (is_last) losses_.push_back(flight.value.detach());
}

/// The loss is divided by the number of micro-batches where backward starts: its gradient is 1/M instead of 1.
void NxDPPModel::backward(int microbatch) {
  InFlight& flight = in_flight_[static_cast<std::size_t>(microbatch)];
  at::Tensor gradient = std::move(received_grad_);
  if (parallel_.is_pipeline_last_stage()) gradient = at::full({}, 1.0 / num_microbatches_, flight.value.options());
  const torch::autograd::Edge root = std::move(flight.output);
  flight.value.reset();
  torch::autograd::Engine::get_default_engine().execute({root}, {std::move(gradient)}, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
  backward_layer_->close();
}

/// Stages without a loss add zero, so that every rank holds it.
at::Tensor NxDPPModel::average_loss() {
  const Scope scope("phase=grad_reduce");
  const ParallelGroup& data = parallel_.get_data_parallel_group();
  at::Tensor loss;
  if (losses_.empty()) {
    const at::ScalarType dtype = border_.options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
    loss = at::zeros({}, border_.options.dtype(dtype));
  } else {
    loss = all_reduce(at::stack(losses_).sum(), data).mul_(1.0 / (num_microbatches_ * data.size));
  }
  return all_reduce(std::move(loss), parallel_.get_pipeline_model_parallel_group());
}

}  // namespace trellis::trainer
