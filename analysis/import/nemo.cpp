#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "analysis/import/key_words.h"
#include "analysis/import/nemo_table.h"
#include "analysis/import/sources.h"
#include "analysis/import/yaml_keys.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis {
namespace {

using Values = std::map<std::string, std::string>;  ///< of the source, by key

bool is_true(const std::string& value) { return trainer::is_neutral(value, "true"); }

/// A name or number without its quotes; any other value as it is.
std::string bare(const std::string& value) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-";
  if (value.size() < 3 || (value.front() != '"' && value.front() != '\'') ||
      value.back() != value.front())
    return value;
  const std::string inner = value.substr(1, value.size() - 2);
  return inner.find_first_not_of(kPlain) == std::string::npos ? inner : value;
}

/// `pattern`: a key, or the beginning of keys and a `*`.
bool matches(std::string_view pattern, std::string_view key) {
  if (!pattern.ends_with('*')) return pattern == key;
  return key.starts_with(pattern.substr(0, pattern.size() - 1));
}

const NemoRow* row_of(std::string_view key) {
  for (const NemoRow& row : nemo_rows()) {
    bool found = false;
    for_each_word(row.keys, [&](std::string_view word) { found |= matches(word, key); });
    if (found) return &row;
  }
  return nullptr;
}

ImportedKey by_row(const SourceKey& source, const NemoRow& row) {
  using enum NemoRow::Does;
  const std::string note(row.note);
  if (row.does == kMoves) return classify(source, {std::string(row.target), source.value});
  if (row.does == kIgnored) return ignored(source, note);
  return trainer::is_neutral(bare(source.value), row.target) ? at_default(source, note)
                                                             : unsupported(source, note);
}

constexpr const char* kZeroSwitches[] = {"model.zero_use_master_weight",
                                         "model.zero_use_fp32_grad_accum"};

/// NNM: two switches of what NxDT calls one mode. Without them the trainer's precision decides.
bool chosen_singly(const Values& values) {
  return std::ranges::any_of(kZeroSwitches, [&](const char* key) {
    const auto found = values.find(key);
    return found != values.end() && is_true(found->second);
  });
}

/// Lightning's precision and Megatron's "O2" (bf16 weights, fp32 master weights) together are one
/// of NxDT's modes.
ImportedKey precision(const SourceKey& source, const Values& values) {
  if (chosen_singly(values))
    return at_default(source, "model.zero_use_* choose the precision of weights and gradients");
  const std::string digits =
      source.value.substr(std::min(source.value.find_first_not_of("\"'"), source.value.size()));
  const auto found = values.find("model.megatron_amp_O2");
  const bool o2 = found != values.end() && is_true(found->second);
  if (digits.starts_with("bf16"))
    return mapped(source, {{"precision.type", o2 ? "mixed_precision" : "autocast"}},
                  o2 ? "megatron_amp_O2: bf16 weights with fp32 master weights"
                     : "without megatron_amp_O2: fp32 weights under autocast");
  if (digits.starts_with("32")) return mapped(source, {{"precision.type", "fp32"}});
  return unsupported(source, "fp16 is not supported: use bf16-mixed, or choose precision.type");
}

/// Apex's names of the same optimizer; the distributed one shards its states.
ImportedKey optimizer(const SourceKey& source, const Values&) {
  if (source.value == "fused_adam" || source.value == "adam")
    return mapped(source, {{"model.optim.name", "adamw"}},
                  "Apex's fused Adam decays as AdamW does");
  if (source.value == "distributed_fused_adam" || source.value == "mcore_distributed_optim")
    return mapped(
        source,
        {{"model.optim.name", "adamw_fp32OptState"}, {"distributed_strategy.zero1", "true"}},
        "states in fp32, sharded over data parallelism");
  return classify(source, {source.key, source.value});
}

ImportedKey activation(const SourceKey& source, const Values&) {
  // A rest such as `{x` would be another kind of YAML than a name.
  const bool fast =
      source.value.starts_with("fast-") &&
      source.value.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos;
  return classify(source, {source.key, fast ? source.value.substr(5) : source.value});
}

/// null: none, as 1 is.
ImportedKey virtual_stages(const SourceKey& source, const Values&) {
  if (trainer::is_neutral(source.value, "null")) return at_default(source, "stages have one chunk");
  return mapped(source,
                {{"distributed_strategy.virtual_pipeline_model_parallel_size", source.value}});
}

