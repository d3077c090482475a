#include "device/aten/state/automatic_phase.h"

#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace trellis::device {
namespace {

constexpr std::string_view kStep = "Optimizer.step#";
constexpr std::string_view kZeroGrad = "Optimizer.zero_grad#";
constexpr int kNoGraphTask = -1;

struct OptimizerScope {
  int graph_task;  ///< the backward that it was entered from
  bool step;  ///< a step runs without gradients; what runs with them there is a closure's forward
};

thread_local std::vector<OptimizerScope> optimizer_scopes;

}  // namespace

AutoPhase phase_here() {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  const bool gradients = c10::GradMode::is_enabled();
  if (!optimizer_scopes.empty() && optimizer_scopes.back().graph_task == graph_task) {
    return optimizer_scopes.back().step && gradients ? AutoPhase::kForward : AutoPhase::kOptimizer;
  }
  if (graph_task != kNoGraphTask) return AutoPhase::kBackward;
  return gradients ? AutoPhase::kForward : AutoPhase::kEval;
}

void enter_optimizer_scope(std::string_view user_scope) {
  const bool step = user_scope.starts_with(kStep);
  if (step || user_scope.starts_with(kZeroGrad))
    optimizer_scopes.push_back({torch::autograd::get_current_graph_task_id(), step});
}

void leave_optimizer_scope(std::string_view user_scope) {
  if ((user_scope.starts_with(kStep) || user_scope.starts_with(kZeroGrad)) &&
      !optimizer_scopes.empty())
    optimizer_scopes.pop_back();
}

}  // namespace trellis::device
