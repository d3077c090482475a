#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "analysis/export/come_back.h"
#include "analysis/import/key_words.h"
#include "analysis/import/sources.h"
#include "analysis/import/torchtitan_rules.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

using Settings = ResolvedSettings;
/// A value as TOML; nullopt: the key is not written.
using Value = std::optional<std::string>;

/// A basic string of TOML, whose escapes are JSON's.
std::string quoted(const std::string& text) { return trainer::YamlWriter::quoted(text); }
Value text_of(const std::string& text) { return text.empty() ? Value() : Value(quoted(text)); }
Value integer(std::int64_t value) { return fmt::format("{}", value); }
Value boolean(bool value) { return value ? "true" : "false"; }
/// With a point or an exponent, which TOML's floats have.
Value number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}
Value key_integer(const Settings& s, std::string_view key) {
  const auto value = s.integer(key);
  return value ? integer(*value) : std::nullopt;
}

const TorchtitanFlavor* flavor_of(const Settings& s) {
  for (const TorchtitanFlavor& flavor : torchtitan_flavors()) {
    const auto wanted = torchtitan_model(flavor);
    const bool equal = std::ranges::all_of(wanted, [&](const Setting& setting) {
      return setting.key == "model.make_vocab_size_divisible_by" ||
             s.is(setting.key, setting.value);
    });
    if (equal) return &flavor;
  }
  return nullptr;
}

Value name(const Settings&) { return quoted("llama3"); }
Value flavor(const Settings& s) {
  const TorchtitanFlavor* found = flavor_of(s);
  return quoted(found != nullptr ? std::string(found->name) : s.config().name);
}
Value tokenizer(const Settings& s) {
  return s.is("data.tokenizer.library", "huggingface") ? text_of(s.text("data.tokenizer.type"))
                                                       : std::nullopt;
}

Value optimizer(const Settings& s) {
  const std::string found = s.text("model.optim.name");
  if (found == "adam") return quoted("Adam");
  return found.starts_with("adamw") ? Value(quoted("AdamW")) : std::nullopt;
}
Value beta1(const Settings& s) { return number(s.config().model.optim.beta1.value()); }
Value beta2(const Settings& s) { return number(s.config().model.optim.beta2.value()); }

std::string schedule(const Settings& s) { return s.text("model.optim.sched.name"); }
bool holds(const Settings& s) { return schedule(s).starts_with("WarmupHoldAnneal"); }
Value decay_type(const Settings& s) {
  static const std::map<std::string, std::string> kTypes = {
      {"CosineAnnealing", "cosine"},
      {"WarmupAnnealing", "linear"},
      {"LinearAnnealingWithWarmUp", "linear"},
      {"WarmupHoldAnnealLinear", "linear"},
      {"WarmupHoldAnnealOneMinusSquareRoot", "sqrt"}};
  const auto found = kTypes.find(schedule(s));
  return found == kTypes.end() ? std::nullopt : Value(quoted(found->second));
}
Value decay_ratio(const Settings& s) {
  const auto steps = s.integer("trainer.max_steps").value_or(-1);
  if (!holds(s) || steps < 1) return std::nullopt;
  const auto falls = steps - s.integer("model.optim.sched.warmup_steps").value_or(0) -
                     s.integer("model.optim.sched.hold_steps").value_or(0);
  return number(static_cast<double>(std::max<std::int64_t>(0, falls)) / static_cast<double>(steps));
}
Value least_rate(const Settings& s) {
  const double rate = s.config().model.optim.lr;
  return rate > 0 ? number(s.number("model.optim.sched.min_lr").value_or(0) / rate) : std::nullopt;
}

Value data_path(const Settings& s) { return text_of(s.text("data.train_dir")); }
Value local_batch(const Settings& s) {
  const auto& data = s.config().data;
  return integer(s.config().pp() > 1 ? data.global_batch_size / s.config().dp()
                                     : data.micro_batch_size);
}
Value global_batch(const Settings& s) { return integer(s.config().data.global_batch_size); }
Value dtype(const Settings&) { return quoted("float32"); }
Value computed_in(const Settings& s) {
  return quoted(s.is("precision.type", "fp32|fp64") ? "float32" : "bfloat16");
}

