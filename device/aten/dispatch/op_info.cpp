#include "device/aten/dispatch/op_info.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/core/jit_type.h>

#include "device/aten/dispatch/widenings.h"
#include "device/aten/shapes/kernel_tables.h"
#include "device/aten/shapes/shape_out.h"

namespace trellis::device {
namespace {

bool is_optional_tensor_list(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType &&
         type.castRaw<c10::ListType>()
                 ->getElementType()
                 ->castRaw<c10::OptionalType>()
                 ->getElementType()
                 ->kind() == c10::TypeKind::TensorType;
}

ArgKind kind_of(const c10::Argument& argument) {
  const c10::Type* type = argument.real_type().get();
  if (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return ArgKind::kTensor;
    case c10::TypeKind::GeneratorType: return ArgKind::kGenerator;
    case c10::TypeKind::DeviceObjType: return ArgKind::kDevice;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::StorageType:
    case c10::TypeKind::StreamObjType: return ArgKind::kUnrecorded;
    case c10::TypeKind::ListType:
      if (is_optional_tensor_list(*type)) return ArgKind::kOptionalTensorList;
      if (type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType)
        return ArgKind::kTensorList;
      return ArgKind::kScalar;
    default: return ArgKind::kScalar;
  }
}

bool is_scalar_type(const c10::Argument& argument) {
  const c10::Type* type = argument.real_type().get();
  if (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

}  // namespace

bool is_view(const c10::FunctionSchema& schema) {
  bool aliases = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() == nullptr) continue;
    if (argument.alias_info()->isWrite()) return false;
    aliases = true;
  }
  return aliases;
}

OpInfo::OpInfo(const c10::OperatorHandle& op)
    : name(c10::toString(op.operator_name())),
      num_returns(op.schema().returns().size()),
      view(is_view(op.schema())) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    ArgInfo arg;
    arg.kind = kind_of(argument);
    arg.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    arg.is_out = argument.is_out();
    arg.scalar_type = is_scalar_type(argument);
    arg.name = argument.name();
    arg.cpu_allowed = arg.kind == ArgKind::kOptionalTensorList || arg.name == "scalars" ||
                      (arg.name == "index" && name.starts_with("aten::index_fill"));
    arg.changed = name.starts_with("aten::native_batch_norm") && name.find("back") == name.npos &&
                  (arg.name == "running_mean" || arg.name == "running_var");
    // Layout, device and memory format follow from the outputs; pinning concerns the host.
    if (arg.name == "pin_memory" || arg.name == "layout") arg.kind = ArgKind::kUnrecorded;
    writes |= arg.written;
    num_outs += arg.is_out ? 1 : 0;
    args.push_back(std::move(arg));
  }
  const bool writes_list = std::any_of(args.begin(), args.end(), [](const ArgInfo& arg) {
    return arg.written && arg.kind == ArgKind::kTensorList;
  });
  counts_versions = writes_list && !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                    !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
  const auto& returns = op.schema().returns();
  several_results = returns.size() > 1 || (returns.size() == 1 && returns[0].real_type()->kind() !=
                                                                      c10::TypeKind::TensorType);
  cpu_function = find_cpu_function(name);
  widenings = widenings_of(name);
  shape_function = find_shape_function(name);
  if (!shape_function.has_value() && num_outs > 0 &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    twin = twin_without_out(op);
    if (twin.has_value())
      twin_shape_function = find_shape_function(c10::toString(twin->operator_name()));
  }
}

}  // namespace trellis::device
