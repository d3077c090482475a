#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"
#include "trainer/config/sections/sections.h"

namespace trellis::analysis::hugging_face {
namespace {

using nlohmann::json;

const std::string kCheckpoints = "exp_manager.checkpoint_callback_params.";

/// One argument, whose value is not null.
struct Argument {
  const Context& context;
  const std::string& name;
  const json& value;
  SourceKey source;

  [[nodiscard]] const Arguments& args() const { return context.args; }
  [[nodiscard]] ImportedKey map(const std::vector<Setting>& settings,
                                const std::string& note = "") const {
    return mapped(source, settings, note);
  }
  [[nodiscard]] ImportedKey ignore(const std::string& why) const { return ignored(source, why); }
  [[nodiscard]] ImportedKey same(const std::string& why) const { return at_default(source, why); }
  [[nodiscard]] ImportedKey refuse(const std::string& advice) const {
    return unsupported(source, advice);
  }
};
using Handler = ImportedKey (*)(const Argument& argument);

std::string integer_text(std::int64_t value) { return fmt::format("{}", value); }
const char* boolean_text(bool value) { return value ? "true" : "false"; }

std::string strategy(const Arguments& args, std::string_view names, const char* otherwise) {
  const std::string name = args.first_of(names);
  return name.empty() ? otherwise : args.text(name).value_or(otherwise);
}
std::string eval_strategy(const Arguments& args) {
  return strategy(args, "eval_strategy evaluation_strategy", "no");
}
std::string save_strategy(const Arguments& args) {
  return strategy(args, "save_strategy", "steps");
}

/// Steps, where a number below 1 is a part of all: nullopt when it cannot be known, or is none.
std::optional<std::int64_t> interval(const Context& context, const std::string& name,
                                     double otherwise) {
  const double value = context.args.number(name).value_or(otherwise);
  if (value >= 1 && value <= 1e15) return static_cast<std::int64_t>(std::floor(value));
  if (!(value > 0 && value < 1) || context.max_steps < 1) return std::nullopt;
  return static_cast<std::int64_t>(std::ceil(value * static_cast<double>(context.max_steps)));
}

constexpr const char* kNoInterval =
    "a part of all steps needs max_steps; write a number of steps of at least 1";

ImportedKey parallel_batch(const Argument& a) {
  const Layout& layout = a.context.layout;
  if (!layout.problem.empty()) return a.refuse(layout.problem);
  return a.map({{"data.micro_batch_size", integer_text(layout.micro_batch)}},
               layout.pp > 1 ? "a micro-batch of the pipeline" : "");
}

ImportedKey accumulation(const Argument& a) {
  if (!a.context.layout.problem.empty()) return a.refuse(a.context.layout.problem);
  return a.map({{"data.global_batch_size", integer_text(a.context.layout.global_batch)}},
               a.context.layout.how);
}

ImportedKey pipeline_cuts(const Argument& a) {
  const Layout& layout = a.context.layout;
  if (layout.pp == 1) return a.ignore("there is one pipeline stage");
  if (!layout.problem.empty()) return a.refuse(layout.problem);
  return a.map({{"data.micro_batch_size", integer_text(layout.micro_batch)}}, layout.how);
}

ImportedKey world(const Argument& a) {
  const Layout& layout = a.context.layout;
  if (!layout.problem.empty()) return a.refuse(layout.problem);
  const std::string chosen = a.args().first_of("world_size num_processes");
  if (a.name != chosen && a.args().positive(a.name) != a.args().positive(chosen))
    return a.refuse("contradicts " + chosen);
  return a.map({{"trainer.devices", integer_text(layout.devices)},
                {"trainer.num_nodes", integer_text(layout.nodes)}},
               "ranks of all nodes");
}

ImportedKey machines(const Argument& a) {
  if (!a.context.layout.problem.empty()) return a.refuse(a.context.layout.problem);
  return a.map({{"trainer.num_nodes", integer_text(a.context.layout.nodes)}});
}

ImportedKey sequence_parallel(const Argument& a) {
  const bool given = a.args().boolean(a.name).value_or(false);
  const bool on = a.name == "disable_sequence_parallel" ? !given : given;
  if (a.context.layout.tp == 1) return a.same("there is one tensor-parallel rank");
  return a.map({{"distributed_strategy.sequence_parallel", boolean_text(on)}});
}

ImportedKey kv_copies(const Argument& a) {
  const std::int64_t copies = a.args().positive(a.name).value_or(1);
  std::vector<Setting> settings = {{"distributed_strategy.kv_replicator", integer_text(copies)}};
  if (copies > 1) settings.push_back({"model.qkv_linear", "true"});
  return a.map(settings);
}

ImportedKey ranks_per_step(const Argument& a) {
  const std::int64_t devices = a.context.layout.devices;
  const std::int64_t given = a.args().integer(a.name).value_or(-1);
  return a.map({{"trainer.sequential_move_factor",
                 integer_text(given < 1 ? devices : std::min(given, devices))}});
}

ImportedKey max_steps(const Argument& a) {
  const auto given = a.args().integer(a.name);
  return a.map({{"trainer.max_steps", integer_text(a.context.max_steps)}},
               given && *given > 0 ? "" : "num_train_epochs decides");
}

ImportedKey epochs(const Argument& a) {
  const double epochs = a.args().number(a.name).value_or(3);
  if (a.context.max_steps > 0) return a.ignore("max_steps replaces it");
  if (epochs != std::floor(epochs) || epochs < 1 || epochs > INT32_MAX)
    return a.refuse("a run lasts for whole epochs; write max_steps");
  return a.map({{"trainer.max_epochs", yaml_number(epochs)}});
}

ImportedKey grad_norm(const Argument& a) {
  const double norm = a.args().number(a.name).value_or(0);  // null clips nothing
  return a.map({{"trainer.gradient_clip_val", norm > 0 ? yaml_number(norm) : "null"}});
}

ImportedKey optimizer(const Argument& a) {
  const Optimizer& optimizer = a.context.optimizer;
  return optimizer.problem.empty() ? a.map(optimizer.settings) : a.refuse(optimizer.problem);
}

ImportedKey betas(const Argument& a) {
  if (!a.context.optimizer.has_betas) return a.ignore("the optimizer has no betas");
  return a.map(
      {{"model.optim.betas", fmt::format("[{}, {}]", a.args().number("adam_beta1").value_or(0.9),
                                         a.args().number("adam_beta2").value_or(0.999))}});
}

ImportedKey epsilon(const Argument& a) {
  if (!a.context.optimizer.has_eps)
    return a.ignore("transformers gives it to AdamW only, and the optimizer keeps its own");
  return a.map({{"model.optim.eps", yaml_number(a.args().number(a.name).value_or(1e-8))}});
}

ImportedKey schedule(const Argument& a) {
  const Schedule& schedule = a.context.schedule;
  if (!schedule.problem.empty()) return a.refuse(schedule.problem);
  return schedule.type.empty() ? a.same(schedule.note) : a.map(schedule.type, schedule.note);
}

ImportedKey schedule_kwargs(const Argument& a) {
  const Schedule& schedule = a.context.schedule;
  if (is_neutral_value(a.value, "null") && schedule.kwargs.empty())
    return a.same("the schedule's own defaults");
  if (!schedule.kwargs_problem.empty()) return a.refuse(schedule.kwargs_problem);
  return schedule.kwargs.empty() ? a.same("the schedule's own defaults") : a.map(schedule.kwargs);
}

ImportedKey warmup(const Argument& a) {
  const Schedule& schedule = a.context.schedule;
  if (a.args().number(a.name).value_or(0) <= 0) return a.same("no warm-up");
  if (!schedule.warmup_ignored.empty()) return a.ignore(schedule.warmup_ignored);
  const double steps = a.args().number("warmup_steps").value_or(0);
  if (a.name == "warmup_ratio" && steps > 0) return a.ignore("warmup_steps replaces it");
  return a.map(schedule.warmup);
}

ImportedKey logging_steps(const Argument& a) {
  if (strategy(a.args(), "logging_strategy", "steps") != "steps")
    return a.ignore("logging_strategy is not steps");
  const auto steps = interval(a.context, a.name, 500);
  if (!steps) return a.refuse(kNoInterval);
  return a.map({{"trainer.log_every_n_steps", integer_text(*steps)}});
}

ImportedKey logging_strategy(const Argument& a) {
  const std::string given = a.args().text(a.name).value_or("steps");
  if (given == "steps") return a.same("logging_steps decides");
  return a.ignore("metrics are always logged, every trainer.log_every_n_steps steps");
}

ImportedKey saving(const Argument& a) {
  const std::string given = save_strategy(a.args());
  std::vector<Setting> settings = {
      {"exp_manager.create_checkpoint_callback", boolean_text(given != "no")}};
  if (given == "epoch") settings.push_back({kCheckpoints + "every_n_epochs", "1"});
  if (given == "no" || given == "steps" || given == "epoch") return a.map(settings);
  if (given != "best") return a.refuse("expected no, steps, epoch or best");
  const std::string metric = a.args().text("metric_for_best_model").value_or("loss");
  if (metric != "loss" && metric != "eval_loss")
    return a.refuse("validation computes the loss only; set metric_for_best_model to loss");
  settings.push_back({kCheckpoints + "monitor", "val_loss"});
  settings.push_back({kCheckpoints + "mode",
                      a.args().boolean("greater_is_better").value_or(false) ? "max" : "min"});
  settings.push_back({kCheckpoints + "save_top_k", "1"});
  return a.map(settings, "the checkpoint of the smallest validation loss");
}

ImportedKey save_steps(const Argument& a) {
  if (save_strategy(a.args()) != "steps") return a.ignore("save_strategy is not steps");
  const auto steps = interval(a.context, a.name, 500);
  if (!steps) return a.refuse(kNoInterval);
  return a.map({{kCheckpoints + "every_n_train_steps", integer_text(*steps)}});
}

/// The newest are kept: those of the largest step.
ImportedKey save_limit(const Argument& a) {
  const std::string given = save_strategy(a.args());
  if (given == "no") return a.ignore("save_strategy is no");
  if (given == "best") return a.ignore("save_strategy best keeps one");
  const std::int64_t limit = a.value.is_null() ? -1 : a.args().integer(a.name).value_or(-1);
  return a.map({{kCheckpoints + "monitor", "step"},
                {kCheckpoints + "mode", "max"},
                {kCheckpoints + "save_top_k", integer_text(limit < 1 ? -1 : limit)}},
               limit < 1 ? "all are kept" : "the newest are kept");
}

ImportedKey best_metric(const Argument& a) {
  if (save_strategy(a.args()) == "best") return a.same("save_strategy best says what it means");
  return a.ignore("it belongs to save_strategy best and load_best_model_at_end");
}

ImportedKey validation(const Argument& a) {
  const std::string given = eval_strategy(a.args());
  if (given == "no") return a.map({{"trainer.limit_val_batches", "0"}}, "no validation");
  if (given == "epoch")
    return a.map({{"trainer.val_check_interval", "1.0"}, {"trainer.check_val_every_n_epoch", "1"}});
  if (given != "steps") return a.refuse("expected no, steps or epoch");
  const bool own = a.args().number("eval_steps").value_or(0) > 0;
  const auto steps = interval(a.context, own ? "eval_steps" : "logging_steps", 500);
  if (!steps) return a.refuse(kNoInterval);
  return a.map({{"trainer.val_check_interval", integer_text(*steps)},
                {"trainer.check_val_every_n_epoch", "null"}},
               own ? "" : "logging_steps, as transformers does without eval_steps");
}

ImportedKey eval_steps(const Argument& a) {
  if (eval_strategy(a.args()) != "steps") return a.ignore("eval_strategy is not steps");
  if (a.args().number(a.name).value_or(0) == 0) return a.same("logging_steps replaces it");
  const auto steps = interval(a.context, a.name, 500);
  if (!steps) return a.refuse(kNoInterval);
  return a.map({{"trainer.val_check_interval", integer_text(*steps)}});
}

ImportedKey eval_on_start(const Argument& a) {
  const bool all = a.args().boolean(a.name).value_or(false);
  return a.map({{"trainer.num_sanity_val_steps", all ? "-1" : "0"}});
}

ImportedKey seed(const Argument& a) {
  const std::int64_t seed = a.args().integer(a.name).value_or(42);
  if (seed < 1) return a.refuse("a seed is at least 1; choose another one");
  return a.map({{"seed", integer_text(seed)}});
}

ImportedKey data_seed(const Argument& a) {
  if (a.args().integer(a.name) == a.args().integer("seed").value_or(42))
    return a.same("one seed draws weights and the order of samples");
  return a.refuse("one seed draws weights and the order of samples; set it to null");
}

ImportedKey precision(const Argument& a) {
  const bool bf16 = a.args().boolean("bf16").value_or(false);
  if (!bf16 && a.name != "bf16") return a.ignore("bf16 is false");
  return a.map(precision_of(a.context), bf16 ? "" : "weights and computations are fp32");
}

/// Newer transformers have two names of it.
ImportedKey checkpointing(const Argument& a) {
  const bool on = a.args().boolean("gradient_checkpointing").value_or(false) ||
                  a.args().boolean("activation_checkpointing").value_or(false);
  return a.map({{"model.activations_checkpoint_granularity", on ? "full" : "null"}},
               on ? "each layer is recomputed" : "");
}

ImportedKey output_dir(const Argument& a) {
  const std::string folder = a.args().text(a.name).value_or("");
  if (folder.empty()) return a.same("exp_manager.exp_dir's default");
  return a.map({{"exp_manager.exp_dir", yaml_text(folder)}},
               "each run has its own folder below it");
}

/// Older transformers name a run by its output folder.
ImportedKey run_name(const Argument& a) {
  const std::string name = a.args().text(a.name).value_or("");
  if (name.empty()) return a.same("the model's type names the run");
  if (name == a.args().text("output_dir")) return a.same("the name of output_dir");
  if (!trainer::why_no_folder_below(name).empty())
    return a.ignore("it names no folder below exp_manager.exp_dir; the model's type names the run");
  return a.map({{"exp_manager.name", yaml_text(name)}});
}

ImportedKey report_to(const Argument& a) {
  std::vector<std::string> names;
  for (const json& each : a.value.is_array() ? a.value : json::array({a.value})) {
    if (each.is_string()) names.push_back(each.get<std::string>());
  }
  std::vector<Setting> settings;
  bool tensorboard = false;
  for (const std::string& name : names) {
    const bool ours = name == "tensorboard" || name == "all";
    tensorboard = tensorboard || ours;
    if (!ours && name != "none" && !name.empty())
      return a.refuse(
          fmt::format("metrics go to TensorBoard and metrics.jsonl, not to {}; set it "
                      "to tensorboard",
                      name));
  }
  return a.map({{"exp_manager.create_tensorboard_logger", boolean_text(tensorboard)}});
}

/// `true` names the newest of the run itself.
ImportedKey resume(const Argument& a) {
  if (a.value.is_boolean())
    return a.map({{"exp_manager.resume_if_exists", boolean_text(a.value.get<bool>())}});
  return a.map(
      {{"exp_manager.resume_from_checkpoint", yaml_text(a.args().text(a.name).value_or(""))}},
      "expected in the form of this program: `trellis checkpoint import-hf` makes it of "
      "a Hugging Face checkpoint");
}

ImportedKey accelerator(const Argument& a) {
  const auto split = a.value.is_object() ? a.value.find("split_batches") : a.value.end();
  if (a.value.is_object() && split != a.value.end() && *split == true)
    return a.refuse("a batch size is that of one rank; set split_batches to false");
  return a.ignore("each rank reads its own part of the data");
}

constexpr const char* kUnits = "the units of distributed_strategy.fsdp are layers";

/// transformers takes a flag, words in one text, or a list of words.
std::vector<std::string> fsdp_words(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? words_of("full_shard") : words_of("");
  if (value.is_string()) return words_of(value.get<std::string>());
  std::vector<std::string> words;
  for (const json& word : value.is_array() ? value : json::array({value}))
    words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
  return words;
}

ImportedKey fsdp(const Argument& a) {
  const std::vector<std::string> words = fsdp_words(a.value);
  if (words.empty()) return a.same("nothing is sharded");
  for (const std::string& word : words) {
    if (word != "full_shard" && word != "auto_wrap")
      return a.refuse(
          fmt::format("{} is not supported: distributed_strategy.fsdp shards weights, gradients "
                      "and states over all data-parallel ranks (full_shard), "
                      "data_parallel_replicate_size next to it makes copies of the whole, and "
                      "zero1 shards the states alone",
                      word));
  }
  if (std::ranges::find(words, "full_shard") == words.end())
    return a.refuse("auto_wrap alone shards nothing: add full_shard");
  return a.map({{"distributed_strategy.fsdp", "true"}, {"distributed_strategy.zero1", "true"}},
               kUnits);
}

ImportedKey fsdp_config(const Argument& a) {
  const json* strategy = a.args().find("fsdp");
  if (strategy == nullptr || strategy->is_null() || fsdp_words(*strategy).empty())
    return a.ignore("it belongs to fsdp, which is not set");
  if (!a.value.is_object()) return a.refuse("write its keys here: no other file is read");
  for (const auto& [key, value] : a.value.items()) {
    const std::string name = key.starts_with("fsdp_") ? key.substr(5) : key;
    if (name == "activation_checkpointing" && !is_neutral_value(value, "false|null"))
      return a.refuse("write gradient_checkpointing: true, and remove activation_checkpointing");
    if ((name == "reshard_after_forward" && !is_neutral_value(value, "true|null|FULL_SHARD")) ||
        ((name == "offload_params" || name == "cpu_offload" || name.starts_with("xla")) &&
         !is_neutral_value(value, "false|null")))
      return a.refuse(key + " is not supported: remove it");
  }
  return a.ignore(kUnits);
}

const std::vector<std::pair<std::string_view, Handler>>& handlers() {
  static const std::vector<std::pair<std::string_view, Handler>> table = {
      {"per_device_train_batch_size per_gpu_train_batch_size", parallel_batch},
      {"gradient_accumulation_steps", accumulation},
      {"pipeline_parallel_num_microbatches", pipeline_cuts},
      {"world_size num_processes", world},
      {"num_machines", machines},
      {"disable_sequence_parallel sequence_parallel_enabled", sequence_parallel},
      {"kv_size_multiplier", kv_copies},
      {"num_local_ranks_per_step", ranks_per_step},
      {"max_steps", max_steps},
      {"num_train_epochs", epochs},
      {"max_grad_norm", grad_norm},
      {"optim", optimizer},
      {"adam_beta1 adam_beta2", betas},
      {"adam_epsilon", epsilon},
      {"lr_scheduler_type", schedule},
      {"lr_scheduler_kwargs", schedule_kwargs},
      {"warmup_steps warmup_ratio", warmup},
      {"logging_steps", logging_steps},
      {"logging_strategy", logging_strategy},
      {"save_strategy", saving},
      {"save_steps", save_steps},
      {"save_total_limit", save_limit},
      {"metric_for_best_model greater_is_better", best_metric},
      {"eval_strategy evaluation_strategy", validation},
      {"eval_steps", eval_steps},
      {"eval_on_start", eval_on_start},
      {"seed", seed},
      {"data_seed", data_seed},
      {"bf16 use_autocast stochastic_rounding_enabled optimizer_use_master_weights "
       "optimizer_use_fp32_grad_acc",
       precision},
      {"gradient_checkpointing activation_checkpointing", checkpointing},
      {"output_dir", output_dir},
      {"run_name", run_name},
      {"report_to", report_to},
      {"resume_from_checkpoint", resume},
      {"accelerator_config", accelerator},
      {"fsdp", fsdp},
      {"fsdp_config", fsdp_config},
  };
  return table;
}

Handler find_handler(const std::string& name) {
  for (const auto& [names, handler] : handlers()) {
    const auto words = words_of(names);
    if (std::ranges::find(words, name) != words.end()) return handler;
  }
  return nullptr;
}

/// The value of a row that is mapped, as YAML; nullopt when its type is wrong.
std::optional<std::string> direct_value(const Argument& a, RowUse use) {
  const Arguments& args = a.args();
  switch (use) {
    case RowUse::kBoolean:
      if (const auto value = args.boolean(a.name)) return boolean_text(*value);
      break;
    case RowUse::kInteger:
      if (const auto value = args.integer(a.name)) return integer_text(*value);
      break;
    case RowUse::kNumber:
      if (const auto value = args.number(a.name)) return yaml_number(*value);
      break;
    case RowUse::kIgnored:
    case RowUse::kNeutral: break;
  }
  return std::nullopt;
}

ImportedKey by_row(const Argument& a, const Row& row) {
  const std::string text(row.text);
  if (row.use == RowUse::kIgnored) return a.ignore(text);
  if (row.use == RowUse::kNeutral)
    return is_neutral_value(a.value, row.neutral) ? a.same("") : a.refuse(text);
  const auto value = direct_value(a, row.use);
  if (!value) return a.refuse("expected another type");  // reported as a problem
  if (a.name == "packing" && *value == "false") return a.same("samples are not packed");
  return a.map({{text, *value}});
}

/// Names of all arguments, for the nearest one.
std::vector<std::string> known_arguments() {
  std::vector<std::string> known = keys_of(argument_rows());
  for (const auto& [names, handler] : handlers())
    std::ranges::move(words_of(names), std::back_inserter(known));
  return known;
}

}  // namespace

void import_arguments(const JsonObject& object, const Context& context, ImportedConfig& imported) {
  const std::vector<std::string> known = known_arguments();
  for (const JsonKey& key : object.keys()) {
    const Argument argument{context, key.name, key.value, source_of("training_args.", key)};
    const Handler handler = find_handler(key.name);
    const Row* row = handler == nullptr ? find_row(argument_rows(), key.name) : nullptr;
    const bool decides_as_null = key.name == "save_total_limit" || key.name == "max_grad_norm";
    if (handler == nullptr && row == nullptr) {
      imported.keys.push_back(unknown(argument.source, key.name, known));
    } else if (key.value.is_null() && !decides_as_null) {
      imported.keys.push_back(row != nullptr && row->use == RowUse::kIgnored
                                  ? argument.ignore(std::string(row->text))
                                  : argument.same("null: the default"));
    } else {
      imported.keys.push_back(handler != nullptr ? handler(argument) : by_row(argument, *row));
    }
  }
}

}  // namespace trellis::analysis::hugging_face
