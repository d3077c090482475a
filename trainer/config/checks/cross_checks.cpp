#include "trainer/config/checks/cross_checks.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/nearest.h"
#include "trainer/config/checks/layout_checks.h"
#include "trainer/config/logged_scalars.h"
#include "trainer/config/lora_targets.h"
#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

void check_heads(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  if (!r.model.good({"num_attention_heads", "hidden_size", "kv_channels", "model_config"})) return;
  const bool derived = m.head_dim == m.hidden_size / m.num_attention_heads;
  if (derived && !r.model.has_value("kv_channels")) {
    must_divide(
        r.model, "hidden_size", m.hidden_size,
        {fmt::format("num_attention_heads {}", m.num_attention_heads), m.num_attention_heads});
  }
  const double rotated = m.head_dim * m.rotary_percentage;
  if (m.position_embedding == PositionEmbedding::kRope &&
      r.model.good({"hidden_size", "rotary_percentage"}) &&
      static_cast<std::int64_t>(rotated) % 2 != 0) {
    r.model.problem("hidden_size", fmt::format("the rotated part of a head, {} × rotary_percentage "
                                               "{} = {}, is odd; rotary embedding rotates pairs",
                                               m.head_dim, m.rotary_percentage,
                                               static_cast<std::int64_t>(rotated)));
  }
  if (!r.model.good({"num_kv_heads"})) return;
  must_divide(r.model, "num_attention_heads", m.num_attention_heads,
              {fmt::format("num_kv_heads {}", m.num_kv_heads), m.num_kv_heads});
}

void check_sequence(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  if (r.model.good({"encoder_seq_length", "max_position_embeddings"}) &&
      m.max_position_embeddings < m.encoder_seq_length) {
    r.model.problem(
        "max_position_embeddings",
        fmt::format("{} is smaller than encoder_seq_length {}; set it to at least {}",
                    m.max_position_embeddings, m.encoder_seq_length, m.encoder_seq_length));
  }
  const auto length = r.data.optional<int>("seq_length");
  if (length && r.model.good({"encoder_seq_length"}) && *length != m.encoder_seq_length) {
    r.data.problem(
        "seq_length",
        fmt::format(
            "{} differs from model.encoder_seq_length {}; write ${{model.encoder_seq_length}}",
            *length, m.encoder_seq_length));
  }
}

void check_megatron(const RunConfig& config, SectionReaders& r) {
  if (config.model_source != "megatron" || !r.root.good({"model_source"})) return;
  if (!config.distributed_strategy.zero1) {
    r.distributed_strategy.warn("zero1",
                                "NxDT trains Megatron models with ZeRO-1 only and refuses this; "
                                "here they train without, as NeMo Megatron does");
  }
  const auto only_hf = [&](const char* key) {
    if (r.model.get<bool>(key, false))
      r.model.problem(
          key,
          "belongs to model_source hf: Megatron models have their own query-key-value projection");
  };
  only_hf("qkv_linear");
  if (!config.model.moe) return;
  const ModelSection& m = config.model;
  const auto moe_needs = [&](const char* key, bool legal, const char* value) {
    if (!legal && r.model.good({key}))
      r.model.problem(key, fmt::format("a mixture of experts needs {}", value));
  };
  moe_needs("activation", m.activation == Activation::kSwiglu, "swiglu");
  moe_needs("has_bias", !m.has_bias, "has_bias: false");
  moe_needs("transformer_block_type", m.transformer_block_type == TransformerBlock::kPreLn,
            "pre_ln");
}

void check_norms_across_heads(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  if (!m.qk_layernorm_across_heads) return;
  if (!m.qk_layernorm && r.model.good({"qk_layernorm", "qk_layernorm_across_heads"}))
    r.model.problem("qk_layernorm_across_heads",
                    "says what qk_layernorm normalises: expected qk_layernorm true with it");
  if (m.qkv_linear && r.model.good({"qkv_linear"}))
    r.model.problem("qkv_linear",
                    fmt::format("copies heads of keys and values, which norms across heads would "
                                "count more than once: expected false, and a "
                                "tensor_model_parallel_size that divides num_kv_heads {}",
                                m.num_kv_heads));
}

void check_gate(const RunConfig& config, SectionReaders& r) {
  if (config.model.fuse_gate_up || is_gated(config.model.activation) ||
      !r.model.good({"activation", "fuse_gate_up"}))
    return;
  r.model.problem("fuse_gate_up",
                  "separates the two halves of a gated activation: expected activation geglu, "
                  "reglu or swiglu with false; set it to true");
}

