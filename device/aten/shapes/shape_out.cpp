#include "device/aten/shapes/shape_out.h"

#include <unordered_map>

#include <ATen/core/Tensor.h>

namespace trellis::device {
namespace {

/// Arguments that are no outputs; outputs are last.
std::vector<const c10::Argument*> inputs_of(const c10::FunctionSchema& schema) {
  std::vector<const c10::Argument*> inputs;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!argument.is_out()) inputs.push_back(&argument);
  }
  return inputs;
}

bool same_inputs(const c10::FunctionSchema& schema, const c10::FunctionSchema& other) {
  if (other.is_mutable() || other.arguments().size() != inputs_of(schema).size()) return false;
  const auto inputs = inputs_of(schema);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const c10::Argument& theirs = other.arguments()[i];
    if (inputs[i]->name() != theirs.name() || *inputs[i]->real_type() != *theirs.real_type())
      return false;
  }
  return true;
}

/// Every overload by its operator's name.
const std::unordered_map<std::string, std::vector<c10::OperatorName>>& overloads() {
  static const auto* const all = [] {
    auto* const made = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      (*made)[name.name].push_back(name);
    return made;
  }();
  return *all;
}

}  // namespace

std::optional<c10::OperatorHandle> twin_without_out(const c10::OperatorHandle& op) {
  if (inputs_of(op.schema()).size() == op.schema().arguments().size()) return std::nullopt;
  for (const c10::OperatorName& name : overloads().at(op.operator_name().name)) {
    const auto other = c10::Dispatcher::singleton().findSchema(name);
    if (other.has_value() && same_inputs(op.schema(), other->schema())) return other;
  }
  return std::nullopt;
}

void resize_outs(const torch::jit::Stack& inferred, torch::jit::Stack& stack,
                 std::size_t num_arguments, std::size_t num_outs) {
  TORCH_INTERNAL_ASSERT(inferred.size() == num_outs, "as many results as outputs");
  std::vector<at::Tensor> outs;
  for (std::size_t i = 0; i < num_outs; ++i) {
    const at::Tensor out = torch::jit::peek(stack, i, num_outs).toTensor(),
                     result = inferred[i].toTensor();
    TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), "result type ",
                result.scalar_type(), " can't be cast to the desired output type ",
                out.scalar_type());
    if (out.sizes() != result.sizes()) {
      out.resize_(result.sizes());
      out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    }
    outs.push_back(out);
  }
  torch::jit::drop(stack, num_arguments);
  for (at::Tensor& out : outs) torch::jit::push(stack, std::move(out));
}

}  // namespace trellis::device
