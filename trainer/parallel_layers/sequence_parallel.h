#pragma once

#include <source_location>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Pairs of communications at the borders of the sequence-parallel region, where activations are
/// [s/TP, b, h]: dimension 0 is the sequence.
///                                               forward         backward
at::Tensor scatter_to_sequence_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp,
    std::source_location where = std::source_location::current());  // split all-gather
/// all-gather / reduce-scatter when what follows is tensor-parallel (each rank has a part of the
/// gradient), else split.
at::Tensor gather_from_sequence_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp, bool to_model_parallel = true,
    std::source_location where = std::source_location::current());
/// reduce-scatter / all-gather. With `reduce_dtype` different from the input's, the sum runs in
/// that type.
at::Tensor reduce_scatter_to_sequence_parallel_region(
    const at::Tensor& input, const ParallelGroup& tp, at::ScalarType reduce_dtype,
    std::source_location where = std::source_location::current());

}  // namespace trellis::trainer