bool shards(const Settings& s) { return s.config().distributed_strategy.zero1; }
int copies(const Settings& s) {
  return shards(s) ? s.config().distributed_strategy.data_parallel_replicate_size : s.config().dp();
}
Value replicas(const Settings& s) { return integer(copies(s)); }
Value shard_degree(const Settings& s) { return integer(s.config().dp() / copies(s)); }
/// With ZeRO-1 parameters stay whole between the passes: of FSDP's forms the nearest one.
Value reshard(const Settings& s) {
  if (s.config().distributed_strategy.fsdp) return quoted("always");
  return shards(s) ? Value(quoted("never")) : std::nullopt;
}
Value tensor_parallel(const Settings& s) { return integer(s.config().tp()); }
Value context_parallel(const Settings& s) { return integer(s.config().cp()); }
Value load_balancer(const Settings& s) {
  return s.config().cp() > 1 ? Value(quoted("headtail")) : std::nullopt;
}
Value rotation(const Settings& s) {
  return s.config().cp() > 1 ? Value(quoted("alltoall")) : std::nullopt;
}
bool staged(const Settings& s) { return s.config().pp() > 1; }
Value fewer_layers(const Settings& s) { return staged(s) ? integer(0) : std::nullopt; }
Value pipeline_schedule(const Settings& s) {
  if (!staged(s)) return std::nullopt;
  return quoted(s.config().vpp() > 1 ? "Interleaved1F1B" : "1F1B");
}
Value stage_layers(const Settings& s) {
  const int stages = s.config().pp() * s.config().vpp();
  if (!staged(s) || s.config().vpp() == 1) return std::nullopt;
  return integer((s.config().model.num_layers + stages - 1) / stages);
}
Value micro_batch(const Settings& s) {
  return staged(s) ? integer(s.config().data.micro_batch_size) : std::nullopt;
}

const trainer::CheckpointSection& saved(const Settings& s) {
  return s.config().exp_manager.checkpoints;
}
Value saves(const Settings& s) { return boolean(saved(s).create); }
Value folder(const Settings& s) {
  const std::string above = s.config().exp_manager.exp_dir + "/";
  const std::string& path = saved(s).dirpath;
  return saved(s).create && path.starts_with(above) ? Value(quoted(path.substr(above.size())))
                                                    : std::nullopt;
}
Value save_interval(const Settings& s) {
  return saved(s).create && saved(s).every_n_train_steps ? integer(*saved(s).every_n_train_steps)
                                                         : std::nullopt;
}
/// torchtitan refuses 1: the newest may not be complete yet.
Value kept(const Settings& s) {
  const int count = saved(s).save_top_k;
  return saved(s).create ? integer(count < 0 ? 0 : std::max(count, 2)) : std::nullopt;
}
Value async(const Settings& s) {
  return saved(s).create ? Value(quoted(saved(s).async ? "async" : "disabled")) : std::nullopt;
}
Value initial_load(const Settings& s) { return text_of(saved(s).resume_from_checkpoint); }
Value weights_only(const Settings& s) {
  return initial_load(s) ? boolean(s.config().model.weight_init_only) : std::nullopt;
}

Value recompute(const Settings& s) {
  const std::string granularity = s.text("model.activations_checkpoint_granularity");
  return quoted(granularity.empty() ? "none" : granularity);
}

bool validates(const Settings& s) {
  return s.integer("trainer.val_check_interval") &&
         s.is("trainer.check_val_every_n_epoch", "null") &&
         s.number("trainer.limit_val_batches").value_or(1) > 0;
}
Value validation(const Settings& s) { return boolean(validates(s)); }
Value validation_interval(const Settings& s) {
  return validates(s) ? key_integer(s, "trainer.val_check_interval") : std::nullopt;
}
Value validation_steps(const Settings& s) {
  return validates(s) ? key_integer(s, "trainer.limit_val_batches") : std::nullopt;
}
Value validation_path(const Settings& s) {
  return validates(s) ? text_of(s.text("data.val_dir")) : std::nullopt;
}
Value validation_length(const Settings& s) {
  return validates(s) ? key_integer(s, "model.encoder_seq_length") : std::nullopt;
}

