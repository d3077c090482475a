#include "analysis/import/torchtitan_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/megatron_args.h"

namespace trellis::analysis {
namespace {

using Values = TorchtitanValues;

template <typename Number>
std::optional<Number> parsed(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string unquoted(const std::string& text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// Models and data.

ImportedKey model_name(const SourceKey& source, const Values& v) {
  if (v.text("model.name") == "llama3") return at_default(source, "model.flavor has its sizes");
  return unsupported(source,
                     "expected llama3: torchtitan keeps the sizes of models in its code; write the "
                     "section `model`");
}

ImportedKey flavor(const SourceKey& source, const Values& v) {
  if (const TorchtitanFlavor* found = torchtitan_flavor(v))
    return mapped(source, torchtitan_model(*found));
  return unsupported(source,
                     "expected a flavor of llama3 (debugmodel, 8B, 70B, 405B): torchtitan keeps "
                     "sizes in its code; write the section `model`");
}

ImportedKey tokenizer(const SourceKey& source, const Values& v) {
  if (source.key == "model.hf_assets_path" && !v.text("model.tokenizer_path").empty())
    return at_default(source, "model.tokenizer_path decides");
  return mapped(source,
                {{"data.tokenizer.library", "huggingface"}, {"data.tokenizer.type", source.value}});
}

ImportedKey data_set(const SourceKey& source, const Values& v) {
  if (v.has("training.dataset_path")) return at_default(source, "training.dataset_path decides");
  return unsupported(source,
                     "nothing is downloaded: name files with data.train_dir; without any, a "
                     "built-in text is tokenized");
}

ImportedKey data_path(const SourceKey& source, const Values&) {
  return mapped(source, {{"data.train_dir", source.value}});
}

ImportedKey precision(const SourceKey& source, const Values& v) {
  const std::string dtype = v.text("training.dtype", "float32");
  const std::string param = v.text("training.mixed_precision_param", "bfloat16");
  if (dtype == "bfloat16")
    return source.key == "training.dtype"
               ? unsupported(source,
                             "all states in bf16 are not supported: precision.type bf16SR rounds "
                             "stochastically, mixed_precision keeps fp32 copies")
               : at_default(source, "training.dtype decides");
  if (dtype != "float32" || (param != "float32" && param != "bfloat16"))
    return unsupported(source, "expected float32 or bfloat16");
  return mapped(
      source, {{"precision.type", param == "float32" ? "fp32" : "mixed_precision"}},
      param == "float32" ? "" : "bf16 weights, fp32 master weights and sums of gradients");
}

// The optimizer.

ImportedKey optimizer(const SourceKey& source, const Values& v) {
  const std::string name = v.text("optimizer.name", "AdamW");
  if (source.key == "optimizer.name") {
    if (name == "AdamW") return mapped(source, {{"model.optim.name", "adamw"}});
    if (name == "Adam") return mapped(source, {{"model.optim.name", "adam"}});
    return unsupported(source, "expected AdamW or Adam; model.optim.name has others");
  }
  return mapped(source,
                {{"model.optim.betas", fmt::format("[{}, {}]", v.text("optimizer.beta1", "0.9"),
                                                   v.text("optimizer.beta2", "0.95"))}});
}

ImportedKey schedule(const SourceKey& source, const Values& v) {
  const TorchtitanSchedule made = torchtitan_schedule(v);
  if (source.key == "lr_scheduler.total_steps")
    return v.integer(source.key, 0) == v.integer("training.steps", 10000)
               ? at_default(source, "a schedule lasts for trainer.max_steps")
               : unsupported(source,
                             "a schedule lasts for trainer.max_steps: write training.steps");
  if (source.key == "lr_scheduler.min_lr_factor")
    return mapped(source, {{"model.optim.sched.min_lr", made.min_lr}}, "times the rate");
  if (!made.refused.empty()) return unsupported(source, made.refused);
  if (source.key == "lr_scheduler.decay_type")
    return mapped(source, {{"model.optim.sched.name", made.name}});
  return mapped(source,
                {{"model.optim.sched.name", made.name},
                 {"model.optim.sched.hold_steps", fmt::format("{}", made.hold_steps)}},
                "steps between warm-up and decay");
}

// Checkpoints, recomputation and validation.

bool saves(const Values& v) { return v.flag("checkpoint.enable", false); }
const std::string kSaved = "exp_manager.checkpoint_callback_params.";

ImportedKey saving(const SourceKey& source, const Values& v) {
  const std::string name = source.key.substr(std::string_view("checkpoint.").size());
  if (name == "enable")
    return mapped(source,
                  {{"exp_manager.create_checkpoint_callback", source.value},
                   {"exp_manager.resume_if_exists", source.value},
                   {"exp_manager.resume_ignore_no_checkpoint", source.value}},
                  saves(v) ? "a run goes on from its newest checkpoint" : "");
  if (!saves(v)) return at_default(source, "checkpoint.enable is off");
  if (name == "folder")
    return mapped(source, {{kSaved + "dirpath", yaml_scalar(v.text("job.dump_folder", "./outputs") +
                                                            "/" + v.text("checkpoint.folder"))}});
  if (name == "interval") return mapped(source, {{kSaved + "every_n_train_steps", source.value}});
  if (name == "async_mode")
    return mapped(source, {{"exp_manager.async_checkpointing",
                            v.text("checkpoint.async_mode") == "disabled" ? "false" : "true"}});
  const std::int64_t kept = v.integer("checkpoint.keep_latest_k", 10);
  return mapped(source,
                {{kSaved + "monitor", "step"},
                 {kSaved + "mode", "max"},
                 {kSaved + "save_top_k", kept < 1 ? "-1" : fmt::format("{}", kept)}},
                kept < 1 ? "all are kept" : "the newest are kept");
}

ImportedKey initial_load(const SourceKey& source, const Values& v) {
  const bool named = !v.text("checkpoint.initial_load_path").empty();
  if (!named) return at_default(source, "nothing is loaded");
  if (source.key == "checkpoint.initial_load_path")
    return mapped(
        source,
        {{"exp_manager.resume_from_checkpoint", source.value},
         {"model.weight_init_only",
          v.flag("checkpoint.initial_load_model_only", true) ? "true" : "false"}},
        "a checkpoint of NxDT's form is expected there: see `trellis checkpoint convert`");
  return mapped(source, {{"model.weight_init_only", source.value}});
}

ImportedKey recompute(const SourceKey& source, const Values& v) {
  const std::string mode = v.text("activation_checkpoint.mode", "selective");
  if (mode == "none" || mode == "full")
    return mapped(source,
                  {{"model.activations_checkpoint_granularity", mode == "full" ? "full" : "null"}});
  return unsupported(source,
                     "expected none or full: model.activations_checkpoint_granularity selective "
                     "names modules, such as CoreAttention, and neither operators nor every n-th "
                     "layer");
}

ImportedKey validation(const SourceKey& source, const Values& v) {
  const bool on = v.flag("validation.enable", false);
  if (source.key == "validation.enable" && !on)
    return mapped(source, {{"trainer.limit_val_batches", "0"}});
  if (!on) return at_default(source, "validation.enable is off");
  const std::int64_t steps = v.integer("validation.steps", -1);
  if (source.key == "validation.enable")
    return mapped(
        source,
        {{"trainer.check_val_every_n_epoch", "null"},
         {"trainer.val_check_interval", fmt::format("{}", v.integer("validation.freq", 10))},
         {"trainer.limit_val_batches", steps < 1 ? "1.0" : fmt::format("{}", steps)}});
  if (source.key == "validation.freq")
    return mapped(source, {{"trainer.val_check_interval", source.value}});
  if (source.key == "validation.steps")
    return mapped(source, {{"trainer.limit_val_batches", steps < 1 ? "1.0" : source.value}},
                  steps < 1 ? "all of the set" : "");
  if (source.key == "validation.dataset_path")
    return mapped(source, {{"data.val_dir", source.value}});
  return v.integer(source.key, 2048) == v.integer("training.seq_len", 2048)
             ? at_default(source, "sequences are as long as in training")
             : unsupported(source, "expected training.seq_len: one length is for both");
}

}  // namespace

TorchtitanValues::TorchtitanValues(const std::vector<SourceKey>& keys) {
  for (const SourceKey& key : keys) values_[key.key] = unquoted(key.value);
}

std::string TorchtitanValues::text(std::string_view key) const { return text(key, ""); }

std::string TorchtitanValues::text(std::string_view key, const char* otherwise) const {
  const auto found = values_.find(key);
  return found == values_.end() ? otherwise : found->second;
}

std::int64_t TorchtitanValues::integer(std::string_view key, std::int64_t otherwise) const {
  return parsed<std::int64_t>(text(key)).value_or(otherwise);
}

double TorchtitanValues::number(std::string_view key, double otherwise) const {
  const auto value = parsed<double>(text(key));
  return value && std::isfinite(*value) ? *value : otherwise;
}

bool TorchtitanValues::flag(std::string_view key, bool otherwise) const {
  return has(key) ? text(key) == "true" : otherwise;
}

const TorchtitanFlavor* torchtitan_flavor(const Values& v) {
  if (v.text("model.name", "llama3") != "llama3") return nullptr;
  const std::string name = v.text("model.flavor", "debugmodel");
  const auto found = std::ranges::find(torchtitan_flavors(), name, &TorchtitanFlavor::name);
  return found == torchtitan_flavors().end() ? nullptr : &*found;
}

std::vector<Setting> torchtitan_model(const TorchtitanFlavor& flavor) {
  const auto integer = [](int value) { return fmt::format("{}", value); };
  return {{"model.num_layers", integer(flavor.layers)},
          {"model.hidden_size", integer(flavor.hidden)},
          {"model.ffn_hidden_size", integer(flavor.ffn)},
          {"model.num_attention_heads", integer(flavor.heads)},
          {"model.num_kv_heads", integer(flavor.kv_heads)},
          {"model.vocab_size", integer(flavor.vocabulary)},
          {"model.make_vocab_size_divisible_by", "1"},
          {"model.position_freq_base", "500000"},
          {"model.rope_scaling.rope_type", "llama3"},
          {"model.rope_scaling.factor", "8"},
          {"model.rope_scaling.low_freq_factor", "1.0"},
          {"model.rope_scaling.high_freq_factor", "4.0"},
          {"model.rope_scaling.original_max_position_embeddings", "8192"}};
}

TorchtitanSchedule torchtitan_schedule(const Values& v) {
  TorchtitanSchedule made;
  const double rate = v.number("optimizer.lr", 8e-4);
  const double least = v.number("lr_scheduler.min_lr_factor", 0);
  made.min_lr = fmt::format("{}", rate * least);
  const std::string type = v.text("lr_scheduler.decay_type", "linear");
  const bool holds = v.has("lr_scheduler.decay_ratio");
  constexpr std::int64_t kMost = std::int64_t{1} << 50;  // differences stay far from overflow
  const std::int64_t steps = std::clamp(v.integer("training.steps", 10000), -kMost, kMost);
  const std::int64_t warm = std::clamp(v.integer("lr_scheduler.warmup_steps", 200), -kMost, kMost);
  if (holds) {
    const double share = std::clamp(v.number("lr_scheduler.decay_ratio", 0), 0.0, 1.0);
    const std::int64_t falls = std::llround(share * static_cast<double>(steps));
    made.hold_steps = std::max<std::int64_t>(0, steps - warm - falls);
  }
  if (type == "sqrt") {
    made.name = "WarmupHoldAnnealOneMinusSquareRoot";
  } else if (type == "cosine" && !holds) {
    made.name = "CosineAnnealing";
  } else if (type == "linear") {
    made.name = holds       ? "WarmupHoldAnnealLinear"
                : least > 0 ? "WarmupAnnealing"
                            : "LinearAnnealingWithWarmUp";
  } else {
    made.refused = type == "cosine" ? "with lr_scheduler.decay_ratio, expected linear or sqrt"
                                    : "expected linear, sqrt or cosine";
  }
  return made;
}

ImportedKey experts(const SourceKey& source, const Values& v) {
  if (!v.has("model.experts")) return at_default(source, "the model has no experts");
  if (source.key == "parallelism.expert_parallel_degree")
    return mapped(source, {{"distributed_strategy.expert_model_parallel_size", source.value}});
  return v.flag(source.key, false)
             ? unsupported(source, "routers decide which experts get a token: set it to false")
             : at_default(source);
}

TorchtitanRule torchtitan_run_rule(std::string_view key) {
  static const std::vector<std::pair<std::string_view, TorchtitanRule>> kRules = {
      {" model.name ", model_name},
      {" model.flavor ", flavor},
      {" parallelism.expert_parallel_degree debug.moe_force_load_balance ", experts},
      {" model.hf_assets_path model.tokenizer_path ", tokenizer},
      {" training.dataset ", data_set},
      {" training.dataset_path ", data_path},
      {" training.dtype training.mixed_precision_param ", precision},
      {" optimizer.name optimizer.beta1 optimizer.beta2 ", optimizer},
      {" lr_scheduler.total_steps lr_scheduler.decay_ratio lr_scheduler.decay_type "
       "lr_scheduler.min_lr_factor ",
       schedule},
      {" checkpoint.enable checkpoint.folder checkpoint.interval checkpoint.async_mode "
       "checkpoint.keep_latest_k ",
       saving},
      {" checkpoint.initial_load_path checkpoint.initial_load_model_only ", initial_load},
      {" activation_checkpoint.mode ", recompute},
      {" validation.enable validation.freq validation.steps validation.dataset_path "
       "validation.seq_len ",
       validation},
  };
  for (const auto& [names, rule] : kRules)
    if (names.find(fmt::format(" {} ", key)) != std::string_view::npos) return rule;
  return nullptr;
}

TorchtitanRule torchtitan_rule(std::string_view key) {
  const TorchtitanRule rule = torchtitan_layout_rule(key);
  return rule != nullptr ? rule : torchtitan_run_rule(key);
}

}  // namespace trellis::analysis