/// Parameters that any model of these sizes stays below, counted where no integer overflows.
double parameter_bound(const ModelSection& m) {
  const double rank = m.lora ? m.lora->rank : 0, experts = m.moe ? m.moe->num_experts : 1;
  const double inputs = m.hidden_size + rank + 1,
               width =
                   2.0 * (1.0 * m.num_attention_heads + m.num_kv_heads) * std::max(1, m.head_dim) +
                   3.0 * m.ffn_hidden_size + 4 * inputs;
  const double image =
      m.image ? 1.0 * m.image->size * m.image->size * m.image->channels + m.image->labels : 0;
  return experts * m.num_layers * inputs * width +
         (2.0 * m.vocab_size + m.max_position_embeddings + m.type_vocab_size + image) * inputs;
}

/// Keeps counts of parameters, bytes and operations inside 64 bits; the problem names the largest
/// of the sizes.
void check_size(const RunConfig& config, SectionReaders& r) {
  constexpr double kMost = 1e15;  // a thousand times the largest model of the time
  const ModelSection& m = config.model;
  if (parameter_bound(m) <= kMost) return;
  std::vector<std::pair<int, std::string>> sizes = {
      {m.num_layers, "num_layers"},
      {m.hidden_size, "hidden_size"},
      {m.ffn_hidden_size, "ffn_hidden_size"},
      {m.num_attention_heads, "num_attention_heads"},
      {m.num_kv_heads, "num_kv_heads"},
      {m.head_dim, "kv_channels"},
      {m.vocab_size, "vocab_size"},
      {m.max_position_embeddings, "max_position_embeddings"}};
  if (m.moe) sizes.emplace_back(m.moe->num_experts, "moe.num_experts");
  const auto& [size, key] = *std::ranges::max_element(sizes);
  SectionReader section = key.starts_with("moe.") ? r.model.section("moe") : r.model;
  section.problem(
      key.substr(key.find('.') + 1),
      fmt::format(
          "{} makes a model of about {:.0e} parameters; expected at most {:.0e} in all: lower it",
          size, parameter_bound(m), kMost));
}

/// Checks for settings with which this version does not combine fully sharded data parallelism.
void check_fully_sharded(const RunConfig& config, SectionReaders& r) {
  const DistributedStrategySection& s = config.distributed_strategy;
  const int copies = s.data_parallel_replicate_size;
  if (!s.fsdp) {
    if (copies > 1)
      r.distributed_strategy.problem(
          "data_parallel_replicate_size",
          fmt::format("{} copies of fully sharded weights: expected fsdp true, got false; set it, "
                      "or set this to 1",
                      copies));
    return;
  }
  if (!s.zero1) {
    r.distributed_strategy.problem(
        "zero1",
        "false, and fsdp is true: it shards the optimizer's states too; expected zero1 true, or "
        "fsdp false");
  }
  const auto with = [&](bool wanted, const std::string& what) {
    if (wanted)
      r.distributed_strategy.unsupported("fsdp",
                                         "fully sharded data parallelism (fsdp) with " + what);
  };
  with(config.pp() > 1,
       fmt::format("pipeline stages (pipeline_model_parallel_size {}): each micro-batch would "
                   "gather every weight again; expected 1",
                   config.pp()));
  with(config.model.lora.has_value(), "LoRA adapters (model_alignment_strategy.peft)");
  with(is_encoder(config.model),
       fmt::format("model_source {}'s {} model", config.model_source, config.model.architecture));
}

/// Checks for settings with which this version does not combine adapters.
void check_lora(const RunConfig& config, SectionReaders& r) {
  if (!config.model.lora) return;
  const auto later = [&](bool wanted, const std::string& what) {
    if (wanted) r.alignment.unsupported("peft", "LoRA adapters on " + what);
  };
  later(is_encoder(config.model),
        fmt::format("model_source {}'s {} model", config.model_source, config.model.architecture));
  SectionReader section = r.alignment.section("peft");
  const LoraSection& lora = *config.model.lora;
  if (!lora.load && !lora.folder.empty() && !config.exp_manager.checkpoints.create)
    section.problem(
        "lora_save_dir",
        fmt::format("{}: adapters are saved there with each checkpoint: expected "
                    "exp_manager.create_checkpoint_callback true, got false; set it, or "
                    "leave lora_save_dir out",
                    lora.folder));
  if (is_encoder(config.model) || !section.good({"target_modules"})) return;
  if (const std::string why = why_no_targets(config.model); !why.empty())
    section.problem("target_modules", why);
  if (const std::string why = why_not_saved(config.model); !why.empty())
    section.problem("modules_to_save", why);
}

