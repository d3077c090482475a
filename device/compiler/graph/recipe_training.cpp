// Recipes of training operations: optimizers, gradients of norms, constants.
#include <cmath>
#include <unordered_map>

#include "device/compiler/graph/recipe.h"

namespace trellis::device {
namespace {

using sim::isa::Activation;
using sim::isa::AluOp;

void fill(Recipe& r) {
  r.out(0, r.num_inputs() > 1
               ? r.copy(r.in(1))
               : Term(r.scalars.number(r.scalars.has("fill_value") ? "fill_value" : "value", 0)));
}
void zero(Recipe& r) { r.out(0, Term(0.0)); }
void one(Recipe& r) { r.out(0, Term(1.0)); }

/// beta^step with the step on the device.
Term power_of(Recipe& r, double beta, Term step) {
  return r.act(Activation::kExp, step, std::log(beta));
}

/// params, grads, exp_avg, exp_avg_sq, [max_exp_avg_sq], step, [lr] → params, exp_avg, exp_avg_sq,
/// [max_exp_avg_sq]
void adam(Recipe& r, bool decoupled) {
  const bool amsgrad = r.scalars.flag("amsgrad", false);
  const std::size_t after_step = amsgrad ? 6 : 5;
  const Term lr = r.in_or(after_step, "lr", 1e-3);
  const double beta1 = r.scalars.number("beta1", 0.9), beta2 = r.scalars.number("beta2", 0.999);
  const double decay = r.scalars.number("weight_decay", 0), eps = r.scalars.number("eps", 1e-8);
  Term p = r.in(0), g = r.in(1);
  if (r.scalars.flag("maximize", false)) g = r.mul(g, -1.0);
  if (decay != 0)
    decoupled ? p = r.mul(p, r.sub(1.0, r.mul(lr, decay))) : g = r.add(g, r.mul(p, decay));
  const Term m = r.add(r.mul(r.in(2), beta1), r.mul(g, 1 - beta1));
  const Term v = r.add(r.mul(r.in(3), beta2), r.mul(r.act(Activation::kSquare, g), 1 - beta2));
  const Term step = r.in(after_step - 1);
  const Term correction1 = r.sub(1.0, power_of(r, beta1, step));
  const Term correction2 = r.sub(1.0, power_of(r, beta2, step));
  const Term top = amsgrad ? r.alu(AluOp::kMax, r.in(4), v) : v;
  const Term denominator =
      r.add(r.mul(r.act(Activation::kSqrt, top), r.act(Activation::kRsqrt, correction2)), eps);
  const Term size = r.mul(r.div(1.0, correction1), lr);
  r.out(0, r.sub(p, r.mul(r.mul(m, r.div(1.0, denominator)), size)));
  r.out(1, m);
  r.out(2, v);
  if (amsgrad) r.out(3, top);
}
void fused_adam(Recipe& r) { adam(r, false); }
void fused_adamw(Recipe& r) { adam(r, true); }

void fused_sgd(Recipe& r) {
  const double lr = r.scalars.number("lr", 1e-3), decay = r.scalars.number("weight_decay", 0),
               momentum = r.scalars.number("momentum", 0);
  Term g = r.in(1);
  if (r.scalars.flag("maximize", false)) g = r.mul(g, -1.0);
  if (decay != 0) g = r.add(g, r.mul(r.in(0), decay));
  if (momentum != 0) {
    const bool first = r.scalars.flag("is_first_step", false);
    const Term buffer =
        first ? r.copy(g)
              : r.add(r.mul(r.in(2), momentum), r.mul(g, 1 - r.scalars.number("dampening", 0)));
    r.out(1, buffer);
    g = r.scalars.flag("nesterov", false) ? r.add(g, r.mul(buffer, momentum)) : buffer;
  }
  r.out(0, r.sub(r.in(0), r.mul(g, lr)));
}

/// grad, x, rstd, [weight]: dx = r·(g − x̂·mean(g·x̂)) with g = grad·weight, x̂ = x·r
void rms_norm_dx(Recipe& r) {
  const Term g = r.num_inputs() > 3 ? r.mul(r.in(0), r.in(3)) : r.in(0);
  const Term normal = r.mul(r.in(1), r.in(2));
  const Term mean = r.mul(r.reduce(AluOp::kAdd, r.mul(g, normal)), 1 / r.reduced_count());
  r.out(0, r.mul(r.sub(g, r.mul(normal, mean)), r.in(2)));
}
void norm_dweight(Recipe& r) {
  r.out(0, r.reduce(AluOp::kAdd, r.mul(r.in(0), r.mul(r.in(1), r.in(2)))));
}

/// grad, x, mean, rstd, [weight]: dx = s − (x̂·mean(s·x̂) + mean(s)) with s = grad·weight·rstd, x̂
///   =
/// (x − mean)·rstd
void layer_norm_dx(Recipe& r) {
  const Term normal = r.mul(r.sub(r.in(1), r.in(2)), r.in(3));
  const Term g = r.num_inputs() > 4 ? r.mul(r.in(0), r.in(4)) : r.in(0);
  const Term s = r.mul(g, r.in(3));
  const double share = -1 / r.reduced_count();
  const Term mean_s = r.mul(r.reduce(AluOp::kAdd, s), share);
  const Term mean_sx = r.mul(r.reduce(AluOp::kAdd, r.mul(s, normal)), share);
  r.out(0, r.add(s, r.add(r.mul(normal, mean_sx), mean_s)));
}
void layer_norm_dweight(Recipe& r) {
  r.out(0, r.reduce(AluOp::kAdd, r.mul(r.in(0), r.mul(r.sub(r.in(1), r.in(2)), r.in(3)))));
}
/// A uniform number of fp32 is made of the draw, as XLA's graph of a Bernoulli draw has it
/// (UniformFloatingPointDistribution), and is below p with probability p.
void random_mask(Recipe& r) {
  const Term uniform = r.add(r.mul(r.random(), 1 / 4294967296.0), 0.5);
  r.out(0, r.alu(AluOp::kLess, uniform, r.scalars.number("p", 0.5)));
}
void norm_dbias(Recipe& r) { r.out(0, r.reduce(AluOp::kAdd, r.in(0))); }

}  // namespace

const ChainOp* find_training_op(std::string_view name) {
  static const std::unordered_map<std::string_view, ChainOp> kTable{
      {"fill", {fill}},
      {"zero", {zero}},
      {"zeros", {zero}},
      {"zeros_like", {zero}},
      {"new_zeros", {zero}},
      {"ones", {one}},
      {"ones_like", {one}},
      {"full", {fill}},
      {"full_like", {fill}},
      {"scalar_tensor", {fill}},
      {"_fused_adam", {fused_adam}},
      {"_fused_adamw", {fused_adamw}},
      {"_fused_sgd", {fused_sgd}},
      {"rms_norm_dx", {rms_norm_dx, Reduces::kLastDims}},
      {"layer_norm_dx", {layer_norm_dx, Reduces::kLastDims}},
      {"norm_dweight", {norm_dweight, Reduces::kLeadingDims}},
      {"layer_norm_dweight", {layer_norm_dweight, Reduces::kLeadingDims}},
      {"random_mask", {random_mask}},
      {"norm_dbias", {norm_dbias, Reduces::kLeadingDims}},
  };
  const auto found = kTable.find(name);
  return found == kTable.end() ? nullptr : &found->second;
}

}  // namespace trellis::device
