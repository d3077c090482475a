#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/boxing/KernelFunction.h>

/// Own functions that replace kernels that LibTorch does not have. Both kinds have the
/// operator's C++ signature and are reached through the boxed kernel, which relabels, charges and
/// records: an entry here is all it takes to add an operator.
namespace trellis::device {

/// Computes on CPU tensors, where the operator has no CPU kernel or one that draws from the
/// process-wide generator.
[[nodiscard]] std::optional<c10::KernelFunction> find_cpu_function(std::string_view op);
struct CpuFunction {
  std::string_view op;
  c10::KernelFunction function;
};
/// LSTM and GRU cells: PyTorch's composites call these operators whole on every device but the CPU.
void add_rnn_cells(std::vector<CpuFunction>& functions);
/// Infers results on Meta tensors, where LibTorch's C++ side has no Meta kernel (Python's are not
/// available to us).
[[nodiscard]] std::optional<c10::KernelFunction> find_shape_function(std::string_view op);

/// Thrown by shape functions whose result depends on data; the boxed kernel adds operator and
/// scope.
struct DataDependent {
  const char* hint;
};

/// The CPU generator that belongs to the device of the running operator. REQUIRES: called from a
/// CPU function.
[[nodiscard]] at::Generator running_generator();

}  // namespace trellis::device
