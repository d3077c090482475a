#include <fmt/format.h>

#include "analysis/import/key_words.h"
#include "analysis/import/source_text.h"
#include "analysis/import/sources.h"
#include "analysis/import/toml_keys.h"
#include "analysis/import/torchtitan_rules.h"
#include "base/nearest.h"
#include "trainer/config/known_keys.h"

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
          "torchtitan 0.2.2 has no key of this name" +
              (nearest.empty() ? "" : "; did you mean " + nearest + "?")};
}

bool is_nothing(const std::string& value) { return value == "[]" || value == "\"\""; }

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
  const std::string name = "llama3_" + v.text("model.flavor", "debugmodel");
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

}  // namespace

ImportedConfig import_torchtitan(const std::string& file) {
  return import_torchtitan_text(read_source_text(file), file);
}

ImportedConfig import_torchtitan_text(const std::string& text, const std::string& name) {
  const std::vector<SourceKey> given = toml_keys(text, name);
  std::vector<SourceKey> keys = given;  // by the names of 0.2.2
  for (SourceKey& key : keys) {
    if (const std::string_view since = torchtitan_new_name(key.key); !since.empty())
      key.key = since;
  }
  const TorchtitanValues values(keys);
  ImportedConfig imported{.from = "torchtitan", .keys = {}, .implied = defaults(values)};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ImportedKey key = import_key(keys[i], values);
    if (given[i].key != keys[i].key)
      key.note += (key.note.empty() ? "" : "; ") + ("since called " + keys[i].key);
    key.source = given[i];
    imported.keys.push_back(std::move(key));
  }
  return imported;
}

}  // namespace trellis::analysis
