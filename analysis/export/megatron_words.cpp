#include "analysis/export/megatron_words.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/key_words.h"

namespace trellis::analysis {
namespace {

using Settings = ResolvedSettings;
using Values = MegatronValues;

const Values kFlag = std::vector<std::string>{};

Values one(const std::string& value) {
  return value.empty() ? Values() : Values(std::vector<std::string>{value});
}
Values one(std::int64_t value) { return one(fmt::format("{}", value)); }
Values flag(bool on) { return on ? kFlag : std::nullopt; }
Values key(const Settings& s, std::string_view name) { return one(s.text(name)); }

bool mixture(const Settings& s) { return s.integer("model.moe.num_experts").value_or(0) > 0; }
bool grouped(const Settings& s) {
  return s.integer("model.num_kv_heads") != s.integer("model.num_attention_heads");
}
bool megatron_data(const Settings& s) {
  return s.config().data.kind == trainer::DataKind::kMegatron;
}
bool validates(const Settings& s) {
  return s.integer("trainer.val_check_interval") &&
         s.is("trainer.check_val_every_n_epoch", "null") &&
         s.integer("trainer.limit_val_batches").value_or(0) > 0;
}

// The model.

Values group_query(const Settings& s) { return flag(grouped(s)); }
Values query_groups(const Settings& s) {
  return grouped(s) ? key(s, "model.num_kv_heads") : std::nullopt;
}
Values ffn_size(const Settings& s) {
  return mixture(s) ? std::nullopt : key(s, "model.ffn_hidden_size");
}
Values expert_size(const Settings& s) {
  return mixture(s) ? key(s, "model.ffn_hidden_size") : std::nullopt;
}
/// Not padded, where the file says so: Megatron-LM pads by the same rule.
Values vocabulary(const Settings& s) {
  const std::string given = s.as_given("model.vocab_size");
  return given.empty() ? key(s, "model.vocab_size") : one(given);
}
Values divisible(const Settings& s) { return key(s, "model.make_vocab_size_divisible_by"); }
Values positions(const Settings& s) { return key(s, "model.position_embedding_type"); }
Values normalization(const Settings& s) {
  return one(s.is("model.normalization", "rmsnorm") ? "RMSNorm" : "LayerNorm");
}
Values layernorm_1p(const Settings& s) { return flag(s.is("model.normalization", "layernorm1p")); }
Values window(const Settings& s) {
  const auto size = s.integer("model.sliding_window_size");
  return size ? one(fmt::format("{},0", *size - 1)) : std::nullopt;
}
bool scales_as_llama3(const Settings& s) { return s.is("model.rope_scaling.rope_type", "llama3"); }
Values rope_scaling(const Settings& s) { return flag(scales_as_llama3(s)); }
Values rope_factor(const Settings& s) {
  return scales_as_llama3(s) ? key(s, "model.rope_scaling.factor") : std::nullopt;
}
Values attention(const Settings& s) {
  if (s.config().cp() > 1) return std::nullopt;
  return one(s.is("model.fusions.flash_attention", "true") ? "flash" : "unfused");
}
Values swiglu(const Settings& s) { return flag(s.is("model.activation", "swiglu")); }

Values granularity(const Settings& s) { return key(s, "model.activations_checkpoint_granularity"); }
Values recompute_modules(const Settings& s) {
  static const std::map<std::string, std::string> kNames = {
      {"CoreAttention", "core_attn"}, {"LlamaRMSNorm", "layernorm"}, {"LlamaMLP", "mlp"}};
  if (!s.is("model.activations_checkpoint_granularity", "selective")) return std::nullopt;
  std::vector<std::string> modules;
  for (const std::string& module : s.list("model.activations_checkpoint_recompute")) {
    const auto name = kNames.find(module);
    if (name == kNames.end()) return std::nullopt;
    modules.push_back(name->second);
  }
  return modules.empty() ? Values() : Values(modules);
}

// Experts.

Values experts(const Settings& s) {
  return mixture(s) ? key(s, "model.moe.num_experts") : std::nullopt;
}
Values shared_experts(const Settings& s) {
  const auto shared = s.integer("model.moe.num_shared_experts").value_or(0);
  const auto size = s.integer("model.ffn_hidden_size");
  return mixture(s) && shared > 0 && size ? one(shared * *size) : std::nullopt;
}
Values capacity(const Settings& s) {
  return mixture(s) && s.is("model.moe.dropless", "false") ? key(s, "model.moe.capacity_factor")
                                                           : std::nullopt;
}
Values balancing(const Settings& s) {
  if (!mixture(s)) return std::nullopt;
  if (s.is("model.moe.routing_algorithm", "sinkhorn")) return one("sinkhorn");
  return one(s.is("model.moe.output_router_logits", "true") ? "aux_loss" : "none");
}
Values auxiliary_loss(const Settings& s) {
  const bool counts = mixture(s) && s.is("model.moe.routing_algorithm", "top_k") &&
                      s.is("model.moe.output_router_logits", "true");
  return counts ? key(s, "model.moe.router_aux_loss_coef") : std::nullopt;
}

// The layout and the launch.

Values context(const Settings& s) { return key(s, "distributed_strategy.context_parallel_size"); }
Values context_ring(const Settings& s) { return s.config().cp() > 1 ? one("p2p") : std::nullopt; }
Values virtual_stages(const Settings& s) {
  return s.config().vpp() > 1 ? one(s.config().vpp()) : std::nullopt;
}
Values devices(const Settings& s) { return one(s.config().trainer.devices); }
Values nodes(const Settings& s) { return one(s.config().trainer.num_nodes); }

// The run.

Values time_limit(const Settings& s) {
  const auto seconds = s.config().trainer.max_time_s;
  return seconds && *seconds >= 60 ? one(static_cast<std::int64_t>(*seconds / 60)) : std::nullopt;
}
Values clipping(const Settings& s) {
  const std::string norm = s.text("trainer.gradient_clip_val");
  return one(norm.empty() ? "0.0" : norm);
}
Values validation_interval(const Settings& s) {
  return validates(s) ? key(s, "trainer.val_check_interval") : std::nullopt;
}
Values validation_steps(const Settings& s) {
  return validates(s) ? key(s, "trainer.limit_val_batches") : one("0");
}
Values bf16(const Settings& s) { return flag(!s.is("precision.type", "fp32|fp64")); }
/// Megatron-LM needs places that have defaults here.
std::string log_folder(const Settings& s) {
  const std::string given = s.text("exp_manager.explicit_log_dir");
  return !given.empty() ? given : s.text("exp_manager.exp_dir") + "/" + s.text("exp_manager.name");
}
Values tensorboard(const Settings& s) {
  return s.is("exp_manager.create_tensorboard_logger", "true") ? one(log_folder(s)) : std::nullopt;
}
std::string save_folder(const Settings& s) {
  if (!s.is("exp_manager.create_checkpoint_callback", "true")) return "";
  const std::string given = s.text("exp_manager.checkpoint_callback_params.dirpath");
  return given.empty() ? log_folder(s) + "/checkpoints" : given;
}
Values save(const Settings& s) { return one(save_folder(s)); }
Values load(const Settings& s) {
  const std::string named = s.text("exp_manager.resume_from_checkpoint");
  if (!named.empty()) return one(named);
  return s.is("exp_manager.resume_if_exists", "true") ? one(save_folder(s)) : std::nullopt;
}
Values finetune(const Settings& s) {
  return flag(!s.text("exp_manager.resume_from_checkpoint").empty() &&
              s.is("model.weight_init_only", "true"));
}

// The optimizer.

bool is_sgd(const Settings& s) { return s.is("model.optim.name", "sgd"); }
Values optimizer(const Settings& s) { return one(is_sgd(s) ? "sgd" : "adam"); }
Values beta(const Settings& s, std::size_t which) {
  const std::vector<std::string> betas = s.list("model.optim.betas");
  return is_sgd(s) || betas.size() != 2 ? std::nullopt : one(betas[which]);
}
Values beta1(const Settings& s) { return beta(s, 0); }
Values beta2(const Settings& s) { return beta(s, 1); }
Values epsilon(const Settings& s) { return is_sgd(s) ? std::nullopt : key(s, "model.optim.eps"); }
Values momentum(const Settings& s) {
  return is_sgd(s) ? key(s, "model.optim.momentum") : std::nullopt;
}

struct Schedule {
  std::string_view here, style, wsd;
};
constexpr std::array<Schedule, 7> kSchedules = {{
    {"CosineAnnealing", "cosine", ""},
    {"WarmupAnnealing", "linear", ""},
    {"LinearAnnealingWithWarmUp", "linear", ""},
    {"WarmupPolicy", "constant", ""},
    {"NoamHoldAnnealing", "inverse-square-root", ""},
    {"WarmupHoldAnnealLinear", "WSD", "linear"},
    {"WarmupHoldAnnealOneMinusSquareRoot", "WSD", "minus_sqrt"},
}};
/// Null: Megatron-LM has none like it.
const Schedule* schedule(const Settings& s) {
  const auto found =
      std::ranges::find(kSchedules, s.text("model.optim.sched.name"), &Schedule::here);
  return found == kSchedules.end() ? nullptr : &*found;
}
/// A run without a schedule has a constant rate.
Values decay_style(const Settings& s) {
  if (s.text("model.optim.sched.name").empty()) return one("constant");
  const Schedule* found = schedule(s);
  return found == nullptr ? std::nullopt : one(std::string(found->style));
}
Values wsd_style(const Settings& s) {
  const Schedule* found = schedule(s);
  return found == nullptr ? std::nullopt : one(std::string(found->wsd));
}
Values warmup(const Settings& s) { return key(s, "model.optim.sched.warmup_steps"); }
std::int64_t schedule_steps(const Settings& s) {
  return s.integer("model.optim.sched.max_steps")
      .value_or(s.integer("trainer.max_steps").value_or(-1));
}
/// Steps at the end of a cosine have the least rate.
Values decay_steps(const Settings& s) {
  const auto last = s.integer("model.optim.sched.constant_steps").value_or(0);
  const auto all = schedule_steps(s);
  const bool ends =
      schedule(s) != nullptr && schedule(s)->style == "cosine" && last > 0 && last < all;
  const auto warm = s.integer("model.optim.sched.warmup_steps").value_or(0);
  if (ends) return one(std::max(all - last, warm + 1));  // it has to last longer
  return all == s.integer("trainer.max_steps").value_or(-1) ? std::nullopt : one(all);
}
Values wsd_steps(const Settings& s) {
  const bool wsd = schedule(s) != nullptr && schedule(s)->style == "WSD";
  const auto all = schedule_steps(s);
  const auto falls = all - s.integer("model.optim.sched.warmup_steps").value_or(0) -
                     s.integer("model.optim.sched.hold_steps").value_or(0);
  return wsd && all > 0 && falls > 0 ? one(falls) : std::nullopt;
}

// The data.

/// A weight alone says nothing.
Values prefixes(const Settings& s, std::string_view name) {
  if (!megatron_data(s)) return std::nullopt;
  const std::vector<std::string> words = s.list(name);
  if (words.size() == 2) return one(words[1]);
  return words.empty() ? Values() : Values(words);
}
Values data_path(const Settings& s) { return prefixes(s, "data.data_prefix"); }
Values train_path(const Settings& s) { return prefixes(s, "data.data_prefix.train"); }
Values valid_path(const Settings& s) { return prefixes(s, "data.data_prefix.validation"); }
Values test_path(const Settings& s) { return prefixes(s, "data.data_prefix.test"); }
Values split(const Settings& s) {
  return data_path(s) ? key(s, "data.splits_string") : std::nullopt;
}
Values loader(const Settings& s) { return key(s, "data.dataloader_type"); }
std::string library(const Settings& s) { return s.text("data.tokenizer.library"); }
/// Another type of NxDT's library megatron is a folder that transformers opens.
bool is_hugging_face(const Settings& s) {
  const std::string type = s.text("data.tokenizer.type");
  return library(s) == "huggingface" || (library(s) == "megatron" && type != "GPT2BPETokenizer" &&
                                         type != "GPTSentencePieceTokenizer");
}
Values tokenizer(const Settings& s) {
  if (is_hugging_face(s)) return one("HuggingFaceTokenizer");
  if (library(s) == "megatron") return key(s, "data.tokenizer.type");
  if (library(s) == "sentencepiece") return one("SentencePieceTokenizer");
  return one(library(s) == "tiktoken" ? "TikTokenizer" : "NullTokenizer");
}
Values tokenizer_model(const Settings& s) {
  return key(s, is_hugging_face(s) ? "data.tokenizer.type" : "data.tokenizer.model");
}
Values vocab_file(const Settings& s) { return key(s, "data.tokenizer.vocab_file"); }
Values merge_file(const Settings& s) { return key(s, "data.tokenizer.merge_file"); }

using Words = std::map<std::string_view, MegatronWord>;

void add_model(Words& words) {
  words.insert({
      {"group-query-attention", {group_query, ""}},
      {"num-query-groups", {query_groups, "model.num_kv_heads"}},
      {"ffn-hidden-size", {ffn_size, "model.ffn_hidden_size"}},
      {"moe-ffn-hidden-size", {expert_size, ""}},
      {"vocab-size", {vocabulary, "model.vocab_size"}},
      {"padded-vocab-size", {nullptr, ""}},
      {"make-vocab-size-divisible-by", {divisible, "model.make_vocab_size_divisible_by"}},
      {"no-pad-vocab-size", {nullptr, ""}},
      {"disable-pad-vocab-size", {nullptr, ""}},
      {"position-embedding-type", {positions, "model.position_embedding_type"}},
      {"no-position-embedding", {nullptr, ""}},
      {"normalization", {normalization, "model.normalization"}},
      {"apply-layernorm-1p", {layernorm_1p, ""}},
      {"window-size", {window, "model.sliding_window_size"}},
      {"use-rope-scaling", {rope_scaling, "model.rope_scaling.rope_type"}},
      {"rope-scaling-factor",
       {rope_factor,
        "model.rope_scaling.factor model.rope_scaling.low_freq_factor "
        "model.rope_scaling.high_freq_factor "
        "model.rope_scaling.original_max_position_embeddings"}},
      {"attention-backend", {attention, "model.fusions.flash_attention"}},
      {"use-flash-attn", {nullptr, ""}},
      {"swiglu", {swiglu, "model.activation"}},
      {"calculate-per-token-loss", {nullptr, ""}},
      {"recompute-granularity", {granularity, "model.activations_checkpoint_granularity"}},
      {"recompute-activations", {nullptr, ""}},
      {"checkpoint-activations", {nullptr, ""}},
      {"moe-layer-recompute", {nullptr, ""}},
      {"recompute-modules", {recompute_modules, "model.activations_checkpoint_recompute"}},
      {"num-experts", {experts, "model.moe.num_experts"}},
      {"moe-layer-freq", {nullptr, "model.moe.frequency"}},
      {"moe-shared-expert-intermediate-size", {shared_experts, "model.moe.num_shared_experts"}},
      {"moe-expert-capacity-factor", {capacity, "model.moe.capacity_factor model.moe.dropless"}},
      {"moe-router-score-function", {nullptr, ""}},
      {"moe-router-load-balancing-type", {balancing, "model.moe.routing_algorithm"}},
      {"moe-aux-loss-coeff",
       {auxiliary_loss, "model.moe.router_aux_loss_coef model.moe.output_router_logits"}},
  });
}

void add_run(Words& words) {
  words.insert({
      {"expert-tensor-parallel-size", {nullptr, ""}},
      {"context-parallel-size",
       {context,
        "distributed_strategy.context_parallel_size distributed_strategy.context_parallel_order "
        "model.fusions.ring_attention"}},
      {"cp-comm-type", {context_ring, ""}},
      {"num-layers-per-virtual-pipeline-stage", {nullptr, ""}},
      {"num-virtual-stages-per-pipeline-rank",
       {virtual_stages, "distributed_strategy.virtual_pipeline_model_parallel_size"}},
      {"train-samples", {nullptr, ""}},
      {"exit-duration-in-mins", {time_limit, "trainer.max_time"}},
      {"clip-grad", {clipping, "trainer.gradient_clip_val"}},
      {"eval-interval", {validation_interval, "trainer.val_check_interval"}},
      {"eval-iters", {validation_steps, "trainer.limit_val_batches trainer.limit_test_batches"}},
      {"bf16", {bf16, "precision.type"}},
      {"fp16", {nullptr, ""}},
      {"tensorboard-dir",
       {tensorboard, "exp_manager.create_tensorboard_logger exp_manager.explicit_log_dir"}},
      {"save",
       {save,
        "exp_manager.create_checkpoint_callback exp_manager.checkpoint_callback_params.dirpath"}},
      {"load",
       {load,
        "exp_manager.resume_if_exists exp_manager.resume_ignore_no_checkpoint "
        "exp_manager.resume_from_checkpoint"}},
      {"pretrained-checkpoint", {nullptr, ""}},
      {"finetune", {finetune, "model.weight_init_only"}},
      {"no-load-optim", {nullptr, ""}},
      {"nproc-per-node", {devices, "trainer.devices"}},
      {"nnodes", {nodes, "trainer.num_nodes"}},
  });
}

void add_optimizer_and_data(Words& words) {
  words.insert({
      {"optimizer", {optimizer, "model.optim.name"}},
      {"adam-beta1", {beta1, "model.optim.betas"}},
      {"adam-beta2", {beta2, ""}},
      {"adam-eps", {epsilon, "model.optim.eps"}},
      {"sgd-momentum", {momentum, "model.optim.momentum"}},
      {"lr-decay-style", {decay_style, "model.optim.sched.name"}},
      {"lr-decay-iters", {decay_steps, "model.optim.sched.constant_steps"}},
      {"lr-decay-samples", {nullptr, ""}},
      {"lr-warmup-iters", {warmup, "model.optim.sched.warmup_steps"}},
      {"lr-warmup-samples", {nullptr, ""}},
      {"lr-warmup-fraction", {nullptr, ""}},
      {"lr-wsd-decay-style", {wsd_style, ""}},
      {"lr-wsd-decay-iters", {wsd_steps, "model.optim.sched.hold_steps"}},
      {"lr-wsd-decay-samples", {nullptr, ""}},
      {"data-path", {data_path, "data.data_prefix"}},
      {"train-data-path", {train_path, "data.data_prefix.train"}},
      {"valid-data-path", {valid_path, "data.data_prefix.validation"}},
      {"test-data-path", {test_path, "data.data_prefix.test"}},
      {"split", {split, "data.splits_string"}},
      {"dataloader-type", {loader, "data.dataloader_type"}},
      {"tokenizer-type", {tokenizer, "data.tokenizer.library data.tokenizer.type"}},
      {"tokenizer-model", {tokenizer_model, "data.tokenizer.model"}},
      {"vocab-file", {vocab_file, "data.tokenizer.vocab_file"}},
      {"merge-file", {merge_file, "data.tokenizer.merge_file"}},
  });
}

const Words& words() {
  static const Words all = [] {
    Words made;
    add_model(made);
    add_run(made);
    add_optimizer_and_data(made);
    return made;
  }();
  return all;
}

}  // namespace

const MegatronWord* megatron_word(std::string_view name) {
  const auto found = words().find(name);
  return found == words().end() ? nullptr : &found->second;
}

bool megatron_word_decides(std::string_view key) {
  for (const auto& [name, word] : words()) {
    bool decides = false;
    for_each_word(word.keys, [&](std::string_view each) { decides |= each == key; });
    if (decides) return true;
  }
  return false;
}

bool megatron_moves(std::string_view name, const ResolvedSettings& s) {
  if (name == "use-rotary-position-embeddings") return false;  // --position-embedding-type says it
  if (name.starts_with("moe-")) {
    if (name == "moe-router-topk-scaling-factor")
      return mixture(s) && s.number("model.moe.routed_scaling_factor") != 1.0;
    if (name == "moe-input-jitter-eps")
      return mixture(s) && s.number("model.moe.jitter_eps") != 0.0;
    return mixture(s);
  }
  if (name == "recompute-method" || name == "recompute-num-layers")
    return s.is("model.activations_checkpoint_granularity", "full");
  if (name == "qk-layernorm") return !s.config().model.qk_layernorm_across_heads;  // it is per head
  if (name == "train-iters") return s.integer("trainer.max_steps").value_or(-1) > 0;
  if (name == "async-save" || name == "save-interval") return !save_folder(s).empty();
  if (name == "exit-on-missing-checkpoint") return load(s).has_value();
  return true;
}

std::string megatron_needs(std::string_view name) {
  // --recompute-granularity full says nothing alone: each layer is a unit.
  if (name == "recompute-method") return "uniform";
  if (name == "recompute-num-layers") return "1";
  return "";
}

}  // namespace trellis::analysis
