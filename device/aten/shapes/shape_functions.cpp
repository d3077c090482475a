#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/kernel_tables.h"
#include "device/aten/shapes/shape_tables.h"

namespace trellis::device {
namespace {

void no_result(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

void like_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  at::Tensor first;
  for (std::size_t i = 0; i < count && !first.defined(); ++i) {
    const c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (argument.isTensor()) first = argument.toTensor();
  }
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, at::empty_like(first));
}

const ShapeTable& table() {
  static const auto* const all = [] {
    auto* const made = new ShapeTable;
    add_elementwise_shapes(*made);
    add_reduction_shapes(*made);
    add_network_shapes(*made);
    add_indexing_shapes(*made);
    add_data_dependent_shapes(*made);
    add_pooling_shapes(*made);
    add_loss_shapes(*made);
    add_algebra_shapes(*made);
    return made;
  }();
  return *all;
}

}  // namespace

void ShapeTable::add_no_result(std::string_view op) {
  functions_.insert_or_assign(op, c10::KernelFunction::makeFromBoxedFunction<&no_result>());
}

void ShapeTable::add_like_first(std::string_view op) {
  functions_.insert_or_assign(op, c10::KernelFunction::makeFromBoxedFunction<&like_first>());
}

const c10::KernelFunction* ShapeTable::find(std::string_view op) const {
  const auto found = functions_.find(op);
  return found == functions_.end() ? nullptr : &found->second;
}

std::optional<c10::KernelFunction> find_shape_function(std::string_view op) {
  const c10::KernelFunction* const found = table().find(op);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

}  // namespace trellis::device
