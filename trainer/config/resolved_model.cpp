#include "trainer/config/resolved_model.h"

#include <fmt/format.h>

#include "trainer/config/fields.h"
#include "trainer/config/names.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

void write_dist_ckpt(YamlWriter& out, DistCkptSection section) {
  if (section == DistCkptSection()) return;
  Fields fields = Fields::writing(out);
  dist_ckpt_fields(fields, section);
}

/// Arguments as their YAML: lists are stored as name_0 and name_1, words as numbers.
void write_arguments(YamlWriter& out, const std::map<std::string, double>& arguments,
                     const std::string& owner) {
  for (const auto& [name, value] : arguments) {
    const std::string stem = name.size() > 2 ? name.substr(0, name.size() - 2) : name;
    if (name.ends_with("_1") && arguments.contains(stem + "_0")) continue;
    if (name.ends_with("_0")) {
      out.raw(stem, fmt::format("[{}, {}]", value, arguments.at(stem + "_1")));
    } else if (const auto words = words_of(owner, name); !words.empty()) {
      out.text(name, words.at(static_cast<std::size_t>(value)));
    } else {
      out.number(name, value);
    }
  }
}

void write_sched(YamlWriter& out, const SchedSection& sched) {
  out.open("sched");
  out.text("name", sched.name);
  out.integer("warmup_steps", sched.warmup_steps);
  out.integer("constant_steps", sched.constant_steps);
  out.integer("hold_steps", sched.hold_steps);
  out.number("min_lr", sched.min_lr);
  write_arguments(out, sched.arguments, sched.name);
  out.close();
}

void write_optim(YamlWriter& out, const OptimSection& section) {
  const OptimizerInfo& info = *find_optimizer(section.name);
  out.open("optim");
  out.text("name", section.name);
  if (section.lr > 0) out.number("lr", section.lr);
  out.number("weight_decay", section.weight_decay);
  if (info.has_betas) out.raw("betas", fmt::format("[{}, {}]", section.beta1, section.beta2));
  if (info.has_eps) out.number("eps", section.eps);
  write_arguments(out, section.arguments, section.name);
  if (section.sched) write_sched(out, *section.sched);
  out.close();
}

void write_sizes(YamlWriter& out, const ModelSection& section) {
  out.integer("num_layers", section.num_layers);
  out.integer("hidden_size", section.hidden_size);
  out.integer("ffn_hidden_size", section.ffn_hidden_size);
  out.integer("num_attention_heads", section.num_attention_heads);
  out.integer("num_kv_heads", section.num_kv_heads);
  out.integer("kv_channels", section.head_dim);
  out.integer("encoder_seq_length", section.encoder_seq_length);
  out.integer("max_position_embeddings", section.max_position_embeddings);
  if (is_encoder(section)) out.text("model_type", section.architecture);
  if (section.type_vocab_size > 0) out.integer("type_vocab_size", section.type_vocab_size);
  if (section.image) {
    out.integer("image_size", section.image->size);
    out.integer("patch_size", section.image->patch);
    out.integer("num_channels", section.image->channels);
    out.integer("num_labels", section.image->labels);
  } else {
    out.integer("vocab_size", section.vocab_size);
    out.integer("make_vocab_size_divisible_by", section.make_vocab_size_divisible_by);
  }
  out.number("layernorm_epsilon", section.layernorm_epsilon);
  out.number("init_method_std", section.init_method_std);
  out.boolean("use_scaled_init_method", section.use_scaled_init_method);
  out.boolean("do_layer_norm_weight_decay", section.do_layer_norm_weight_decay);
  out.integer_or_null("sliding_window_size", section.sliding_window);
}

void write_structure(YamlWriter& out, const ModelSection& section) {
  out.text("normalization", name_of(section.normalization));
  out.text("activation", name_of(section.activation));
  out.text("transformer_block_type", name_of(section.transformer_block_type));
  out.text("position_embedding_type", name_of(section.position_embedding));
  out.boolean("has_bias", section.has_bias);
  out.boolean("share_embeddings_and_output_weights", section.share_embeddings_and_output_weights);
  out.number("hidden_dropout", section.hidden_dropout);
  out.number("attention_dropout", section.attention_dropout);
  out.number("ffn_dropout", section.ffn_dropout);
  out.boolean("apply_query_key_layer_scaling", section.apply_query_key_layer_scaling);
  out.boolean("fp32_residual_connection", section.fp32_residual_connection);
}

