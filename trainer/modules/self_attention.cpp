#include "trainer/modules/self_attention.h"

#include <c10/util/StringUtil.h>

#include "base/check.h"
#include "base/error.h"

namespace trellis::trainer {
namespace {

using Outputs = std::vector<ColumnParallelLinear::Output>;

Outputs outputs_of(const ModelSection& config, QkvLayout layout, int tp, const std::string& path) {
  if (config.num_kv_heads % tp != 0) {
    throw ConfigError(c10::str(
        path, ": tensor_model_parallel_size must divide model.num_kv_heads: expected a divisor of ",
        config.num_kv_heads, ", got ", tp));
  }
  const std::int64_t query = config.num_attention_heads * head_dim(config),
                     kv = config.num_kv_heads * head_dim(config);
  if (layout == QkvLayout::kSeparate) return {{"q_proj", query}, {"k_proj", kv}, {"v_proj", kv}};
  if (query == kv) return {{"query_key_value", 3 * query}};
  return {{"query", query}, {"key_value", 2 * kv}};
}

AttentionShape gqa_shape(const ModelSection& config) {
  return {config.hidden_size, config.num_attention_heads, config.num_kv_heads, head_dim(config)};
}

QkvLinearOptions gqa_options(const ModuleContext& context, const ModelSection& config) {
  return {.init = config.init_method_std,
          .bias = has_qkv_bias(config),
          .gather_output = false,
          .kv_size_multiplier = context.parallel->get_kv_shared_group().size,
          .fuse_qkv = config.fuse_qkv};
}

std::variant<ColumnParallelLinear, GQAQKVColumnParallelLinear> make_projections(
    const ModuleContext& context, const std::string& path, const ModelSection& config,
    QkvLayout layout) {
  if (config.qkv_linear)
    return GQAQKVColumnParallelLinear(context, path + ".qkv_proj", gqa_shape(config),
                                      gqa_options(context, config));
  const ColumnParallelLinearOptions options{
      .init = config.init_method_std, .bias = has_qkv_bias(config), .gather_output = false};
  return ColumnParallelLinear(context, path, config.hidden_size,
                              outputs_of(config, layout, context.tp().size, path), options);
}

/// The rank's query heads among all of them.
ShardPlace query_heads(const Partition& columns, const ModelSection& config,
                       const ParallelGroup& tp) {
  ShardPlace place{1, config.num_attention_heads, {}};
  for (const RowRange& range : rows_of(columns.blocks[0], tp.rank, tp.size)) {
    place.rows.push_back({range.first / head_dim(config), range.count / head_dim(config)});
  }
  return place;
}

QkvProjection::Output clipped(const QkvProjection::Output& parts, std::optional<double> most) {
  if (!most) return parts;
  const auto clip = [&](const at::Tensor& heads) { return heads.clamp(-*most, *most); };
  return {clip(parts.query), clip(parts.key), clip(parts.value)};
}

/// `heads`: of the whole model.
void make_norm(HeadsNorm& norm, const ModuleContext& context, const std::string& path,
               const ModelSection& config, int heads) {
  if (config.qk_layernorm_across_heads) {
    TRELLIS_CHECK(!config.qkv_linear, "copies of heads would count more than once");
    norm.emplace<ShardedNorm>(context, path, config, heads * head_dim(config));
  } else if (config.qk_layernorm) {
    norm.emplace<HeadNorm>(context, path, config);
  }
}

at::Tensor normalized(const at::Tensor& heads, const HeadsNorm& norm) {
  if (const auto* of_each = std::get_if<HeadNorm>(&norm)) return of_each->forward(heads);
  const auto* across = std::get_if<ShardedNorm>(&norm);
  return across == nullptr ? heads
                           : across->forward(heads.flatten(-2)).unflatten(-1, {-1, heads.size(-1)});
}

at::Tensor rotate(const at::Tensor& heads, const RotaryTables& tables) {
  return tables.cos.defined() ? apply_rotary(heads, tables) : heads;
}

}  // namespace

QkvProjection::QkvProjection(const ModuleContext& context, const std::string& path,
                             const ModelSection& config, QkvLayout layout)
    : layout_(layout),
      head_dim_(head_dim(config)),
      projections_(make_projections(context, path, config, layout)) {
  const auto* replicating = std::get_if<GQAQKVColumnParallelLinear>(&projections_);
  if (config.lora && replicating == nullptr) {
    lora_.emplace(context, *config.lora, path, config.hidden_size,
                  outputs_of(config, layout, context.tp().size, path), "qkv_proj");
  } else if (config.lora && config.lora->targets_module(path + ".qkv_proj")) {
    gqa_lora_.emplace(context, *config.lora, path + ".qkv_proj", gqa_shape(config),
                      gqa_options(context, config));
  }
  query_columns_ = replicating != nullptr
                       ? replicating->query_columns()
                       : strided_partition(1, config.num_attention_heads * head_dim_, 1);
}

QkvProjection::Output QkvProjection::forward(const at::Tensor& input) const {
  if (const auto* replicating = std::get_if<GQAQKVColumnParallelLinear>(&projections_)) {
    Output output = replicating->forward(input);
    if (gqa_lora_) gqa_lora_->add_to(output, input);
    return output;
  }
  std::vector<at::Tensor> outputs = std::get<ColumnParallelLinear>(projections_).forward(input);
  if (lora_) lora_->add_to(outputs, input);
  // Megatron's weights hold the parts of one head side by side: [.., heads, parts · d].
  const auto heads = [&](std::size_t i, std::int64_t parts) {
    return outputs[i].unflatten(-1, {-1, parts * head_dim_});
  };
  if (layout_ == QkvLayout::kSeparate) return {heads(0, 1), heads(1, 1), heads(2, 1)};
  const std::vector<at::Tensor> parts =
      outputs.size() == 1 ? heads(0, 3).chunk(3, -1) : heads(1, 2).chunk(2, -1);
  return outputs.size() == 1 ? Output{parts[0], parts[1], parts[2]}
                             : Output{heads(0, 1), parts[0], parts[1]};
}

SelfAttention::SelfAttention(const ModuleContext& context, const std::string& path,
                             const ModelSection& config, const ModuleNames& names, int layer)
    : layer_(layer),
      qkv_(context, path, config, names.qkv),
      clip_(config.clip_qkv),
      core_(context, path, config, layer, query_heads(qkv_.query_columns(), config, context.tp())),
      dense_(context, path + "." + names.attention_output,
             config.num_attention_heads * head_dim(config), config.hidden_size,
             {.init = output_init_std(config),
              .bias = config.has_bias,
              .input_is_parallel = true,
              .partition = qkv_.query_columns()}),
      scope_(context.scope(path)) {
  make_norm(query_norm_, context, path + "." + names.query_norm, config,
            config.num_attention_heads);
  make_norm(key_norm_, context, path + "." + names.key_norm, config, config.num_kv_heads);
  const std::string dense = path + "." + names.attention_output;
  if (config.lora && config.lora->targets_module(dense, "o_proj"))
    dense_lora_.emplace(context, *config.lora, dense, config.num_attention_heads * head_dim(config),
                        config.hidden_size, qkv_.query_columns());
}

at::Tensor SelfAttention::forward(const at::Tensor& input, const SequenceContext& sequence) const {
  const Scope scope = scope_.enter();
  const auto [query, key, value] = clipped(qkv_.forward(input), clip_);
  const auto positioned = [&](const at::Tensor& heads, const HeadsNorm& norm) {
    return rotate(normalized(heads, norm), sequence.rotary);
  };
  KvCache::Keys keys{positioned(key, key_norm_), value};
  if (sequence.cache != nullptr) keys = sequence.cache->add(layer_, keys.key, keys.value);
  const bool is_cached = sequence.cache != nullptr && !sequence.cache->is_prompt();
  // The queries end with the call: a name would keep them on the device during the projection.
  const auto attend = [&](const at::Tensor& queries) {
    return is_cached
               ? core_.attend_from_cache(queries, keys.key, keys.value, sequence.allowed)
               : core_.forward(queries, keys.key, keys.value, sequence.allowed, sequence.ring);
  };
  const at::Tensor attended = attend(positioned(query, query_norm_));
  const at::Tensor output = dense_.forward(attended);
  return scope_.leave(dense_lora_ ? dense_lora_->add_to(output, attended) : output);
}

}  // namespace trellis::trainer
