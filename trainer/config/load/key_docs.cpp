#include "trainer/config/load/key_docs.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "trainer/config/load/load_run_config.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/config/names.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/config/reader/section_reader.h"

namespace trellis::trainer {
namespace {

constexpr const char* kMegatron = "{model_source: megatron, trainer: {devices: 1}}";
constexpr const char* kHf = "{model_source: hf, trainer: {devices: 1}}";
/// Configurations that make the readers ask for what the first two do not.
constexpr std::array kOthers = {
    "{model_source: megatron, trainer: {devices: 1, check_val_every_n_epoch: 1},"
    " exp_manager: {ema: {every_n_steps: 1}}, data: {data_prefix: [a], splits_string: '1,0,0'},"
    " model: {num_layers: 2, moe: {num_experts: 8}, rope_scaling: {type: linear},"
    " activations_checkpoint_granularity: full,"
    " optim: {name: adamw, sched: {name: CosineAnnealing, warmup_ratio: 0, constant_ratio: 0,"
    " hold_ratio: 0}}},"
    " precision: {type: manual}}",
    "{model_source: hf, trainer: {devices: 1}, model: {model_type: vit},"
    " model_alignment_strategy: {orpo: {beta: 0.1}, peft: {lora_rank: 4}}}",
    "{model_source: hf, trainer: {devices: 1}, model: {model_type: bert},"
    " model_alignment_strategy: {dpo: {}}}",
    "{model_source: hf, trainer: {devices: 1}, model_alignment_strategy: {sft: {}}}",
};

/// Keys whose readers look at the text itself.
struct Special {
  std::string_view key, type, default_value;
};
constexpr Special kSpecial[] = {
    {"trainer.devices", "integer ≥ 1, or auto (also -1): every logical core of a node", "required"},
    {"trainer.max_steps", "integer ≥ 1, or -1: max_epochs or max_time decides", "required"},
    {"trainer.max_epochs", "integer ≥ 1, or -1: max_steps or max_time decides", "-1"},
    {"trainer.max_time", "DD:HH:MM:SS, or a mapping such as {hours: 4}", "null"},
    {"trainer.val_check_interval", "integer: batches; with a point: part of an epoch", "null"},
    {"trainer.check_val_every_n_epoch", "integer ≥ 1, or null: steps count across epochs", "1"},
    {"trainer.limit_train_batches", "integer: batches; with a point: part of an epoch", "null"},
    {"trainer.limit_val_batches", "integer: batches; with a point: part of an epoch", "null"},
    {"trainer.limit_test_batches", "integer: batches; with a point: part of an epoch", "null"},
    {"trainer.track_grad_norm", "power > 0, inf, or -1: none", "-1"},
    {"trainer.lnc", "1 or 2 physical cores per logical core", "null: the instance's"},
    {"exp_manager.max_time_per_run", "as trainer.max_time", "null"},
    {"exp_manager.max_time", "as trainer.max_time", "null"},
    {"bucket_size_collectives", "integer ≥ 1, MB", "null: the default of each collective"},
    {"instance", "text: an instance type", "null: trn1.32xlarge"},
    {"data.data_prefix", "path, [path], [weight, path, …], or a mapping by split", "null"},
    {"data.splits_string", "three numbers such as 980,10,10", "null"},
    {"data.train_dir", "path of a file or folder", "null: the Python standard library's sources"},
    {"data.seq_length", "integer ≥ 1, equal to model.encoder_seq_length", "null"},
    {"model_source", "one of megatron or hf", "required"},
    {"model.num_kv_heads", "integer ≥ 1", "null: num_attention_heads"},
    {"model.max_position_embeddings", "integer ≥ 1", "null: encoder_seq_length"},
    {"model.vocab_size", "integer ≥ 1", "null: the tokenizer's"},
    {"model.model_config", "path of a config.json", "null"},
    {"model.rope_scaling.rope_type", "as type, its newer name", "default"},
    {"model.optim.sched.mode",
     "one of min or max (ReduceLROnPlateau); triangular, triangular2 or exp_range (CyclicLR)", ""},
    {"model.rope_theta", "number > 0 (model_source hf)", "10000"},
    {"model.position_freq_base", "number > 0 (model_source megatron)", "10000"},
    {"model.optim.betas", "[number in [0, 1), number in [0, 1)]", "by optimizer"},
    {"model.optim.eps", "number ≥ 0", "by optimizer"},
    {"model.optim.sched.name", "one of the schedules", "required in the section"},
    {"model_alignment_strategy.peft.target_modules",
     "[name, …], or a text: a regular expression for whole paths of modules; null: by kind of "
     "model",
     "[qkv_proj]"},
    {"precision.master_weights", "boolean, with type manual", "by type"},
    {"precision.fp32_grad_acc", "boolean, with type manual", "by type"},
    {"precision.parallel_layers_reduce_dtype", "bf16 or fp32", "by type"},
    {"precision.xla_use_bf16", "'0' or '1', with type manual", "by type"},
    {"precision.xla_downcast_bf16", "'0' or '1', with type manual", "by type"},
    {"precision.neuron_rt_stochastic_rounding_en", "'0' or '1', with type manual", "by type"},
};

using Reads = std::map<std::string, KeyRead>;

std::string argument_default(const OptimizerArgument& argument, double second) {
  if (argument.boolean) return argument.default_value != 0 ? "true" : "false";
  if (argument.name.ends_with("_0")) return fmt::format("[{}, {}]", argument.default_value, second);
  return fmt::format("{}", argument.default_value);
}

/// The arguments of one optimizer or schedule: its default joins those of the others.
void add_arguments(Reads& reads, const std::string& section, const std::string& owner,
                   const std::vector<OptimizerArgument>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const OptimizerArgument& argument = arguments[i];
    if (argument.name.ends_with("_1")) continue;
    const bool pair = argument.name.ends_with("_0");
    const std::string key =
        pair ? argument.name.substr(0, argument.name.size() - 2) : argument.name;
    const std::vector<std::string> words = words_of(owner, key);
    const std::string value =
        !words.empty() ? words[static_cast<std::size_t>(argument.default_value)]
                       : argument_default(argument, pair ? arguments[i + 1].default_value : 0);
    KeyRead& read = reads[section + "." + key];
    if (read.type.empty())
      read.type = !words.empty()     ? "one of " + join_names(words)
                  : argument.boolean ? "boolean"
                  : pair             ? "list of two numbers"
                                     : "number";
    read.default_value += (read.default_value.empty() ? "" : "; ") + owner + ": " + value;
  }
}

/// Every key that the readers know how to read.
Reads all_reads() {
  Reads reads;
  for (const Special& special : kSpecial)
    reads[std::string(special.key)] = {std::string(special.type),
                                       std::string(special.default_value)};
  for (const OptimizerInfo& info : optimizer_table())
    add_arguments(reads, "model.optim", info.name, info.arguments);
  for (const std::string& schedule : schedule_names())
    add_arguments(reads, "model.optim.sched", schedule, schedule_arguments(schedule));
  Reads megatron = read_keys_of(kMegatron);
  for (const auto& [key, read] : read_keys_of(kHf)) {
    const auto [other, only_hf] = megatron.emplace(key, read);
    if (!only_hf && other->second.default_value != read.default_value)
      other->second.default_value =
          "megatron: " + other->second.default_value + "; hf: " + read.default_value;
  }
  reads.merge(megatron);
  for (const char* probe : kOthers) reads.merge(read_keys_of(probe));
  return reads;
}

}  // namespace

std::string_view name_of(KeyUse use) {
  switch (use) {
    case KeyUse::kSupported: return "acts";
    case KeyUse::kSection: return "section";
    case KeyUse::kIgnored: return "no effect";
    case KeyUse::kLater: return "later";
    case KeyUse::kNeutral: return "refused";
  }
  return "";
}

std::vector<KeyDoc> document_keys() {
  const Reads reads = all_reads();
  std::vector<std::string> sections;
  for (const KeyGroup& group : key_groups()) {
    if (std::ranges::find(sections, group.section) == sections.end())
      sections.emplace_back(group.section);
  }
  std::vector<KeyDoc> docs;
  for (const std::string& section : sections) {
    for (const auto& [key, group] : known_keys_of(section)) {
      KeyDoc doc{section,
                 key,
                 group->use,
                 "",
                 "",
                 std::string(group->origin),
                 std::string(group->neutral),
                 std::string(group->why)};
      const auto read = reads.find(section.empty() ? key : section + "." + key);
      if (group->use == KeyUse::kSupported && read != reads.end()) {
        doc.type = read->second.type;
        doc.default_value = read->second.default_value;
      }
      docs.push_back(std::move(doc));
    }
  }
  return docs;
}

}  // namespace trellis::trainer
