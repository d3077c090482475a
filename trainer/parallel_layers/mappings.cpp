#include "trainer/parallel_layers/mappings.h"

#include <ATen/ops/cat.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

class CommunicationBackward final : public Derivative {
 public:
  CommunicationBackward(Communication communication, ParallelGroup group,
                        std::source_location where)
      : communication_(communication), group_(std::move(group)), where_(where) {}

 private:
  Tensors backward(Tensors grads) override { return {communication_(grads[0], group_, where_)}; }
  Communication communication_;
  ParallelGroup group_;
  std::source_location where_;
};

at::Tensor identity(const at::Tensor& input, const ParallelGroup&, std::source_location) {
  return input.alias();
}

/// A gradient may be shared with other branches of the graph, so it is summed in a copy.
at::Tensor all_reduce_copy(const at::Tensor& input, const ParallelGroup& group,
                           std::source_location where) {
  return all_reduce(input.clone(at::MemoryFormat::Contiguous), group, where);
}

at::Tensor all_reduce_in_place(const at::Tensor& input, const ParallelGroup& group,
                               std::source_location where) {
  return all_reduce(input.alias(), group, where);
}

at::Tensor split_last_dim(const at::Tensor& input, const ParallelGroup& group,
                          std::source_location) {
  return split(input, -1, group).contiguous();
}

/// Members arrive stacked along dimension 0; their place is the last dimension.
at::Tensor gather_last_dim(const at::Tensor& input, const ParallelGroup& group,
                           std::source_location where) {
  return at::cat(all_gather(input.unsqueeze(0), group, where).unbind(0), -1);
}

}  // namespace

at::Tensor communicate(const at::Tensor& input, const ParallelGroup& group, Communication forward,
                       Communication backward, std::source_location where) {
  if (group.size == 1) return input;
  at::Tensor output;
  {
    BelowAutograd below;
    output = forward(input, group, where);
  }
  if (needs_derivative({input}))
    attach(c10::make_intrusive<CommunicationBackward>(backward, group, where), {input}, {output});
  return output;
}

at::Tensor copy_to_tensor_model_parallel_region(const at::Tensor& input, const ParallelGroup& tp,
                                                std::source_location where) {
  return communicate(input, tp, identity, all_reduce_copy, where);
}

at::Tensor scatter_to_tensor_model_parallel_region(const at::Tensor& input, const ParallelGroup& tp,
                                                   std::source_location where) {
  return communicate(input, tp, split_last_dim, gather_last_dim, where);
}

at::Tensor gather_from_tensor_model_parallel_region(const at::Tensor& input,
                                                    const ParallelGroup& tp,
                                                    std::source_location where) {
  return communicate(input, tp, gather_last_dim, split_last_dim, where);
}

at::Tensor reduce_from_tensor_model_parallel_region(const at::Tensor& input,
                                                    const ParallelGroup& tp,
                                                    at::ScalarType reduce_dtype,
                                                    std::source_location where) {
  if (tp.size == 1) return input;
  const at::ScalarType dtype = input.scalar_type();
  return communicate(input.to(reduce_dtype), tp, all_reduce_in_place, identity, where).to(dtype);
}

}  // namespace trellis::trainer
