#include "trainer/modules/activations.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

struct GateUp {
  explicit GateUp(const at::Tensor& fused) : GateUp(fused, fused.size(-1) / 2) {}
  GateUp(const at::Tensor& fused, std::int64_t half)
      : gate(fused.narrow(-1, 0, half)), up(fused.narrow(-1, half, half)) {}
  at::Tensor gate, up;
};

/// Keeps the input only: silu is computed again, which is cheaper than reading it back from memory.
class SwigluBackward final : public Derivative {
 public:
  explicit SwigluBackward(const at::Tensor& gate_up) { save(gate_up); }

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor fused = saved(0);
    at::Tensor grad = at::empty_like(fused);
    const GateUp value(fused);
    GateUp out(grad);
    at::mul_out(out.up, grads[0], at::silu(value.gate));
    at::silu_backward_out(out.gate, at::mul(grads[0], value.up), value.gate);
    return {grad};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  at::Tensor output;
  {
    BelowAutograd below;
    const GateUp value(gate_up);
    output = at::silu(value.gate).mul_(value.up);
  }
  if (needs_derivative({gate_up}))
    attach(c10::make_intrusive<SwigluBackward>(gate_up), {gate_up}, {output});
  return output;
}

at::Tensor activate(Activation activation, const at::Tensor& input) {
  switch (activation) {
    case Activation::kGelu: return at::gelu(input);
    case Activation::kOpenAiGelu: return at::gelu(input, "tanh");
    case Activation::kSwiglu: return swiglu(input);
    case Activation::kGeglu:
    case Activation::kReglu: break;
  }
  const GateUp value(input);
  return activate(activation, value.gate, value.up);
}

at::Tensor activate(Activation activation, const at::Tensor& gate, const at::Tensor& up) {
  if (activation == Activation::kSwiglu) return at::silu(gate) * up;
  return (activation == Activation::kGeglu ? at::gelu(gate) : at::relu(gate)) * up;
}

}  // namespace trellis::trainer
