#include "trainer/modules/core_attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "trainer/modules/recompute.h"
#include "trainer/parallel_layers/fused_attention.h"

namespace trellis::trainer {
namespace {

/// [s, b, n, d] → [b, n, s, d]
at::Tensor heads_first(const at::Tensor& input) { return input.permute({1, 2, 0, 3}); }

/// [s, b, n_kv, d] → [b, n, s, d]: each head serves n / n_kv query heads.
at::Tensor expand_kv_heads(const at::Tensor& input, std::int64_t num_heads) {
  const at::Tensor heads = heads_first(input);
  const std::int64_t copies = num_heads / heads.size(1);
  if (copies == 1) return heads;
  return heads.unsqueeze(2).expand({-1, -1, copies, -1, -1}).flatten(1, 2);
}

bool is_fused(const ModelSection& config) {
  return (config.flash_attention || config.ring_attention) && config.attention_dropout == 0;
}

}  // namespace

AttentionMask::AttentionMask(const ModuleContext& context, const ModelSection& config)
    : positions_(at::empty({config.encoder_seq_length},
                           at::TensorOptions().dtype(at::kLong).device(context.device))) {
  if (is_fused(config)) added_ = context.dtype;
  const std::optional<int> window = config.sliding_window;
  if (!context.shape_only) positions_.copy_(at::arange(positions_.size(0), at::kLong));
  if (window && *window < positions_.size(0)) window_ = window;
  // On the device meta a model has parameters alone, which no pass reads.
  if (!window_ || context.device.is_meta()) return;
  table_ = causal_table();
  window_only_ = as_attention_takes_it(table_);
}

/// LibTorch would make the summand in every layer, and each layer would keep its own for the
/// backward pass.
at::Tensor AttentionMask::as_attention_takes_it(const at::Tensor& table) const {
  if (!added_) return table;
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  return at::zeros(table.sizes(), table.options().dtype(*added_))
      .masked_fill_(table.logical_not(), kNever);
}

at::Tensor AttentionMask::causal_table() const {
  return within_reach(positions_.unsqueeze(1) - positions_.unsqueeze(0));
}

/// `distance`: from a query back to a key.
at::Tensor AttentionMask::within_reach(const at::Tensor& distance) const {
  const at::Tensor causal = distance.ge(0);
  return window_ ? causal.logical_and(distance.lt(*window_)) : causal;
}

at::Tensor AttentionMask::of_cached_keys(const at::Tensor& positions, std::int64_t keys,
                                         bool prompt) const {
  if (prompt && !window_) return {};
  const at::Tensor distance = positions.unsqueeze(-1) - positions_.narrow(0, 0, keys);
  const at::Tensor table = within_reach(distance).unsqueeze(1);
  return prompt ? as_attention_takes_it(table) : table;
}

at::Tensor AttentionMask::allowed(const at::Tensor& attention_mask) const {
  if (!attention_mask.defined()) return window_only_;
  const at::Tensor same_document = attention_mask.unsqueeze(2).eq(attention_mask.unsqueeze(1));
  return as_attention_takes_it(
      same_document.logical_and(table_.defined() ? table_ : causal_table()).unsqueeze(1));
}

RingMasks::RingMasks(const ModuleContext& context, std::int64_t sequence_length,
                     std::optional<int> window, std::shared_ptr<const Ring> ring)
    : sequence_(context.sequence(sequence_length)),
      window_(window),
      ring_(std::move(ring)),
      dtype_(context.dtype),
      positions_(at::empty({sequence_length},
                           at::TensorOptions().dtype(at::kLong).device(context.device))) {
  if (!context.shape_only) positions_.copy_(at::arange(sequence_length, at::kLong));
  if (context.device.is_meta()) return;
  for (const RingStep& step : ring_->plan.steps)
    of_windows_.push_back(step.windowed ? mask_of(step, {}) : at::Tensor());
}

RingContext RingMasks::of(const at::Tensor& attention_mask) const {
  if (!attention_mask.defined()) return {ring_, of_windows_};
  RingContext context{ring_, {}};
  for (const RingStep& step : ring_->plan.steps)
    context.masks.push_back(mask_of(step, attention_mask));
  return context;
}

at::Tensor RingMasks::mask_of(const RingStep& step, const at::Tensor& attention_mask) const {
  const auto queries = [&](const at::Tensor& whole) {
    const std::int64_t dim = whole.dim() - 1;
    return sequence_.take(whole, dim)
        .narrow(dim, step.queries.first, step.queries.count)
        .unsqueeze(-1);
  };
  const auto keys = [&](const at::Tensor& whole) {
    const std::int64_t dim = whole.dim() - 1;
    return sequence_.take(whole, dim, step.owner)
        .narrow(dim, step.keys.first, step.keys.count)
        .unsqueeze(-2);
  };
  const at::Tensor distance = queries(positions_) - keys(positions_);
  at::Tensor allowed = distance.ge(0);
  if (step.windowed) allowed = allowed.logical_and(distance.lt(*window_));
  if (attention_mask.defined())
    allowed = queries(attention_mask).eq(keys(attention_mask)).logical_and(allowed).unsqueeze(1);
  constexpr double kHidden = -1e30;  // no infinity: a row may have no key in this block
  return at::zeros(allowed.sizes(), positions_.options().dtype(dtype_))
      .masked_fill(allowed.logical_not(), kHidden);
}

CoreAttention::CoreAttention(const ModuleContext& context, const std::string& path,
                             const ModelSection& config, int layer, ShardPlace query_heads)
    : explicit_(!is_fused(config)),
      causal_(!is_encoder(config)),
      wide_dtype_(context.wide_dtype),
      layer_scaling_(config.apply_query_key_layer_scaling ? layer + 1 : 1),
      dropout_(context, path + ".attention_dropout", config.attention_dropout),
      query_heads_(std::move(query_heads)),
      recompute_(RecomputePlan::of(config).core_attention),
      position_(context.position) {}

at::Tensor CoreAttention::forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& allowed,
                                  const RingContext& ring) const {
  return maybe_checkpoint(
      recompute_, position_, {query, key, value},
      [this, allowed, ring](const std::vector<at::Tensor>& qkv) {
        if (!ring.ring) return attend(qkv[0], qkv[1], qkv[2], allowed);
        return ring_attention(qkv[0], qkv[1], qkv[2], ring.masks, ring.ring).flatten(2);
      });
}

