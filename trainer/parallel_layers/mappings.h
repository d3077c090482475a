#pragma once

#include <source_location>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// One direction of a communication: from a tensor to a fresh tensor (or an alias that no one else
/// uses).
using Communication = at::Tensor (*)(const at::Tensor&, const ParallelGroup&, std::source_location);

/// Applies `forward` now and `backward` to the gradient. A group of one is the identity and leaves
/// no trace in the graph. `where`: the line that reports of hangs name, in both directions.
at::Tensor communicate(const at::Tensor& input, const ParallelGroup& group, Communication forward,
                       Communication backward,
                       std::source_location where = std::source_location::current());

/// Pairs of communications at the borders of the tensor-parallel region, [.., h] → [.., h/TP] along
/// the last dimension.
///                                               forward      backward
at::Tensor copy_to_tensor_model_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp,
    std::source_location where = std::source_location::current());  // identity all-reduce
at::Tensor scatter_to_tensor_model_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp,
    std::source_location where = std::source_location::current());  // split all-gather
at::Tensor gather_from_tensor_model_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp,
    std::source_location where = std::source_location::current());  // all-gather   split
/// all-reduce / identity. Sums in place: `input` must be a temporary of the caller and becomes the
/// result. With `reduce_dtype` different from the input's, the sum runs in that type.
at::Tensor reduce_from_tensor_model_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp, at::ScalarType reduce_dtype,
    std::source_location where = std::source_location::current());

}  // namespace trellis::trainer
