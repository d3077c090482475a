#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/kernels/kernel_spec.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::device {

/// The name of a dtype in requests and reports: the ISA's name; for packed MX types, which the ISA
/// names by how they lie in memory, the name of their format.
[[nodiscard]] std::string_view dtype_name(sim::isa::DType dtype);
/// Inverse of `dtype_name`; nullopt for an unknown word.
[[nodiscard]] std::optional<sim::isa::DType> parse_dtype(std::string_view word);
[[nodiscard]] std::span<const KernelSpec> kernel_catalogue();
/// Throws ConfigError with the nearest name.
[[nodiscard]] const KernelSpec& find_kernel(std::string_view name);
/// The request with every default filled in. Throws ConfigError with all problems of it, one per
/// line.
[[nodiscard]] KernelRequest complete(const KernelRequest& request, const sim::SystemConfig& system);
/// One request per core: the request itself, or two over halves of it. REQUIRES: complete.
[[nodiscard]] std::vector<KernelRequest> split_over_cores(const KernelRequest& request);
[[nodiscard]] std::vector<KernelOperand> kernel_operands(const KernelRequest& request,
                                                         const sim::SystemConfig& system);
[[nodiscard]] BuiltKernel build_kernel(const KernelRequest& request,
                                       const sim::SystemConfig& system);
/// The array's rate on one core for a dtype: the denominator of MFU.
[[nodiscard]] FlopsPerSecond peak_rate(sim::isa::DType dtype, const sim::SystemConfig& system);

}  // namespace trellis::device