at::Tensor CoreAttention::attend(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& allowed) const {
  const std::int64_t num_heads = query.size(2);
  const at::Tensor q = heads_first(query), k = expand_kv_heads(key, num_heads),
                   v = expand_kv_heads(value, num_heads);
  const at::Tensor context =
      explicit_ ? explicit_attention(q, k, v, allowed) : fused(q, k, v, allowed);
  return context.permute({2, 0, 1, 3}).flatten(2);
}

at::Tensor CoreAttention::fused(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const at::Tensor& allowed) const {
  if (!allowed.defined())
    return at::scaled_dot_product_attention(query, key, value, std::nullopt, /*dropout_p=*/0.0,
                                            causal_);
  if (!causal_ || !has_fused_attention(value.device()))
    return at::scaled_dot_product_attention(query, key, value, allowed);
  // Under autocast rotated queries and keys are wider than values.
  const at::ScalarType dtype = value.scalar_type();
  return std::get<0>(
      fused_attention({query.to(dtype), key.to(dtype), value, allowed.to(dtype), causal_}));
}

at::Tensor CoreAttention::attend_from_cache(const at::Tensor& query, const at::Tensor& key,
                                            const at::Tensor& value,
                                            const at::Tensor& allowed) const {
  const std::int64_t kv_heads = key.size(2), copies = query.size(2) / kv_heads;
  // [1, b, n, d] → [b, n_kv, copies, d]: a head's queries read its keys once, from where they are.
  const at::Tensor grouped = query.squeeze(0).unflatten(1, {kv_heads, copies});
  return explicit_attention(grouped, heads_first(key), heads_first(value), allowed)
      .flatten(1)
      .unsqueeze(0);
}

at::Tensor CoreAttention::explicit_attention(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value,
                                             const at::Tensor& allowed) const {
  const double scale = 1 / (std::sqrt(static_cast<double>(query.size(-1))) * layer_scaling_);
  const at::ScalarType dtype =
      wide_dtype_.value_or(query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor scores = at::matmul(query * scale, key.transpose(2, 3)).to(dtype);
  if (layer_scaling_ != 1) scores = scores * layer_scaling_;
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  if (allowed.defined()) {
    scores = scores.masked_fill(allowed.logical_not(), kNever);
  } else if (causal_) {  // made here, so that whoever compiles this sees that half of the scores do
                         // not count
    scores = scores.masked_fill(
        at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).triu_(1), kNever);
  }
  const at::Tensor probabilities = dropout_.forward(scores.softmax(-1), query_heads_);
  return at::matmul(probabilities.to(query.scalar_type()), value);
}

}  // namespace trellis::trainer
