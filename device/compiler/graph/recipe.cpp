#include "device/compiler/graph/recipe.h"

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

namespace trellis::device {

using sim::isa::Activation;
using sim::isa::AluOp;

Term Recipe::where(Term predicate, Term a, Term b) {
  if (b.constant) return select(a.constant ? copy_of(predicate, a.number) : a, predicate, b.number);
  const Term otherwise = alu(AluOp::kEqual, predicate, 0.0);
  if (a.constant) return select(b, otherwise, a.number);
  return add(select(a, predicate, 0), select(b, otherwise, 0));
}

Term Recipe::copy_of(Term like, double number) { return add(mul(like, 0.0), number); }

namespace {

// ── arithmetic ──

Term scaled(Recipe& r, Term x, double factor) { return factor == 1 ? x : r.mul(x, factor); }

void add(Recipe& r) {
  r.out(0, r.add(r.in(0), scaled(r, r.in_or(1, "other", 1), r.scalars.number("alpha", 1))));
}
void sub(Recipe& r) {
  r.out(0, r.sub(r.in(0), scaled(r, r.in_or(1, "other", 1), r.scalars.number("alpha", 1))));
}
void rsub(Recipe& r) {
  r.out(0, r.sub(r.in_or(1, "other", 1), scaled(r, r.in(0), r.scalars.number("alpha", 1))));
}
void mul(Recipe& r) {
  r.out(0, r.mul(r.in(0), r.in_or(1, "other", r.scalars.number("self", 1))));
}  // x.mul_(2) calls mul.out(2, x)

Term trunc_or_floor(Recipe& r, Term x, const std::string& mode);

void div(Recipe& r) {
  const Term q = r.div(r.in(0), r.in_or(1, "other", 1));
  const std::string mode = r.scalars.text("rounding_mode");
  r.out(0, mode.empty() || mode == "None" ? q : trunc_or_floor(r, q, mode));
}

/// Rounding by the float format: adding and taking away 1.5·2²³ rounds to the nearest integer.
Term nearest(Recipe& r, Term x) {
  constexpr double kShift = 12582912.0;
  return r.sub(r.add(x, kShift), kShift);
}
Term floor_of(Recipe& r, Term x) {
  const Term n = nearest(r, x);
  return r.sub(n, r.alu(AluOp::kGreater, n, x));
}
Term trunc_or_floor(Recipe& r, Term x, const std::string& mode) {
  if (mode != "trunc") return floor_of(r, x);
  return r.mul(floor_of(r, r.act(Activation::kAbs, x)), r.act(Activation::kSign, x));
}
void floor(Recipe& r) { r.out(0, floor_of(r, r.in(0))); }
void ceil(Recipe& r) { r.out(0, r.mul(floor_of(r, r.mul(r.in(0), -1.0)), -1.0)); }
void trunc(Recipe& r) { r.out(0, trunc_or_floor(r, r.in(0), "trunc")); }
void round(Recipe& r) { r.out(0, nearest(r, r.in(0))); }
void floor_divide(Recipe& r) { r.out(0, floor_of(r, r.div(r.in(0), r.in_or(1, "other", 1)))); }
void remainder(Recipe& r) {
  const Term other = r.in_or(1, "other", 1);
  r.out(0, r.sub(r.in(0), r.mul(floor_of(r, r.div(r.in(0), other)), other)));
}
void fmod(Recipe& r) {
  const Term other = r.in_or(1, "other", 1);
  r.out(0, r.sub(r.in(0), r.mul(trunc_or_floor(r, r.div(r.in(0), other), "trunc"), other)));
}

template <Activation fn>
void unary(Recipe& r) {
  r.out(0, r.act(fn, r.in(0)));
}
template <AluOp op>
void binary(Recipe& r) {
  r.out(0, r.alu(op, r.in(0), r.in_or(1, "other", 1)));
}
template <AluOp op>
void logical(Recipe& r) {
  r.out(0, r.alu(op, r.alu(AluOp::kNotEqual, r.in(0), 0.0), r.alu(AluOp::kNotEqual, r.in(1), 0.0)));
}
void logical_not(Recipe& r) { r.out(0, r.alu(AluOp::kEqual, r.in(0), 0.0)); }
void bitwise_not(Recipe& r) {
  const bool is_bool = r.in_view(0).dtype == DType::kBool;
  r.out(0, is_bool ? r.alu(AluOp::kEqual, r.in(0), 0.0) : r.sub(-1.0, r.in(0)));
}
void pow(Recipe& r) {
  if (r.scalars.has("self"))
    return r.out(0, r.act(Activation::kExp, r.in(0), std::log(r.scalars.number("self", 2))));
  const Term e = r.in_or(1, "exponent", 2);
  if (!e.constant) return r.out(0, r.alu(AluOp::kPower, r.in(0), e));
  if (e.number == 2) return r.out(0, r.act(Activation::kSquare, r.in(0)));
  if (e.number == 0.5) return r.out(0, r.act(Activation::kSqrt, r.in(0)));
  if (e.number == -0.5) return r.out(0, r.act(Activation::kRsqrt, r.in(0)));
  if (e.number == 3) return r.out(0, r.mul(r.act(Activation::kSquare, r.in(0)), r.in(0)));
  r.out(0, r.alu(AluOp::kPower, r.in(0), e));
}
void exp2(Recipe& r) { r.out(0, r.act(Activation::kExp, r.in(0), std::log(2.0))); }
void log1p(Recipe& r) { r.out(0, r.act(Activation::kLog, r.in(0), 1, 1)); }
void log2(Recipe& r) { r.out(0, r.mul(r.act(Activation::kLog, r.in(0)), 1 / std::log(2.0))); }
void expm1(Recipe& r) { r.out(0, r.sub(r.act(Activation::kExp, r.in(0)), 1.0)); }
void copy(Recipe& r) {
  r.out(0, r.copy(r.in(r.num_inputs() == 2 && r.in_view(0).sizes == r.out_view(0).sizes &&
                               r.is_in_place()
                           ? 1
                           : 0)));
}
void isnan(Recipe& r) { r.out(0, r.alu(AluOp::kNotEqual, r.in(0), r.in(0))); }
void isinf(Recipe& r) {
  r.out(0, r.alu(AluOp::kEqual, r.act(Activation::kAbs, r.in(0)),
                 std::numeric_limits<double>::infinity()));
}
void isfinite(Recipe& r) {
  r.out(0, r.alu(AluOp::kLess, r.act(Activation::kAbs, r.in(0)),
                 std::numeric_limits<double>::infinity()));
}

// ── combinations ──

void lerp(Recipe& r) {
  r.out(0, r.add(r.in(0), r.mul(r.sub(r.in(1), r.in(0)), r.in_or(2, "weight", 0.5))));
}
void addcmul(Recipe& r) {
  r.out(0, r.add(r.in(0), scaled(r, r.mul(r.in(1), r.in(2)), r.scalars.number("value", 1))));
}
void addcdiv(Recipe& r) {
  r.out(0, r.add(r.in(0), scaled(r, r.div(r.in(1), r.in(2)), r.scalars.number("value", 1))));
}

void clamp(Recipe& r) {
  Term x = r.in(0);
  if (r.num_inputs() == 3)
    return r.out(0, r.alu(AluOp::kMin, r.alu(AluOp::kMax, x, r.in(1)), r.in(2)));
  if (r.num_inputs() == 2)
    return r.out(0, r.alu(r.scalars.has("max") ? AluOp::kMin : AluOp::kMax, x, r.in(1)));
  if (const auto low = r.scalars.maybe("min")) x = r.alu(AluOp::kMax, x, *low);
  if (const auto high = r.scalars.maybe("max")) x = r.alu(AluOp::kMin, x, *high);
  r.out(0, r.scalars.maybe("min") || r.scalars.maybe("max") ? x : r.copy(x));
}
void clamp_min(Recipe& r) { r.out(0, r.alu(AluOp::kMax, r.in(0), r.in_or(1, "min", 0))); }
void clamp_max(Recipe& r) { r.out(0, r.alu(AluOp::kMin, r.in(0), r.in_or(1, "max", 0))); }
void where(Recipe& r) { r.out(0, r.where(r.in(0), r.in_or(1, "self", 0), r.in_or(2, "other", 0))); }
void masked_fill(Recipe& r) {
  const Term keep = r.alu(AluOp::kEqual, r.in(1), 0.0);
  r.out(0, r.num_inputs() > 2 ? r.where(r.in(1), r.in(2), r.in(0))
                              : r.select(r.in(0), keep, r.scalars.number("value", 0)));
}

// ── activations ──

template <Activation fn>
void gradient(Recipe& r) {
  r.out(0, r.mul(r.in(0), r.act(fn, r.in(1))));
}
void threshold_backward(Recipe& r) {
  r.out(0, r.select(r.in(0), r.alu(AluOp::kGreater, r.in(1), r.scalars.number("threshold", 0)), 0));
}
void sigmoid_backward(Recipe& r) { r.out(0, r.mul(r.mul(r.in(0), r.in(1)), r.sub(1.0, r.in(1)))); }
void tanh_backward(Recipe& r) {
  r.out(0, r.mul(r.in(0), r.sub(1.0, r.act(Activation::kSquare, r.in(1)))));
}
void leaky_relu(Recipe& r) {
  r.out(0, r.alu(AluOp::kMax, r.in(0), r.mul(r.in(0), r.scalars.number("negative_slope", 0.01))));
}
/// log(1 + eˣ) = max(x, 0) + log(1 + e^−|x|)
void softplus(Recipe& r) {
  const Term small = r.act(Activation::kExp, r.act(Activation::kAbs, r.in(0)), -1);
  r.out(0, r.add(r.alu(AluOp::kMax, r.in(0), 0.0), r.act(Activation::kLog, small, 1, 1)));
}

// ── reductions ──

Term magnitude(Recipe& r, Term x) { return r.act(Activation::kAbs, x); }

void sum(Recipe& r) { r.out(0, r.reduce(AluOp::kAdd, r.in(0))); }
void mean(Recipe& r) { r.out(0, r.mul(r.reduce(AluOp::kAdd, r.in(0)), 1 / r.reduced_count())); }
void amax(Recipe& r) { r.out(0, r.reduce(AluOp::kMax, r.in(0))); }
void amin(Recipe& r) { r.out(0, r.reduce(AluOp::kMin, r.in(0))); }
void any(Recipe& r) { r.out(0, r.reduce(AluOp::kMax, r.alu(AluOp::kNotEqual, r.in(0), 0.0))); }
void all(Recipe& r) { r.out(0, r.reduce(AluOp::kMin, r.alu(AluOp::kNotEqual, r.in(0), 0.0))); }
void norm(Recipe& r) {
  const double p = r.scalars.maybe("ord") ? r.scalars.number("ord", 2) : r.scalars.number("p", 2);
  if (p == 2)
    return r.out(
        0, r.act(Activation::kSqrt, r.reduce(AluOp::kAdd, r.act(Activation::kSquare, r.in(0)))));
  if (p == 1) return r.out(0, r.reduce(AluOp::kAdd, magnitude(r, r.in(0))));
  if (std::isinf(p)) return r.out(0, r.reduce(AluOp::kMax, magnitude(r, r.in(0))));
  const Term total = r.reduce(AluOp::kAdd, r.alu(AluOp::kPower, magnitude(r, r.in(0)), p));
  r.out(0, r.alu(AluOp::kPower, total, 1 / p));
}
Term variance(Recipe& r, double correction) {
  const Term mean = r.mul(r.reduce(AluOp::kAdd, r.in(0)), 1 / r.reduced_count());
  const Term square = r.act(Activation::kSquare, r.sub(r.in(0), mean));
  return r.mul(r.reduce(AluOp::kAdd, square), 1 / (r.reduced_count() - correction));
}
double correction(Recipe& r) {
  return r.scalars.has("correction") ? r.scalars.number("correction", 1)
                                     : r.scalars.number("unbiased", 1);
}
void var(Recipe& r) { r.out(0, variance(r, correction(r))); }
void standard_deviation(Recipe& r) {
  r.out(0, r.act(Activation::kSqrt, variance(r, correction(r))));
}
void logsumexp(Recipe& r) {
  const Term top = r.reduce(AluOp::kMax, r.in(0));
  const Term total = r.reduce(AluOp::kAdd, r.act(Activation::kExp, r.sub(r.in(0), top)));
  r.out(0, r.add(r.act(Activation::kLog, total), top));
}

// ── softmax ──

void softmax(Recipe& r) {
  const Term e = r.act(Activation::kExp, r.sub(r.in(0), r.reduce(AluOp::kMax, r.in(0))));
  r.out(0, r.mul(e, r.act(Activation::kReciprocal, r.reduce(AluOp::kAdd, e))));
}
void log_softmax(Recipe& r) {
  const Term shifted = r.sub(r.in(0), r.reduce(AluOp::kMax, r.in(0)));
  r.out(0, r.sub(shifted,
                 r.act(Activation::kLog, r.reduce(AluOp::kAdd, r.act(Activation::kExp, shifted)))));
}
void softmax_backward(Recipe& r) {  // grad, output
  r.out(0, r.mul(r.in(1), r.sub(r.in(0), r.reduce(AluOp::kAdd, r.mul(r.in(0), r.in(1))))));
}
void log_softmax_backward(Recipe& r) {
  r.out(0, r.sub(r.in(0), r.mul(r.act(Activation::kExp, r.in(1)), r.reduce(AluOp::kAdd, r.in(0)))));
}

// ── normalisation over the last dimensions ──

void rms_norm(Recipe& r) {  // input, weight?
  const Term square = r.reduce(AluOp::kAdd, r.act(Activation::kSquare, r.in(0)));
  const double eps = r.scalars.number("eps", 1.1920928955078125e-07);
  const Term rstd = r.act(Activation::kRsqrt, square, 1 / r.reduced_count(), eps);
  const Term normal = r.mul(r.in(0), rstd);
  r.out(0, r.num_inputs() > 1 ? r.mul(normal, r.in(1)) : normal);
  if (r.num_outputs() > 1) r.out(1, rstd);
}
/// x − mean is made twice, each time inside an instruction that does more.
void layer_norm(Recipe& r) {  // input, weight?, bias?
  const Term mean = r.mul(r.reduce(AluOp::kAdd, r.in(0)), 1 / r.reduced_count());
  const Term square = r.reduce(AluOp::kAdd, r.act(Activation::kSquare, r.sub(r.in(0), mean)));
  const Term rstd =
      r.act(Activation::kRsqrt, square, 1 / r.reduced_count(), r.scalars.number("eps", 1e-5));
  Term y = r.mul(r.sub(r.in(0), mean), rstd);
  if (r.num_inputs() > 1) y = r.mul(y, r.in(1));
  if (r.num_inputs() > 2) y = r.add(y, r.in(2));
  r.out(0, y);
  if (r.num_outputs() > 1) r.out(1, mean);
  if (r.num_outputs() > 2) r.out(2, rstd);
}

const std::unordered_map<std::string_view, ChainOp>& table() {
  using A = Activation;
  constexpr Reduces kD = Reduces::kDims, kL = Reduces::kLastDims;
  static const std::unordered_map<std::string_view, ChainOp> kTable{
      {"add", {add}},
      {"sub", {sub}},
      {"subtract", {sub}},
      {"rsub", {rsub}},
      {"mul", {mul}},
      {"multiply", {mul}},
      {"div", {div}},
      {"divide", {div}},
      {"true_divide", {div}},
      {"floor_divide", {floor_divide}},
      {"remainder", {remainder}},
      {"fmod", {fmod}},
      {"neg", {unary<A::kNeg>}},
      {"abs", {unary<A::kAbs>}},
      {"sign", {unary<A::kSign>}},
      {"sgn", {unary<A::kSign>}},
      {"exp", {unary<A::kExp>}},
      {"exp2", {exp2}},
      {"expm1", {expm1}},
      {"log", {unary<A::kLog>}},
      {"log1p", {log1p}},
      {"log2", {log2}},
      {"sqrt", {unary<A::kSqrt>}},
      {"rsqrt", {unary<A::kRsqrt>}},
      {"reciprocal", {unary<A::kReciprocal>}},
      {"sigmoid", {unary<A::kSigmoid>}},
      {"silu", {unary<A::kSilu>}},
      {"gelu", {unary<A::kGelu>}},
      {"tanh", {unary<A::kTanh>}},
      {"relu", {unary<A::kRelu>}},
      {"sin", {unary<A::kSin>}},
      {"cos", {unary<A::kCos>}},
      {"erf", {unary<A::kErf>}},
      {"square", {unary<A::kSquare>}},
      {"pow", {pow}},
      {"floor", {floor}},
      {"ceil", {ceil}},
      {"trunc", {trunc}},
      {"round", {round}},
      {"isnan", {isnan}},
      {"isinf", {isinf}},
      {"isfinite", {isfinite}},
      {"leaky_relu", {leaky_relu}},
      {"softplus", {softplus}},
      {"maximum", {binary<AluOp::kMax>}},
      {"minimum", {binary<AluOp::kMin>}},
      {"eq", {binary<AluOp::kEqual>}},
      {"ne", {binary<AluOp::kNotEqual>}},
      {"gt", {binary<AluOp::kGreater>}},
      {"ge", {binary<AluOp::kGreaterEqual>}},
      {"lt", {binary<AluOp::kLess>}},
      {"le", {binary<AluOp::kLessEqual>}},
      {"bitwise_and", {binary<AluOp::kAnd>}},
      {"bitwise_or", {binary<AluOp::kOr>}},
      {"bitwise_xor", {binary<AluOp::kXor>}},
      {"__and__", {binary<AluOp::kAnd>}},
      {"__or__", {binary<AluOp::kOr>}},
      {"bitwise_not", {bitwise_not}},
      {"logical_and", {logical<AluOp::kAnd>}},
      {"logical_or", {logical<AluOp::kOr>}},
      {"logical_xor", {logical<AluOp::kXor>}},
      {"logical_not", {logical_not}},
      {"lerp", {lerp}},
      {"addcmul", {addcmul}},
      {"addcdiv", {addcdiv}},
      {"clamp", {clamp}},
      {"clamp_min", {clamp_min}},
      {"clamp_max", {clamp_max}},
      {"where", {where}},
      {"masked_fill", {masked_fill}},
      {"threshold_backward", {threshold_backward}},
      {"sigmoid_backward", {sigmoid_backward}},
      {"tanh_backward", {tanh_backward}},
      {"silu_backward", {gradient<A::kSiluGrad>}},
      {"gelu_backward", {gradient<A::kGeluGrad>}},
      {"copy", {copy}},
      {"_copy_from", {copy}},
      {"_to_copy", {copy}},
      {"clone", {copy}},
      {"contiguous", {copy}},
      {"to", {copy}},
      {"_copy_from_and_resize", {copy}},
      {"alias_copy", {copy}},
      {"expand_copy", {copy}},
      {"sum", {sum, kD}},
      {"mean", {mean, kD}},
      {"amax", {amax, kD}},
      {"amin", {amin, kD}},
      {"any", {any, kD}},
      {"all", {all, kD}},
      {"norm", {norm, kD}},
      {"linalg_vector_norm", {norm, kD}},
      {"var", {var, kD}},
      {"std", {standard_deviation, kD}},
      {"logsumexp", {logsumexp, kD}},
      {"_softmax", {softmax, kD}},
      {"_safe_softmax", {softmax, kD}},
      {"_log_softmax", {log_softmax, kD}},
      {"_softmax_backward_data", {softmax_backward, kD}},
      {"_log_softmax_backward_data", {log_softmax_backward, kD}},
      {"_fused_rms_norm", {rms_norm, kL}},
      {"rms_norm", {rms_norm, kL}},
      {"native_layer_norm", {layer_norm, kL}},
      {"layer_norm", {layer_norm, kL}},
  };
  return kTable;
}

}  // namespace

const ChainOp* find_chain_op(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? find_training_op(name) : &found->second;
}

std::string plain_name(std::string_view op) {
  if (op.starts_with("aten::")) op.remove_prefix(6);
  op = op.substr(0, op.find('.'));
  if (op.ends_with("__")) return std::string(op);
  if (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return std::string(op);
}

}  // namespace trellis::device