/// The other direction of a rule of the import, and the keys that it decides.
struct Word {
  Value (*value)(const Settings& settings);
  std::string_view keys;
};
using Words = std::map<std::string_view, Word>;

void add_training(Words& words) {
  words.insert({
      {"model.name", {name, ""}},
      {"model.flavor", {flavor, ""}},
      {"model.hf_assets_path", {tokenizer, "data.tokenizer.library data.tokenizer.type"}},
      {"optimizer.name", {optimizer, "model.optim.name"}},
      {"optimizer.beta1", {beta1, "model.optim.betas"}},
      {"optimizer.beta2", {beta2, ""}},
      {"lr_scheduler.decay_type", {decay_type, "model.optim.sched.name"}},
      {"lr_scheduler.decay_ratio", {decay_ratio, "model.optim.sched.hold_steps"}},
      {"lr_scheduler.min_lr_factor", {least_rate, "model.optim.sched.min_lr"}},
      {"training.dataset_path", {data_path, "data.train_dir"}},
      {"training.local_batch_size", {local_batch, "data.micro_batch_size"}},
      {"training.global_batch_size", {global_batch, "data.global_batch_size"}},
      {"training.dtype", {dtype, "precision.type"}},
      {"training.mixed_precision_param", {computed_in, ""}},
      {"checkpoint.enable",
       {saves,
        "exp_manager.create_checkpoint_callback exp_manager.resume_if_exists "
        "exp_manager.resume_ignore_no_checkpoint"}},
      {"checkpoint.folder", {folder, "exp_manager.checkpoint_callback_params.dirpath"}},
      {"checkpoint.interval",
       {save_interval, "exp_manager.checkpoint_callback_params.every_n_train_steps"}},
      {"checkpoint.keep_latest_k",
       {kept,
        "exp_manager.checkpoint_callback_params.save_top_k "
        "exp_manager.checkpoint_callback_params.monitor "
        "exp_manager.checkpoint_callback_params.mode"}},
      {"checkpoint.async_mode", {async, "exp_manager.async_checkpointing"}},
      {"checkpoint.initial_load_path", {initial_load, "exp_manager.resume_from_checkpoint"}},
      {"checkpoint.initial_load_model_only", {weights_only, "model.weight_init_only"}},
      {"activation_checkpoint.mode", {recompute, "model.activations_checkpoint_granularity"}},
      {"validation.enable", {validation, "trainer.check_val_every_n_epoch"}},
      {"validation.freq", {validation_interval, "trainer.val_check_interval"}},
      {"validation.steps", {validation_steps, "trainer.limit_val_batches"}},
      {"validation.dataset_path", {validation_path, "data.val_dir"}},
      {"validation.seq_len", {validation_length, ""}},
  });
}

void add_parallelism(Words& words) {
  words.insert({
      {"parallelism.data_parallel_replicate_degree",
       {replicas,
        "trainer.devices trainer.num_nodes distributed_strategy.data_parallel_replicate_size"}},
      {"parallelism.data_parallel_shard_degree",
       {shard_degree, "distributed_strategy.zero1 distributed_strategy.fsdp"}},
      {"parallelism.fsdp_reshard_after_forward", {reshard, ""}},
      {"parallelism.tensor_parallel_degree",
       {tensor_parallel,
        "distributed_strategy.tensor_model_parallel_size "
        "distributed_strategy.sequence_parallel"}},
      {"parallelism.context_parallel_degree",
       {context_parallel,
        "distributed_strategy.context_parallel_size "
        "distributed_strategy.context_parallel_order model.fusions.ring_attention"}},
      {"parallelism.context_parallel_load_balancer", {load_balancer, ""}},
      {"parallelism.context_parallel_rotate_method", {rotation, ""}},
      {"parallelism.pipeline_parallel_first_stage_less_layers", {fewer_layers, ""}},
      {"parallelism.pipeline_parallel_last_stage_less_layers", {fewer_layers, ""}},
      {"parallelism.pipeline_parallel_schedule", {pipeline_schedule, ""}},
      {"parallelism.pipeline_parallel_layers_per_stage",
       {stage_layers, "distributed_strategy.virtual_pipeline_model_parallel_size"}},
      {"parallelism.pipeline_parallel_microbatch_size", {micro_batch, ""}},
  });
}

