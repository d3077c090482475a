#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "device/aten/dispatch/widenings.h"

namespace trellis::device {

enum class ArgKind : std::uint8_t {
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kGenerator,
  kDevice,
  kScalar,
  kUnrecorded
};

struct ArgInfo {
  ArgKind kind = ArgKind::kScalar;
  bool written = false;      ///< the operator changes it
  bool changed = false;      ///< the same, and the schema does not say so
  bool is_out = false;       ///< written and not read
  bool scalar_type = false;  ///< an integer that is a c10::ScalarType
  bool cpu_allowed = false;  ///< indices, and scalars of a list, may lie on the CPU
  std::string name;
};

/// The properties of one operator that the boxed kernel needs, digested from its schema once.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  std::string name;  ///< "aten::mm.out"
  std::vector<ArgInfo> args;
  std::size_t num_returns = 0;
  bool several_results = false;  ///< more than one tensor may come back
  bool view =
      false;  ///< returns a view of an argument and changes none: metadata only, not recorded
  bool writes = false;
  /// On the CPU it is made of operators that count up the versions of what they change
  /// (`_foreach_add_`): autograd's own layer does not.
  bool counts_versions = false;
  /// Works on CPU tensors; empty: the operator's own CPU kernel does.
  std::optional<c10::KernelFunction> cpu_function;
  /// Works on Meta tensors; empty: the operator's own Meta kernel does.
  std::optional<c10::KernelFunction> shape_function;
  /// Has `out=` and no own way to a shape: the same operator without it shows it.
  std::optional<c10::OperatorHandle> twin;
  std::optional<c10::KernelFunction> twin_shape_function;
  std::size_t num_outs = 0;
  std::span<const Widening> widenings;
};

/// View operators change and read no data.
[[nodiscard]] bool is_view(const c10::FunctionSchema& schema);

}  // namespace trellis::device