ImportedKey load_balancing(const SourceKey& source, const Values&) {
  if (source.value == "sinkhorn")
    return mapped(source, {{"model.moe.routing_algorithm", "sinkhorn"}});
  if (source.value == "aux_loss" || source.value == "none")
    return mapped(source, {{"model.moe.routing_algorithm", "top_k"}});
  return unsupported(source,
                     "expected aux_loss, sinkhorn or none: choose model.moe.routing_algorithm");
}

/// NeMo adds the loss where the routers' load balancing is aux_loss, which is its default; here a
/// switch turns it on.
ImportedKey auxiliary_loss(const SourceKey& source, const Values& values) {
  const auto balancing = values.find("model.moe_router_load_balancing_type");
  if (balancing != values.end() && balancing->second != "aux_loss")
    return at_default(source, "only the load balancing aux_loss reads it");
  if (trainer::is_neutral(source.value, "0|null")) return at_default(source, "no such loss");
  return mapped(source,
                {{"model.moe.router_aux_loss_coef", source.value},
                 {"model.moe.output_router_logits", "true"}},
                kAuxiliaryLossNote);
}

/// Read with trainer.precision.
ImportedKey amp_o2(const SourceKey& source, const Values& values) {
  if (values.contains("trainer.precision") || !is_true(source.value))
    return at_default(source, "it is part of precision.type");
  return mapped(source, {{"precision.type", "mixed_precision"}});
}

ImportedKey zero_precision(const SourceKey& source, const Values& values) {
  if (!chosen_singly(values)) return at_default(source, "trainer.precision decides");
  const std::string key = source.key.ends_with("master_weight") ? "precision.master_weights"
                                                                : "precision.fp32_grad_acc";
  return mapped(source, {{key, source.value}, {"precision.type", "manual"}},
                "chosen singly: precision.type manual");
}

/// The checkpoints of a dense decoder are also written as Megatron-core has them.
ImportedKey checkpoint_format(const SourceKey& source, const Values& values) {
  if (source.value != "torch_dist")
    return ignored(source,
                   "checkpoints are written in NxD's layout; with dist_ckpt_format: "
                   "torch_dist also as Megatron-core has them");
  const auto experts = values.find("model.num_moe_experts");
  if (experts != values.end() && !trainer::is_neutral(experts->second, "null"))
    return ignored(source, "mixtures of experts are written in NxD's layout alone");
  return mapped(source, {{source.key, source.value}});
}

/// Files of the checkpoints of checkpoint_format().
ImportedKey files_per_rank(const SourceKey& source, const Values& values) {
  const auto format = values.find("model.dist_ckpt_format");
  if (format == values.end() ||
      checkpoint_format({format->first, bare(format->second), source.where}, values).status !=
          ImportStatus::kMapped)
    return ignored(source, "it belongs to checkpoints of torch_dist");
  return mapped(source, {{source.key, source.value}});
}

constexpr const char* kPeft = "model_alignment_strategy.peft.";

bool has_lora(const Values& values) {
  const auto scheme = values.find("model.peft.peft_scheme");
  return scheme != values.end() && scheme->second == "lora";
}

ImportedKey peft_scheme(const SourceKey& source, const Values&) {
  if (trainer::is_neutral(source.value, "null|none")) return at_default(source, "no adapters");
  if (source.value != "lora")
    return unsupported(source, "expected lora or null: adapters of other kinds are not supported");
  return mapped(source, {{"model_alignment_strategy.sft", "{}"}},
                "records of fine-tuning; the adapters' keys are model.peft.lora_tuning's");
}

ImportedKey lora_number(const SourceKey& source, const Values& values) {
  if (!has_lora(values))
    return at_default(source, "without peft_scheme lora there are no adapters");
  const std::string name = source.key.substr(source.key.rfind('.') + 1);
  const std::string target = name == "adapter_dim" ? "lora_rank"
                             : name == "alpha"     ? "lora_alpha"
                                                   : "lora_dropout";
  return mapped(source, {{kPeft + target, source.value}});
}

/// NeMo's names of layers, and of groups of them.
ImportedKey lora_targets(const SourceKey& source, const Values& values) {
  if (!has_lora(values))
    return at_default(source, "without peft_scheme lora there are no adapters");
  const std::map<std::string, std::string, std::less<>> names = {
      {"attention_qkv", "qkv_proj"},
      {"attention_dense", "o_proj"},
      {"mlp_fc1", "gate_up_proj"},
      {"mlp_fc2", "down_proj"},
      {"attention", "qkv_proj, o_proj"},
      {"mlp", "gate_up_proj, down_proj"},
      {"all", "qkv_proj, o_proj, gate_up_proj, down_proj"}};
  std::string list = source.value, text;
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  std::ranges::replace(list, ',', ' ');
  bool known = true;
  for_each_word(list, [&](std::string_view word) {
    const auto found = names.find(bare(std::string(word)));
    known = known && found != names.end();
    if (known) text += (text.empty() ? "" : ", ") + found->second;
  });
  if (!known || text.empty())
    return unsupported(source,
                       "expected attention_qkv, attention_dense, mlp_fc1, mlp_fc2, attention, mlp "
                       "or all: write model_alignment_strategy.peft.target_modules");
  return mapped(source, {{std::string(kPeft) + "target_modules", "[" + text + "]"}});
}