/// A prompt leaves place for an answer.
void check_prompt(const RunConfig& config, SectionReaders& r) {
  if (config.alignment != "dpo" && config.alignment != "orpo") return;
  SectionReader section = r.alignment.section(config.alignment);
  const std::optional<int> prompt = config.data.records.max_prompt_length;
  const int sequence = config.model.encoder_seq_length;
  if (!prompt || *prompt < sequence || !section.good({"max_prompt_length"}) ||
      !r.model.good({"encoder_seq_length"}))
    return;
  section.problem("max_prompt_length",
                  fmt::format("{} leaves no token of the sequence for an answer: expected less "
                              "than model.encoder_seq_length {}",
                              *prompt, sequence));
}

/// Checks for settings with which this version does not combine preference pairs.
void check_preferences(const RunConfig& config, SectionReaders& r) {
  if ((config.model.orpo || config.model.dpo) && config.model.moe &&
      config.model.moe->output_router_logits) {
    r.alignment.unsupported(config.alignment,
                            "an auxiliary loss of the routers (output_router_logits)");
  }
}

/// Encoders are no models of NxDT's, and none of their layers is cut.
void check_encoder(const RunConfig& config, SectionReaders& r) {
  if (!is_encoder(config.model)) return;
  const DistributedStrategySection& s = config.distributed_strategy;
  for (const auto& [key, size] :
       {std::pair{"tensor_model_parallel_size", s.tensor_model_parallel_size},
        std::pair{"pipeline_model_parallel_size", s.pipeline_model_parallel_size},
        std::pair{"context_parallel_size", s.context_parallel_size}}) {
    if (size > 1)
      r.distributed_strategy.problem(
          key, fmt::format("{} models train with data parallelism alone: must be 1, got {}",
                           config.model.architecture, size));
  }
  if (!config.alignment.empty())
    r.alignment.problem(
        config.alignment,
        "fine-tunes decoders; expected a llama or mistral model, got " + config.model.architecture);
}

/// A run has an end, and its minimum comes before it.
void check_end(const RunConfig& config, SectionReaders& r) {
  const TrainerSection& t = config.trainer;
  if (!r.trainer.good({"max_steps", "max_epochs", "max_time"})) return;
  if (t.max_steps < 0 && t.max_epochs < 0 && !t.max_time_s) {
    r.trainer.problem(
        "max_steps",
        "the run has no end: expected a number of steps, or -1 with trainer.max_epochs or "
        "trainer.max_time, got -1 alone");
  }
  if (t.max_steps < 0 && config.data.kind == DataKind::kMegatron) {
    r.trainer.problem(
        "max_steps",
        "indexed data (data.data_prefix) are sampled for a number of steps: expected at least 1, "
        "got -1");
  }
  if (t.max_steps > 0 && t.min_steps > t.max_steps) {
    r.trainer.problem("min_steps", fmt::format("{} is more than max_steps {}; lower it",
                                               *t.min_steps, t.max_steps));
  }
  if (t.max_epochs > 0 && t.min_epochs > t.max_epochs) {
    r.trainer.problem("min_epochs", fmt::format("{} is more than max_epochs {}; lower it",
                                                *t.min_epochs, t.max_epochs));
  }
}

/// The monitored number is one that the run logs.
void check_early_stopping(const RunConfig& config, SectionReaders& r) {
  if (!config.exp_manager.early_stopping) return;
  const std::string& monitor = config.exp_manager.early_stopping->monitor;
  const std::vector<std::string> logged = logged_scalars(config);
  if (std::ranges::find(logged, monitor) != logged.end()) return;
  const std::string nearest = nearest_name(monitor, logged);
  SectionReader params = r.exp_manager.section("early_stopping_callback_params");
  params.problem("monitor",
                 fmt::format("this run logs no `{}`{}; expected {}", monitor,
                             nearest.empty() ? "" : fmt::format(", did you mean `{}`?", nearest),
                             join_names(logged)));
}

void check_precision(const RunConfig& config, SectionReaders& r) {
  const std::string& type = config.precision.type;
  const bool has_masters =
      type == "mixed_precision" || type == "mixed_precisionSR" || type == "autocast";
  if (has_masters && !config.distributed_strategy.zero1) {
    r.distributed_strategy.warn("zero1",
                                fmt::format("without ZeRO-1 precision.type {} keeps no fp32 master "
                                            "weights and accumulates gradients in their "
                                            "own type",
                                            type));
  }
}