void write_positions(YamlWriter& out, const ModelSection& section, bool hf) {
  out.number(hf ? "rope_theta" : "position_freq_base", section.rope_theta);
  out.number("rotary_percentage", section.rotary_percentage);
  const RopeScaling& scaling = section.rope_scaling;
  if (scaling == RopeScaling{}) return;
  out.open("rope_scaling");
  out.text("rope_type", scaling.type);
  out.number("factor", scaling.factor);
  out.number("low_freq_factor", scaling.low_freq_factor);
  out.number("high_freq_factor", scaling.high_freq_factor);
  if (scaling.original_max_position_embeddings > 0)
    out.integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
  out.close();
}

void write_recompute(YamlWriter& out, const ModelSection& section) {
  const char* granularity = section.recompute == Recompute::kFull        ? "full"
                            : section.recompute == Recompute::kSelective ? "selective"
                                                                         : "null";
  out.raw("activations_checkpoint_granularity", granularity);
  out.texts("activations_checkpoint_recompute", section.recompute_modules);
}

void write_moe(YamlWriter& out, const MoeSection& moe) {
  out.open("moe");
  out.integer("num_experts", moe.num_experts);
  out.integer("top_k", moe.top_k);
  out.integer("frequency", moe.frequency);
  out.number_or_null("capacity_factor", moe.capacity_factor);
  out.boolean("dropless", moe.dropless);
  out.text("routing_algorithm", moe.routing_algorithm);
  out.text("router_activation", moe.router_activation);
  out.integer("sinkhorn_iterations", moe.sinkhorn_iterations);
  out.number_or_null("sinkhorn_tol", moe.sinkhorn_tol);
  out.boolean("output_router_logits", moe.output_router_logits);
  out.number("router_aux_loss_coef", moe.router_aux_loss_coef);
  out.boolean("normalize_top_k_affinities", moe.normalize_top_k_affinities);
  out.boolean("glu_mlp", moe.glu_mlp);
  if (moe.routing_algorithm == "group_limited") {
    out.integer("num_groups", moe.num_groups);
    out.integer("top_k_groups", moe.top_k_groups);
  }
  out.number("routed_scaling_factor", moe.routed_scaling_factor);
  out.integer("num_shared_experts", moe.num_shared_experts);
  out.number("jitter_eps", moe.jitter_eps);
  if (moe.dropless) out.integer("block_size", moe.block_size);
  out.close();
}

}  // namespace

void write_model(YamlWriter& out, const RunConfig& config, const YamlMap& source) {
  const ModelSection& section = config.model;
  out.open("model");
  write_sizes(out, section);
  write_structure(out, section);
  write_positions(out, section, config.model_source == "hf");
  if (section.qk_layernorm) {
    if (config.model_source == "hf") out.text("model_type", "qwen3");
    out.boolean("qk_layernorm", true);
  }
  if (!section.layernorm_bias) out.boolean("layernorm_bias", false);
  if (section.clip_qkv) out.number("clip_qkv", *section.clip_qkv);
  out.boolean("qkv_linear", section.qkv_linear);
  out.boolean("fuse_qkv", section.fuse_qkv);
  if (!section.fuse_gate_up) out.boolean("fuse_gate_up", false);
  out.open("fusions");
  out.boolean("flash_attention", section.flash_attention);
  out.boolean("ring_attention", section.ring_attention);
  out.keep(source.map("fusions"), "model.fusions");
  out.close();
  out.texts("pipeline_cuts", section.pipeline_cuts);
  write_recompute(out, section);
  out.boolean("weight_init_only", section.weight_init_only);
  write_dist_ckpt(out, section.dist_ckpt);
  if (section.skip_nan_grad) out.boolean("skip_nan_grad", true);
  if (config.precision.type == "autocast")
    out.text("torch_dtype", config.precision.weights_bf16 ? "bfloat16" : "float32");
  if (section.moe) write_moe(out, *section.moe);
  write_optim(out, section.optim);
  out.keep(source, "model");
  out.close();
}

}  // namespace trellis::trainer