const Words& words() {
  static const Words all = [] {
    Words made;
    add_training(made);
    add_parallelism(made);
    return made;
  }();
  return all;
}

Value moved(const TorchtitanRow& row, const Settings& s) {
  using enum TorchtitanRow::Type;
  switch (row.type) {
    case kInteger: return key_integer(s, row.target);
    case kText: return text_of(s.text(row.target));
    case kBoolean: return boolean(s.is(row.target, "true"));
    case kFloat: {
      const auto value = s.number(row.target);
      return value ? number(*value) : std::nullopt;
    }
  }
  return std::nullopt;
}

/// Sections in the order of the table.
std::string toml(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> sections;
  for (const TorchtitanRow& row : torchtitan_rows()) {
    for_each_word(row.keys, [&](std::string_view key) {
      const auto word = words().find(key);
      const Value value = word != words().end()                     ? word->second.value(settings)
                          : row.does == TorchtitanRow::Does::kMoves ? moved(row, settings)
                                                                    : std::nullopt;
      if (!value) return;
      const std::size_t dot = key.rfind('.');
      const std::string section(key.substr(0, dot));
      auto at = std::ranges::find(sections, section, &std::pair<std::string, std::string>::first);
      if (at == sections.end()) at = sections.insert(sections.end(), {section, ""});
      at->second += fmt::format("{} = {}\n", key.substr(dot + 1), *value);
    });
  }
  std::string text;
  for (const auto& [section, lines] : sections)
    text += fmt::format("{}[{}]\n{}", text.empty() ? "" : "\n", section, lines);
  return text;
}

bool names_a_size(std::string_view key) {
  static const std::vector<Setting> kSizes = torchtitan_model(torchtitan_flavors().front());
  return std::ranges::find(kSizes, key, &Setting::key) != kSizes.end();
}

bool has_key(std::string_view key) {
  const auto moves = [&](const TorchtitanRow& row) {
    return row.does == TorchtitanRow::Does::kMoves && row.target == key;
  };
  if (std::ranges::any_of(torchtitan_rows(), moves)) return true;
  for (const auto& [name, word] : words()) {
    bool decides = false;
    for_each_word(word.keys, [&](std::string_view each) { decides |= each == key; });
    if (decides) return true;
  }
  return false;
}

std::string why(std::string_view key) {
  if (names_a_size(key))
    return "torchtitan keeps sizes in its code: add a flavor to its llama3 with them";
  if (key == "model.activations_checkpoint_granularity")
    return "torchtitan chooses operators or every n-th layer, not modules";
  if (key == "exp_manager.resume_from_checkpoint")
    return "`trellis checkpoint convert` and `export-hf` write what torchtitan reads";
  if (key == "exp_manager.checkpoint_callback_params.save_top_k")
    return "torchtitan keeps the newest, and at least two";
  return "";
}

}  // namespace

ExportedConfig export_torchtitan(const std::string& file,
                                 const std::vector<std::string>& overrides) {
  const ResolvedSettings settings = ResolvedSettings::of_file(file, overrides);
  ExportedConfig exported{.text = toml(settings), .left_out = {}};
  const bool known = flavor_of(settings) != nullptr;
  exported.left_out = left_out(
      settings, import_torchtitan_text(exported.text, "result"),
      {.program = "torchtitan",
       .has = [&](std::string_view key) { return has_key(key) || (known && names_a_size(key)); },
       .why = why,
       .form = {"model_source", "model.model_config",
                "exp_manager.checkpoint_callback_params.dirpath"}});
  return exported;
}

}  // namespace trellis::analysis