/// Stock files name it whether there is a data_prefix or not.
ImportedKey splits(const SourceKey& source, const Values& values) {
  const auto prefix = values.find("model.data.data_prefix");
  const bool splits_it =
      prefix != values.end() && !trainer::is_neutral(prefix->second, "null|[]|?\?\?|\"?\?\?\"");
  if (!splits_it) return at_default(source, "it splits one data_prefix, which is not set");
  return mapped(source, {{"data.splits_string", source.value}});
}

/// One file or folder of records.
ImportedKey records(const SourceKey& source, const Values&) {
  const bool trains = source.key.find(".train_ds.") != std::string::npos;
  std::string value = source.value;
  if (value.starts_with('[') && value.ends_with(']')) value = value.substr(1, value.size() - 2);
  if (trainer::is_neutral(value, "null|")) return at_default(source, "no data set");
  if (value.find_first_of(",{[") != std::string::npos)
    return unsupported(source, "expected one file or folder: put the files into one folder");
  return mapped(source, {{trains ? "data.train_dir" : "data.val_dir", value}});
}

using Rule = ImportedKey (*)(const SourceKey&, const Values&);
const std::map<std::string, Rule, std::less<>>& rules() {
  static const std::map<std::string, Rule, std::less<>> all = {
      {"trainer.precision", precision},
      {"model.precision", precision},
      {"model.megatron_amp_O2", amp_o2},
      {"model.zero_use_master_weight", zero_precision},
      {"model.zero_use_fp32_grad_accum", zero_precision},
      {"model.optim.name", optimizer},
      {"model.activation", activation},
      {"model.virtual_pipeline_model_parallel_size", virtual_stages},
      {"model.moe_router_load_balancing_type", load_balancing},
      {"model.moe_aux_loss_coeff", auxiliary_loss},
      {"model.dist_ckpt_format", checkpoint_format},
      {"model.dist_ckpt_torch_dist_multiproc", files_per_rank},
      {"model.data.splits_string", splits},
      {"model.peft.peft_scheme", peft_scheme},
      {"model.peft.lora_tuning.adapter_dim", lora_number},
      {"model.peft.lora_tuning.alpha", lora_number},
      {"model.peft.lora_tuning.adapter_dropout", lora_number},
      {"model.peft.lora_tuning.target_modules", lora_targets},
      {"model.data.train_ds.file_names", records},
      {"model.data.validation_ds.file_names", records},
  };
  return all;
}

/// Where sections moved as a whole.
std::string moved(const std::string& key) {
  for (const auto& [from, to] :
       {std::pair{"model.data.", "data."}, std::pair{"model.tokenizer.", "data.tokenizer."}}) {
    if (key.starts_with(from)) return to + key.substr(std::string_view(from).size());
  }
  return key;
}

ImportedKey import_key(const SourceKey& source, const Values& values) {
  if (source.value == "?\?\?" || source.value == "\"?\?\?\"")
    return unsupported(source, "its value is missing (?\?\?): set it");
  if (const auto rule = rules().find(source.key); rule != rules().end()) {
    ImportedKey imported = rule->second({source.key, bare(source.value), source.where}, values);
    imported.source = source;
    return imported;
  }
  if (const NemoRow* row = row_of(source.key)) return by_row(source, *row);
  return classify(source, {moved(source.key), source.value});
}

}  // namespace

ImportedConfig import_nemo(const std::string& file, const std::vector<std::string>& overrides) {
  const ComposedKeys all =
      composed_yaml_keys(file, overrides, [](const std::string&) { return true; });
  Values values;
  for (const SourceKey& key : all.keys) values[key.key] = bare(key.value);
  ImportedConfig imported{
      .from = "nemo", .keys = all.defaults, .implied = {{"model_source", "megatron"}}};
  // NeMo's default, which its stock files leave out or have.
  if (values.contains("model.data.data_prefix"))
    imported.implied.push_back({"data.dataloader_type", "single"});
  for (const SourceKey& key : all.keys) imported.keys.push_back(import_key(key, values));
  return imported;
}

}  // namespace trellis::analysis
