#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// One direction of a communication: from a tensor to a fresh tensor (or an alias that no one else
/// uses).
using Communication = at::Tensor (*)(const at::Tensor&, const ParallelGroup&);

/// Applies `forward` now and `backward` to the gradient. A group of one is the identity and leaves
/// no trace in the graph.
at::Tensor communicate(const at::Tensor& input, const ParallelGroup& group, Communication forward,
                       Communication backward);

/// Pairs of communications at the borders of the tensor-parallel region, [.., h] → [.., h/TP] along
/// the last dimension.
///                                               forward      backward
at::Tensor copy_to_tensor_model_parallel_region(const at::Tensor& input,
                                                const ParallelGroup& tp);  // identity all-reduce
at::Tensor scatter_to_tensor_model_parallel_region(const at::Tensor& input,
                                                   const ParallelGroup& tp);  // split all-gather
at::Tensor gather_from_tensor_model_parallel_region(const at::Tensor& input,
                                                    const ParallelGroup& tp);  // all-gather   split
/// all-reduce / identity. Sums in place: `input` must be a temporary of the caller and becomes the
/// result. With `reduce_dtype` different from the input's, the sum runs in that type.
at::Tensor reduce_from_tensor_model_parallel_region(const at::Tensor& input,
                                                    const ParallelGroup& tp,
                                                    at::ScalarType reduce_dtype);

}  // namespace trellis::trainer
