#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/key_words.h"
#include "analysis/import/source_text.h"
#include "analysis/import/sources.h"
#include "analysis/import/toml_keys.h"
#include "analysis/import/torchtitan_json.h"
#include "analysis/import/torchtitan_rules.h"
#include "base/error.h"
#include "base/nearest.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis {
namespace {

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made;
    for (const TorchtitanRow& row : torchtitan_rows())
      for_each_word(row.keys, [&](std::string_view word) { made.emplace_back(word); });
    return made;
  }();
  return all;
}

ImportedKey unknown(const SourceKey& source) {
  const std::string nearest = nearest_name(source.key, names());
  return {source,
          ImportStatus::kUnclassified,
          {},
          "torchtitan, up to 0.3.0, has no key of this name" +
              (nearest.empty() ? "" : "; did you mean " + nearest + "?")};
}

bool is_nothing(const std::string& value) {
  return value == "[]" || value == "{}" || value == "\"\"";
}

ImportedKey import_key(const SourceKey& source, const TorchtitanValues& values) {
  using enum TorchtitanRow::Does;
  const TorchtitanRow* row = torchtitan_row(source.key);
  if (row == nullptr) return unknown(source);
  const std::string note(row->note);
  switch (row->does) {
    case kMoves: return mapped(source, {{std::string(row->target), source.value}}, note);
    case kIgnored: return ignored(source, note);
    case kNeutral:
      return trainer::is_neutral(is_nothing(source.value) ? "null" : values.text(source.key),
                                 row->target)
                 ? at_default(source, note)
                 : unsupported(source, note);
    case kRule: break;
  }
  const TorchtitanRule rule = torchtitan_rule(source.key);
  return rule == nullptr ? unsupported(source, "this version has no rule for it")
                         : rule(source, values);
}

/// torchtitan's defaults, and what a run needs in addition.
std::vector<Setting> defaults(const TorchtitanValues& v) {
  const TorchtitanLayout layout = torchtitan_layout(v);
  const TorchtitanSchedule schedule = torchtitan_schedule(v);
  const std::string name =
      v.text("model.name", "llama3") + "_" + v.text("model.flavor", "debugmodel");
  const auto number = [](std::int64_t value) { return fmt::format("{}", value); };
  std::vector<Setting> settings = {
      {"name", name},
      {"model_source", "megatron"},
      {"trainer.devices", number(layout.devices)},
      {"trainer.num_nodes", number(layout.nodes)},
      {"trainer.max_epochs", "-1"},
      {"trainer.max_steps", "10000"},
      {"trainer.log_every_n_steps", "10"},
      {"trainer.num_sanity_val_steps", "0"},
      {"trainer.limit_val_batches", "0"},
      {"trainer.gradient_clip_val", "1.0"},
      {"exp_manager.name", name},
      {"exp_manager.exp_dir", "./outputs"},
      {"exp_manager.create_tensorboard_logger", "false"},
      {"exp_manager.create_checkpoint_callback", "false"},
      {"distributed_strategy.tensor_model_parallel_size", "1"},
      {"distributed_strategy.pipeline_model_parallel_size", "1"},
      // Sharded states, where torchtitan shards parameters too.
      {"distributed_strategy.zero1", "true"},
      {"data.micro_batch_size", number(layout.micro_batch)},
      {"data.global_batch_size", number(layout.global_batch)},
      {"model.encoder_seq_length", "2048"},
      {"model.max_position_embeddings", "${.encoder_seq_length}"},
      {"model.layernorm_epsilon", "1e-5"},
      {"model.init_method_std", "0.02"},
      {"model.normalization", "rmsnorm"},
      {"model.activation", "swiglu"},
      {"model.position_embedding_type", "rope"},
      {"model.has_bias", "false"},
      {"model.share_embeddings_and_output_weights", "false"},
      {"model.hidden_dropout", "0"},
      {"model.attention_dropout", "0"},
      {"model.fusions.flash_attention", layout.cp > 1 ? "false" : "true"},
      {"model.optim.name", "adamw"},
      {"model.optim.lr", "8e-4"},
      {"model.optim.weight_decay", "0.1"},
      {"model.optim.eps", "1e-8"},
      {"model.optim.betas", "[0.9, 0.95]"},
      {"model.optim.sched.name", schedule.name.empty() ? "CosineAnnealing" : schedule.name},
      {"model.optim.sched.warmup_steps", "200"},
      {"model.optim.sched.min_lr", schedule.min_lr},
      {"precision.type", "mixed_precision"},
  };
  if (!v.has("model.flavor") && torchtitan_flavor(v) != nullptr) {
    const std::vector<Setting> model = torchtitan_model(*torchtitan_flavor(v));
    settings.insert(settings.end(), model.begin(), model.end());
  }
  return settings;
}

/// `values`: what rules read in addition. `renamed`: before a key's other name.
ImportedConfig import_keys(const std::vector<TorchtitanKey>& all, std::vector<SourceKey> values,
                           const std::string& renamed) {
  for (const TorchtitanKey& each : all) {
    if (each.key.value != "null") values.push_back(each.key);
  }
  const TorchtitanValues known(values);
  ImportedConfig imported{.from = "torchtitan", .keys = {}, .implied = defaults(known)};
  for (const TorchtitanKey& each : all) {
    ImportedKey key = import_key(each.key, known);
    if (each.given.key != each.key.key)
      key.note += (key.note.empty() ? "" : "; ") + (renamed + each.key.key);
    key.source = each.given;
    imported.keys.push_back(std::move(key));
  }
  return imported;
}

/// JSON has every key, and null for what is not set.
ImportedConfig import_json_keys(TorchtitanJson read) {
  std::vector<TorchtitanKey> set, unset;
  for (TorchtitanKey& each : read.keys) {
    each.key.key = torchtitan_name(each.key.key);
    const bool decides = each.key.key == "parallelism.context_parallel_load_balancer" ||
                         torchtitan_row(each.key.key) == nullptr;
    (each.key.value == "null" && !decides ? unset : set).push_back(std::move(each));
  }
  if (std::ranges::none_of(set, [](const TorchtitanKey& each) {
        return each.key.key == "parallelism.context_parallel_load_balancer" &&
               each.key.value != "null";
      }))
    read.values.push_back({"parallelism.context_parallel_load_balancer", "null", ""});
  ImportedConfig imported = import_keys(set, std::move(read.values), "up to 0.2.2 called ");
  for (const TorchtitanKey& each : unset)
    imported.keys.push_back(at_default(each.given, "nothing is set"));
  std::ranges::move(read.model, std::back_inserter(imported.keys));
  return imported;
}

}  // namespace

ImportedConfig import_torchtitan(const std::string& file) {
  return import_torchtitan_text(read_source_text(file), file);
}

ImportedConfig import_torchtitan_text(const std::string& text, const std::string& name) {
  const std::size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string::npos && text[first] == '{')
    return import_json_keys(read_torchtitan_json(text, name));
  if (starts_torchtitan(text)) throw ConfigError(name + ": " + torchtitan_advice());
  const std::vector<SourceKey> given = toml_keys(text, name);
  std::vector<TorchtitanKey> keys;
  for (const SourceKey& key : given)
    keys.push_back({key, {torchtitan_name(key.key), key.value, key.where}});
  return import_keys(keys, {}, "since called ");
}

}  // namespace trellis::analysis
