#include "trainer/modules/rotary_embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>

#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// (x1, x2) → (x1·cos − d·x2·sin, x2·cos + d·x1·sin), d = ±1 for the direction of turning.
at::Tensor rotate(const at::Tensor& input, const at::Tensor& cos, const at::Tensor& sin, int direction) {
  const std::int64_t half = input.size(-1) / 2;
  at::Tensor output = at::mul(input, cos);
  output.narrow(-1, 0, half).addcmul_(input.narrow(-1, half, half), sin, -direction);
  output.narrow(-1, half, half).addcmul_(input.narrow(-1, 0, half), sin, direction);
  return output;
}

/// The inverse of a rotation is its transpose: the gradient turns back.
class RotaryBackward final : public Derivative {
 public:
  RotaryBackward(at::Tensor cos, at::Tensor sin) : cos_(std::move(cos)), sin_(std::move(sin)) {}

 private:
  Tensors backward(Tensors grads) override { return {rotate(grads[0], cos_, sin_, -1)}; }
  at::Tensor cos_, sin_;
};

}  // namespace

RotaryEmbedding::RotaryEmbedding(const ModuleContext& context, std::int64_t head_dim, std::int64_t sequence_length, double theta) {
  const at::TensorOptions options = at::TensorOptions().dtype(context.dtype).device(context.device);
  if (context.shape_only) {
    cos_ = at::empty({sequence_length, 1, 1, head_dim}, options);
    sin_ = at::empty({sequence_length, 1, 1, head_dim / 2}, options);
    return;
  }
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kDouble) / static_cast<double>(head_dim);
  const at::Tensor angles = at::arange(sequence_length, at::kDouble).unsqueeze(-1) * at::pow(theta, exponents).reciprocal_();
  const at::Tensor cos = angles.cos();
  cos_ = at::cat({cos, cos}, -1).view({sequence_length, 1, 1, head_dim}).to(options);
  sin_ = angles.sin().view({sequence_length, 1, 1, head_dim / 2}).to(options);
}

at::Tensor RotaryEmbedding::forward(const at::Tensor& input) const {
  at::Tensor output;
  {
    BelowAutograd below;
    output = rotate(input, cos_, sin_, 1);
  }
  if (needs_derivative({input})) attach(c10::make_intrusive<RotaryBackward>(cos_, sin_), {input}, {output});
  return output;
}

}  // namespace trellis::trainer