/// Weights of more bits than bf16 have no masters that a training would go on from.
void check_rounded_saves(const RunConfig& config, SectionReaders& r) {
  const CheckpointSection& saves = config.exp_manager.checkpoints;
  if (!saves.create || !saves.save_bf16 || config.precision.weights_bf16) return;
  r.exp_manager.warn("save_bf16",
                     fmt::format("rounds the weights of precision.type {} to bf16, and they have "
                                 "no masters: a training that goes on from such a checkpoint is "
                                 "not where it was",
                                 config.precision.type));
}

void check_features(const RunConfig& config, SectionReaders& r) {
  const DistributedStrategySection& s = config.distributed_strategy;
  if (s.expert_model_parallel_size > 1 && !config.model.moe) {
    r.distributed_strategy.problem(
        "expert_model_parallel_size",
        fmt::format("{} needs section model.moe; set it to 1", s.expert_model_parallel_size));
  }
  if (s.token_shuffle_group_size > 1 && !config.model.moe) {
    r.distributed_strategy.problem(
        "token_shuffle_group_size",
        fmt::format("{} needs section model.moe; set it to 1", s.token_shuffle_group_size));
  }
}

/// Megatron-core's form of what a training saves.
void check_torch_dist(const RunConfig& config, SectionReaders& r) {
  const DistCkptSection& section = config.model.dist_ckpt;
  if (section.format != "torch_dist") {
    if (section.files_per_rank)
      r.model.problem("dist_ckpt_torch_dist_multiproc",
                      fmt::format("files per rank of dist_ckpt_format: torch_dist: expected null "
                                  "with {}, got {}",
                                  section.format, *section.files_per_rank));
    return;
  }
  const std::string& architecture = config.model.architecture;
  std::string what;
  if (config.model.transformer_block_type == TransformerBlock::kReorderedNorm)
    what = "transformer_block_type reordered_norm";
  if (config.model.qk_layernorm_across_heads) what = "norms across heads";
  if (architecture != "llama" && architecture != "mixtral" && architecture != "gpt")
    what = "a model of " + architecture;
  if (config.model.moe && config.model.moe->num_shared_experts > 0) what = "shared experts";
  if (config.model.lora) what = "a training of adapters";
  if (config.exp_manager.checkpoints.masters_replace_weights)
    what = "exp_manager.avoid_saving_lower_precision_weights";
  if (config.exp_manager.checkpoints.save_last_n_optim_states != -1)
    what = "checkpoint_callback_params.save_last_n_optim_states";
  if (!what.empty())
    r.model.problem("dist_ckpt_format", fmt::format("torch_dist is not written for {}: expected "
                                                    "nxd or null",
                                                    what));
}

void check_gathered_states(const RunConfig& config, SectionReaders& r) {
  if (config.model.dist_ckpt.parallel_dist_opt || !config.distributed_strategy.zero1) return;
  const CheckpointSection& section = config.exp_manager.checkpoints;
  const auto refuse = [&](const char* expected) {
    r.model.problem("dist_ckpt_parallel_dist_opt", expected);
  };
  if (section.zero1_dcp)
    refuse("expected true with exp_manager.use_zero1_dcp, whose folder all ranks write");
  if (section.async_buffer_gib)
    refuse(
        "expected true with exp_manager.async_buffer_gib: first ranks have the states of all in "
        "host memory, whatever the buffer");
}

void check_zero1_dcp(const RunConfig& config, SectionReaders& r) {
  if (config.exp_manager.checkpoints.zero1_dcp && !config.distributed_strategy.zero1)
    r.exp_manager.problem("use_zero1_dcp",
                          "expected false, or distributed_strategy.zero1: true, whose states it "
                          "is about");
}

}  // namespace

void cross_check(const RunConfig& config, SectionReaders& readers) {
  check_size(config, readers);
  check_heads(config, readers);
  check_layout(config, readers);
  check_context_parallel(config, readers);
  check_sequence(config, readers);
  check_megatron(config, readers);
  check_encoder(config, readers);
  check_norms_across_heads(config, readers);
  check_gate(config, readers);
  check_fully_sharded(config, readers);
  check_lora(config, readers);
  check_torch_dist(config, readers);
  check_zero1_dcp(config, readers);
  check_gathered_states(config, readers);
  check_prompt(config, readers);
  check_preferences(config, readers);
  check_end(config, readers);
  check_early_stopping(config, readers);
  check_precision(config, readers);
  check_rounded_saves(config, readers);
  check_features(config, readers);
}

}  // namespace trellis::trainer
