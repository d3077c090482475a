#include <array>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/kernel_tables.h"
#include "device/aten/shape_tables.h"

namespace trellis::device {
namespace {

void no_result(const c10::OperatorHandle& op, torch::jit::Stack* stack) { torch::jit::drop(*stack, op.schema().arguments().size()); }

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
    return made;
  }();
  return *all;
}

constexpr const char* kMaskHint = "compute with the mask itself (where, multiplication) instead of selecting by it";
constexpr const char* kUniqueHint = "run this step in materialised mode";

constexpr std::array<std::pair<std::string_view, const char*>, 11> kDataDependent = {{
    {"aten::nonzero", kMaskHint},
    {"aten::nonzero.out", kMaskHint},
    {"aten::masked_select", kMaskHint},
    {"aten::masked_select.out", kMaskHint},
    {"aten::_unique", kUniqueHint},
    {"aten::_unique2", kUniqueHint},
    {"aten::unique_dim", kUniqueHint},
    {"aten::unique_consecutive", kUniqueHint},
    {"aten::unique_dim_consecutive", kUniqueHint},
    {"aten::bincount", "count with scatter_add into a tensor of known size"},
    {"aten::equal", "compare on the CPU, or skip the comparison in shape-only mode"},
}};

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

const char* data_dependent_hint(std::string_view op) {
  for (const auto& [name, hint] : kDataDependent) {
    if (name == op) return hint;
  }
  return nullptr;
}

}  // namespace trellis::device
