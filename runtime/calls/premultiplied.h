#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trellis::runtime {

/// The factor by which each rank multiplies its part before it is added (ReduceOp.PREMUL_SUM, by
/// which FSDP scales gradients); nullopt: another reduction.
[[nodiscard]] std::optional<double> factor_of(const c10d::ReduceOp& op);

/// A contiguous copy of a CPU tensor, times `factor`. Throws for whole numbers.
[[nodiscard]] at::Tensor multiplied(const at::Tensor& host, double factor);

}  // namespace trellis::runtime
