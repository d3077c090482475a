#include "trainer/parallel_layers/sequence_parallel.h"

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/mappings.h"

namespace trellis::trainer {
namespace {

at::Tensor split_sequence(const at::Tensor& input, const ParallelGroup& group,
                          std::source_location /*where*/) {
  return split(input, 0, group).contiguous();
}

}  // namespace

at::Tensor scatter_to_sequence_parallel_region(const at::Tensor& input, const ParallelGroup& tp,
                                               std::source_location where) {
  return communicate(input, tp, split_sequence, all_gather, where);
}

at::Tensor gather_from_sequence_parallel_region(const at::Tensor& input, const ParallelGroup& tp,
                                                bool to_model_parallel,
                                                std::source_location where) {
  return communicate(input, tp, all_gather, to_model_parallel ? reduce_scatter : split_sequence,
                     where);
}

at::Tensor reduce_scatter_to_sequence_parallel_region(const at::Tensor& input,
                                                      const ParallelGroup& tp,
                                                      at::ScalarType reduce_dtype,
                                                      std::source_location where) {
  if (tp.size == 1) return input;
  const at::ScalarType dtype = input.scalar_type();
  return communicate(input.to(reduce_dtype), tp, reduce_scatter, all_gather, where).to(dtype);
}

}  // namespace trellis::trainer
