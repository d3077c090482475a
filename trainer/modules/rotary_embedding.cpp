#include "trainer/modules/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

std::int64_t rotary_dim(const RotarySpec& spec) {
  const auto dim = static_cast<std::int64_t>(static_cast<double>(spec.head_dim) * spec.percentage);
  if (dim < 2 || dim > spec.head_dim || dim % 2 != 0) {
    throw ConfigError(c10::str("model: rotary embedding rotates pairs: rotary_percentage ",
                               spec.percentage, " of a head of ", spec.head_dim, " is ", dim,
                               "; expected an even number from 2 to ", spec.head_dim));
  }
  return dim;
}

/// Positions the model was made for before its context was stretched.
double original_positions(const RotarySpec& spec) {
  const std::int64_t original = spec.scaling.original_max_position_embeddings;
  return static_cast<double>(original > 0 ? original : spec.max_position_embeddings);
}

/// Waves longer than original/low_freq_factor are slowed down, those shorter than
/// original/high_freq_factor are not.
at::Tensor scale_llama3(const at::Tensor& frequency, const RotarySpec& spec) {
  const RopeScaling& scaling = spec.scaling;
  const at::Tensor turns =
      frequency * (original_positions(spec) / (2 * std::numbers::pi));  // over the original context
  const at::Tensor smooth =
      ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor))
          .clamp(0, 1);
  return frequency * (smooth + (1 - smooth) / scaling.factor);
}

double dynamic_theta(const RotarySpec& spec, std::int64_t dim) {
  const double original = original_positions(spec);
  const double stretch = std::max(static_cast<double>(spec.sequence_length) / original, 1.0);
  const double growth = spec.scaling.factor * stretch - (spec.scaling.factor - 1);
  return spec.theta * std::pow(growth, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

/// (x1, x2) → (x1·cos − d·x2·sin, x2·cos + d·x1·sin), d = ±1 for the direction of rotation.
at::Tensor rotate(const at::Tensor& input, const RotaryTables& tables, int direction) {
  const std::int64_t half = tables.sin.size(-1);
  at::Tensor output = at::mul(input, tables.cos);
  output.narrow(-1, 0, half).addcmul_(input.narrow(-1, half, half), tables.sin, -direction);
  output.narrow(-1, half, half).addcmul_(input.narrow(-1, 0, half), tables.sin, direction);
  return output;
}

/// The inverse of a rotation is its transpose: the gradient rotates back.
class RotaryBackward final : public Derivative {
 public:
  explicit RotaryBackward(RotaryTables tables) : tables_(std::move(tables)) {}

 private:
  Tensors backward(Tensors grads) override { return {rotate(grads[0], tables_, -1)}; }
  RotaryTables tables_;
};

}  // namespace

at::Tensor inverse_frequencies(const RotarySpec& spec) {
  const std::int64_t dim = rotary_dim(spec);
  const std::string& type = spec.scaling.type;
  const double theta = type == "dynamic" ? dynamic_theta(spec, dim) : spec.theta;
  const at::Tensor exponents = at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim);
  const at::Tensor frequency = at::pow(theta, exponents).reciprocal_();
  if (type == "default" || type == "dynamic") return frequency;
  if (type == "linear") return frequency / spec.scaling.factor;
  if (type == "llama3") return scale_llama3(frequency, spec);
  throw ConfigError(
      "model.rope_scaling: type " + type +
      " is not supported by this version; expected default, linear, dynamic or llama3");
}

RotaryEmbedding::RotaryEmbedding(const ModuleContext& context, const RotarySpec& spec) {
  const at::TensorOptions options = at::TensorOptions().dtype(context.dtype).device(context.device);
  const at::Tensor frequency = inverse_frequencies(spec);
  const std::int64_t positions = spec.sequence_length;
  if (context.shape_only) {
    cos_ = at::empty({positions, spec.head_dim}, options);
    sin_ = at::empty({positions, frequency.size(0)}, options);
    own_ = own_part(context);
    return;
  }
  const at::Tensor angles = at::arange(positions, at::kDouble).unsqueeze(-1) * frequency;
  const at::Tensor cos = angles.cos();
  const at::Tensor still =
      at::ones({positions, spec.head_dim - 2 * frequency.size(0)}, at::kDouble);
  cos_ = at::cat({cos, cos, still}, -1).to(options);
  sin_ = angles.sin().to(options);
  own_ = own_part(context);
}

RotaryTables RotaryEmbedding::own_part(const ModuleContext& context) const {
  const SequenceShard sequence = context.sequence(cos_.size(0));
  const auto own = [&](const at::Tensor& table) {
    return sequence.take(table, 0).unsqueeze(1).unsqueeze(1);
  };
  return {own(cos_), own(sin_)};
}

RotaryTables RotaryEmbedding::tables(const at::Tensor& position_ids) const {
  if (!position_ids.defined()) return own_;
  const at::Tensor positions = position_ids.t();
  return {at::embedding(cos_, positions).unsqueeze(2), at::embedding(sin_, positions).unsqueeze(2)};
}

at::Tensor apply_rotary(const at::Tensor& input, const RotaryTables& tables) {
  at::Tensor output;
  {
    BelowAutograd below;
    output = rotate(input, tables, 1);
  }
  if (needs_derivative({input}))
    attach(c10::make_intrusive<RotaryBackward>(tables), {input}, {output});
  return output;
}

}  // namespace trellis::trainer
