#include "analysis/import/megatron_rules.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace trellis::analysis {
namespace {

using Argument = MegatronArgument;
using Arguments = MegatronArguments;

ImportedKey heads(const Argument& a, const Arguments& all) {
  if (a.name == "group-query-attention")
    return all.has("num-query-groups")
               ? by_default(a, "--num-query-groups says how many heads keys and values have")
               : mapped(a, {{"model.num_kv_heads", "1"}}, "--num-query-groups is 1 by default");
  if (!all.has("group-query-attention"))
    return by_default(a, "without --group-query-attention each head has its own keys and values");
  return mapped(a, {{"model.num_kv_heads", a.source.value}});
}

ImportedKey ffn_size(const Argument& a, const Arguments& all) {
  const bool experts = all.has("num-experts");
  if (a.name == "ffn-hidden-size" && experts && all.has("moe-ffn-hidden-size"))
    return by_default(a, "every layer has experts, whose size --moe-ffn-hidden-size is");
  if (a.name == "moe-ffn-hidden-size" && !experts)
    return by_default(a, "only a mixture of experts (--num-experts) reads it");
  return mapped(a, {{"model.ffn_hidden_size", a.source.value}});
}

ImportedKey vocabulary(const Argument& a, const Arguments& all) {
  const bool padded = all.has("padded-vocab-size");
  if (a.name == "padded-vocab-size")
    return mapped(
        a, {{"model.vocab_size", a.source.value}, {"model.make_vocab_size_divisible_by", "1"}},
        "it is padded already");
  if (padded) return by_default(a, "--padded-vocab-size decides");
  if (a.name == "vocab-size") return mapped(a, {{"model.vocab_size", a.source.value}});
  if (a.name == "make-vocab-size-divisible-by")
    return mapped(a, {{"model.make_vocab_size_divisible_by", a.source.value}});
  return mapped(a, {{"model.make_vocab_size_divisible_by", "1"}},
                "a multiple of tensor_model_parallel_size is the least");
}

ImportedKey positions(const Argument& a, const Arguments& all) {
  const std::string type = all.text("position-embedding-type");
  if (a.name == "no-position-embedding") {
    const bool rope = type == "rope" || all.has("use-rotary-position-embeddings");
    return rope ? by_default(a, "rotary positions have no embedding")
                : refused(a,
                          "a model without positions is not supported: use "
                          "--position-embedding-type rope");
  }
  if (all.has("use-rotary-position-embeddings"))
    return by_default(a, "--use-rotary-position-embeddings decides");
  if (type != "rope" && type != "learned_absolute")
    return refused(a, "expected rope or learned_absolute: other positions are not supported");
  return mapped(a, {{"model.position_embedding_type", type}});
}

/// Llama 3's, with the constants that Megatron-LM has no arguments for.
ImportedKey rope_scaling(const Argument& a, const Arguments& all) {
  if (a.name == "rope-scaling-factor" && !all.has("use-rope-scaling"))
    return by_default(a, "only --use-rope-scaling reads it");
  const auto factor = all.number("rope-scaling-factor").value_or(8);
  return mapped(a, {{"model.rope_scaling.rope_type", "llama3"},
                    {"model.rope_scaling.factor", fmt::format("{}", factor)},
                    {"model.rope_scaling.low_freq_factor", "1.0"},
                    {"model.rope_scaling.high_freq_factor", "4.0"},
                    {"model.rope_scaling.original_max_position_embeddings", "8192"}});
}

ImportedKey normalization(const Argument& a, const Arguments& all) {
  const std::string type = all.text("normalization");
  if (a.name == "apply-layernorm-1p")
    return type == "RMSNorm"
               ? by_default(a, "it changes how the weight of RMSNorm is kept, not what is computed")
               : mapped(a, {{"model.normalization", "layernorm1p"}});
  if (type == "RMSNorm") return mapped(a, {{"model.normalization", "rmsnorm"}});
  if (type != "LayerNorm") return refused(a, "expected LayerNorm or RMSNorm");
  if (all.has("apply-layernorm-1p")) return by_default(a, "--apply-layernorm-1p decides");
  return mapped(a, {{"model.normalization", "layernorm"}});
}

/// "LEFT,RIGHT" counts the tokens around a token; here a window counts the token too.
ImportedKey window(const Argument& a, const Arguments&) {
  const std::string& text = a.values.front();
  const std::size_t comma = text.find(',');
  std::string left = text.substr(0, comma);
  std::erase_if(left, [](char c) { return c < '0' || c > '9'; });
  const bool legal = comma != std::string::npos && !left.empty() && left.size() < 9 &&
                     text.find('-') == std::string::npos;
  if (!legal) return refused(a, "expected LEFT,0 with LEFT tokens in front of a token");
  return mapped(a, {{"model.sliding_window_size", fmt::format("{}", std::stol(left) + 1)}},
                "the token itself counts here");
}

/// The flags that say which kernel computes attention; context parallelism has its own.
ImportedKey attention(const Argument& a, const Arguments& all) {
  if (all.integer("context-parallel-size", 1) != 1)
    return by_default(a, "context parallelism has ring attention");
  const std::string backend = a.values.empty() ? "flash" : a.values.front();
  const bool whole = backend == "unfused" || backend == "local";
  if (!a.values.empty() && all.has("use-flash-attn"))
    return by_default(a, "--use-flash-attn decides");
  return mapped(a, {{"model.fusions.flash_attention", whole ? "false" : "true"}});
}

ImportedKey per_token_loss(const Argument& a, const Arguments& all) {
  if (all.has("eod-mask-loss"))
    return refused(a, "with --eod-mask-loss micro-batches weigh by their tokens: remove one");
  return by_default(a, "every token counts once: both averages are equal");
}

ImportedKey recompute(const Argument& a, const Arguments& all) {
  const bool granular = all.has("recompute-granularity");
  if (a.name == "moe-layer-recompute")
    return refused(a,
                   "use --recompute-granularity: layers of experts have no module of their kind");
  if (a.name != "recompute-granularity") {
    if (granular) return by_default(a, "--recompute-granularity decides");
    const bool whole = a.name == "checkpoint-activations";
    return mapped(a, {{"model.activations_checkpoint_granularity", whole ? "full" : "selective"}});
  }
  return mapped(a, {{"model.activations_checkpoint_granularity", a.source.value}});
}

ImportedKey recompute_modules(const Argument& a, const Arguments& all) {
  const bool selective = all.text("recompute-granularity") == "selective" ||
                         (!all.has("recompute-granularity") && all.has("recompute-activations"));
  if (!selective) return by_default(a, "only --recompute-granularity selective reads it");
  static const std::map<std::string, std::string> kNames = {
      {"core_attn", "CoreAttention"}, {"layernorm", "LlamaRMSNorm"}, {"mlp", "LlamaMLP"}};
  std::string list;
  for (const std::string& module : a.values) {
    const auto name = kNames.find(module);
    if (name == kNames.end())
      return refused(a, fmt::format("{} cannot be recomputed alone: choose names of "
                                    "model.activations_checkpoint_recompute",
                                    module));
    list += (list.empty() ? "" : ", ") + name->second;
  }
  return mapped(a, {{"model.activations_checkpoint_recompute", "[" + list + "]"}});
}

ImportedKey experts(const Argument& a, const Arguments& all) {
  if (a.name == "num-experts")
    return all.has("swiglu") ? mapped(a, {{"model.moe.num_experts", a.source.value}})
                             : refused(a, "experts are gated: add --swiglu");
  if (a.name == "moe-layer-freq")
    return a.values.front() == "1"
               ? mapped(a, {{"model.moe.frequency", "1"}})
               : refused(a,
                         "of dense layers and layers of experts, only one kind: expected 1; "
                         "model.moe.frequency n makes the last of n layers one of experts");
  if (a.name == "moe-router-score-function")
    return a.values.front() == "softmax" ? by_default(a, "affinities are a softmax")
                                         : refused(a, "expected softmax");
  if (a.name == "moe-expert-capacity-factor")
    return mapped(a,
                  {{"model.moe.dropless", "false"}, {"model.moe.capacity_factor", a.source.value}});
  const auto size = all.integer(a.name);
  const auto one = all.has("moe-ffn-hidden-size") ? all.integer("moe-ffn-hidden-size")
                                                  : all.integer("ffn-hidden-size");
  if (!size || !one || *one <= 0 || *size % *one != 0)
    return refused(a,
                   "shared experts have the size of the others: expected a multiple of "
                   "--moe-ffn-hidden-size; see model.moe.num_shared_experts");
  return mapped(a, {{"model.moe.num_shared_experts", fmt::format("{}", *size / *one)}},
                "it is the size of all of them together");
}

ImportedKey balancing(const Argument& a, const Arguments& all) {
  const std::string type = all.has("moe-router-load-balancing-type")
                               ? all.text("moe-router-load-balancing-type")
                               : "aux_loss";
  if (a.values.size() != 1) return refused(a, "expected one kind of load balancing: aux_loss");
  if (a.name == "moe-aux-loss-coeff") {
    if (type != "aux_loss") return by_default(a, "only the load balancing aux_loss reads it");
    return mapped(a,
                  {{"model.moe.output_router_logits", "true"},
                   {"model.moe.router_aux_loss_coef", a.source.value}},
                  kAuxiliaryLossNote);
  }
  if (type == "none") return by_default(a, "no loss balances the experts");
  if (type == "aux_loss") return mapped(a, {{"model.moe.routing_algorithm", "top_k"}});
  if (type != "sinkhorn") return refused(a, "expected aux_loss, sinkhorn or none");
  const bool one = all.integer("moe-router-topk", 2) == 1;
  return mapped(a, {{"model.moe.routing_algorithm", "sinkhorn"},
                    {"model.moe.router_activation", one ? "sigmoid" : "softmax"}});
}

ImportedKey expert_tensors(const Argument& a, const Arguments& all) {
  return all.integer("tensor-model-parallel-size", 1) == all.integer(a.name)
             ? by_default(a, "experts are cut as the other layers are")
             : refused(a,
                       "experts are cut as the other layers are: expected the value of "
                       "--tensor-model-parallel-size");
}

ImportedKey swiglu(const Argument& a, const Arguments&) {
  return mapped(a, {{"model.activation", "swiglu"}});
}

ImportedKey context_parallel(const Argument& a, const Arguments& all) {
  if (a.name == "cp-comm-type") {
    const bool ring = std::ranges::all_of(a.values, [](const auto& v) { return v == "p2p"; });
    return ring ? by_default(a, "keys and values go around a ring")
                : refused(a, "expected p2p: keys and values go around a ring");
  }
  const std::string size = a.source.value;
  if (all.integer(a.name) == 1)
    return mapped(a, {{"distributed_strategy.context_parallel_size", size}});
  return mapped(a, {{"distributed_strategy.context_parallel_size", size},
                    {"distributed_strategy.context_parallel_order", "balanced"},
                    {"model.fusions.ring_attention", "true"},
                    {"model.fusions.flash_attention", "false"}});
}

ImportedKey virtual_stages(const Argument& a, const Arguments& all) {
  const std::string key = "distributed_strategy.virtual_pipeline_model_parallel_size";
  if (a.name == "num-virtual-stages-per-pipeline-rank") return mapped(a, {{key, a.source.value}});
  const auto layers = all.integer("num-layers");
  const auto stages = all.integer("pipeline-model-parallel-size", 1);
  const auto each = all.integer(a.name);
  const bool known = layers && stages && each && *layers > 0 && *stages > 0 && *each > 0;
  if (!known || *layers % *stages != 0 || *layers / *stages % *each != 0)
    return refused(a, "expected a divisor of --num-layers / --pipeline-model-parallel-size");
  return mapped(a, {{key, fmt::format("{}", *layers / *stages / *each)}},
                fmt::format("{} layers / {} stages / {}", *layers, *stages, *each));
}

MegatronRule model_rule(std::string_view name) {
  static const std::map<std::string, MegatronRule, std::less<>> kRules = {
      {"group-query-attention", heads},
      {"num-query-groups", heads},
      {"ffn-hidden-size", ffn_size},
      {"moe-ffn-hidden-size", ffn_size},
      {"vocab-size", vocabulary},
      {"padded-vocab-size", vocabulary},
      {"make-vocab-size-divisible-by", vocabulary},
      {"no-pad-vocab-size", vocabulary},
      {"disable-pad-vocab-size", vocabulary},
      {"position-embedding-type", positions},
      {"no-position-embedding", positions},
      {"use-rope-scaling", rope_scaling},
      {"rope-scaling-factor", rope_scaling},
      {"normalization", normalization},
      {"apply-layernorm-1p", normalization},
      {"window-size", window},
      {"attention-backend", attention},
      {"use-flash-attn", attention},
      {"swiglu", swiglu},
      {"calculate-per-token-loss", per_token_loss},
      {"recompute-granularity", recompute},
      {"recompute-activations", recompute},
      {"checkpoint-activations", recompute},
      {"moe-layer-recompute", recompute},
      {"recompute-modules", recompute_modules},
      {"num-experts", experts},
      {"moe-layer-freq", experts},
      {"moe-router-score-function", experts},
      {"moe-expert-capacity-factor", experts},
      {"moe-shared-expert-intermediate-size", experts},
      {"moe-router-load-balancing-type", balancing},
      {"moe-aux-loss-coeff", balancing},
      {"expert-tensor-parallel-size", expert_tensors},
      {"context-parallel-size", context_parallel},
      {"cp-comm-type", context_parallel},
      {"num-layers-per-virtual-pipeline-stage", virtual_stages},
      {"num-virtual-stages-per-pipeline-rank", virtual_stages},
  };
  const auto found = kRules.find(name);
  return found == kRules.end() ? nullptr : found->second;
}

}  // namespace

ImportedKey ignored(const MegatronArgument& argument, std::string note) {
  return ignored(argument.source, std::move(note));
}

ImportedKey refused(const MegatronArgument& argument, std::string note) {
  return unsupported(argument.source, std::move(note));
}

ImportedKey by_default(const MegatronArgument& argument, std::string note) {
  return at_default(argument.source, std::move(note));
}

ImportedKey mapped(const MegatronArgument& argument, std::vector<Setting> settings,
                   std::string note) {
  return mapped(argument.source, std::move(settings), std::move(note));
}

ImportedKey apply_megatron_rule(const MegatronArgument& argument, const MegatronArguments& all) {
  const bool of_experts =
      argument.name.starts_with("moe-") && argument.name != "moe-layer-recompute";
  if (of_experts && !all.has("num-experts"))
    return by_default(argument, "only a mixture of experts (--num-experts) reads it");
  MegatronRule rule = model_rule(argument.name);
  if (rule == nullptr) rule = megatron_run_rule(argument.name);
  if (rule == nullptr) return refused(argument, "this version has no rule for it");
  return rule(argument, all);
}

}  // namespace trellis::analysis
