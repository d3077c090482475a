#include "device/aten/state/memory_categories.h"

#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/node.h>

#include "device/aten/state/storage.h"

namespace trellis::device {
namespace {

struct OptimizerStep final : at::ObserverContext {
  std::vector<std::pair<RankState*, std::uint32_t>> first_ops;  ///< of each rank of the thread
};

void categorize(const at::Tensor& tensor, BufferCategory category) {
  if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage()) return;
  NeuronStorage& storage = storage_of(tensor);
  if (storage.category() != category) storage.set_category(category);
}

/// A leaf that an announced forward made: a stage's input or that of a recomputed layer, detached
/// there. No parameter.
bool is_detached_activation(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.is_privateuseone() || !leaf.has_storage()) return false;
  const NeuronStorage& storage = storage_of(leaf);
  return storage.category() == BufferCategory::kActivation &&
         !storage.owner().recorder().automatic();
}

}  // namespace

void categorize_accumulated(const at::RecordFunction& node) {
  if (std::string_view(node.name()) != "torch::autograd::AccumulateGrad") return;
  const auto current = torch::autograd::get_current_node();
  const auto* const accumulate =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(current.get());
  if (accumulate == nullptr || is_detached_activation(accumulate->variable)) return;
  categorize(accumulate->variable, BufferCategory::kParameter);
  categorize(accumulate->variable.grad(), BufferCategory::kGradient);
}

std::unique_ptr<at::ObserverContext> begin_optimizer_step(const at::RecordFunction& scope) {
  if (!std::string_view(scope.name()).starts_with("Optimizer.step#"))
    return nullptr;  // torch.optim's own scope
  auto step = std::make_unique<OptimizerStep>();
  for (RankState* const rank : owned_ranks())
    step->first_ops.emplace_back(rank, rank->recorder().memory().op());
  return step;
}

void end_optimizer_step(const at::ObserverContext* begun) {
  if (begun == nullptr) return;
  for (const auto& [rank, first_op] : static_cast<const OptimizerStep*>(begun)->first_ops) {
    rank->recorder().memory().keep_since(first_op, BufferCategory::kOptimizerState);
  }
}

}  // namespace trellis::device
