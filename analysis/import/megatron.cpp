#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/megatron_rules.h"
#include "analysis/import/megatron_yaml.h"
#include "analysis/import/source_text.h"
#include "analysis/import/sources.h"
#include "base/nearest.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis {
namespace {

std::string why_undetermined(const std::string& what) {
  using Flow = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Flow, 3> kFlows = {
      {{"the condition in ", "condition"}, {"the loop in ", "loop"}, {"a return of ", "return"}}};
  for (const auto& [beginning, name] : kFlows) {
    if (what.starts_with(beginning))
      return fmt::format(
          "it depends on a {0} of the shell ({1}), which is not executed: write it without the {0}",
          name, what.substr(beginning.size()));
  }
  return "its value comes from a substitution of the shell (" + what +
         "), which is not executed: write the value";
}

ImportedKey unknown(const MegatronArgument& argument) {
  const std::string nearest = nearest_name(argument.name, megatron_names());
  return {argument.source,
          ImportStatus::kUnclassified,
          {},
          "Megatron-LM has no argument of this name" +
              (nearest.empty() ? "" : "; did you mean --" + nearest + "?")};
}

ImportedKey by_row(const MegatronArgument& argument, const MegatronArguments& all) {
  using enum MegatronRow::Does;
  const MegatronRow& row = *argument.row;
  const std::string note(row.note);
  if (row.does == kIgnored) return ignored(argument, note);
  if (row.does == kRefused)
    return !row.target.empty() && trainer::is_neutral(all.text(argument.name), row.target)
               ? by_default(argument, note)
               : refused(argument, note);
  const bool of_experts = row.target.starts_with("model.moe.");
  if (row.does == kRule || (of_experts && !all.has("num-experts")))
    return apply_megatron_rule(argument, all);
  return mapped(argument, {{std::string(row.target), note.empty() ? argument.source.value : note}});
}

ImportedKey import_argument(const MegatronArgument& argument, const MegatronArguments& all) {
  if (argument.replaced_in != 0)
    return ignored(argument, fmt::format("line {} gives it again, and the last one counts",
                                         argument.replaced_in));
  if (argument.row == nullptr && argument.launches)
    return ignored(argument, "it is in front of the script: it belongs to what starts it");
  if (argument.row == nullptr && argument.undetermined.empty()) return unknown(argument);
  const bool without_effect =
      argument.row != nullptr && argument.row->does == MegatronRow::Does::kIgnored;
  if (!argument.undetermined.empty() && !without_effect)
    return refused(argument, why_undetermined(argument.undetermined));
  const bool read = argument.row->does == MegatronRow::Does::kMoves ||
                    argument.row->does == MegatronRow::Does::kRule;
  if (has_wrong_count(argument) && read)
    return refused(argument, argument.row->values == MegatronRow::Values::kNone
                                 ? "it is a flag: expected no value"
                                 : "expected one value");
  ImportedKey key = by_row(argument, all);
  if (!argument.assumed.empty() && !without_effect)
    key.note += fmt::format("{}the default of ${{{}}}: the script does not set this variable",
                            key.note.empty() ? "" : "; ", argument.assumed);
  return key;
}

/// The name of the model, which follows from its properties.
std::string name_of(const MegatronArguments& all) {
  if (all.has("num-experts")) return "megatron_mixtral";
  const bool llama = all.has("swiglu") && all.text("normalization") == "RMSNorm";
  return llama ? "megatron_llama" : "megatron_gpt";
}

void experts_defaults(const MegatronArguments& all, std::vector<Setting>& settings) {
  if (!all.has("num-experts") || !all.has("swiglu")) return;
  const std::vector<Setting> moe = {
      {"model.moe.top_k", "2"},
      {"model.moe.frequency", "1"},
      {"model.moe.dropless", "true"},
      {"model.moe.routing_algorithm", "top_k"},
      {"model.moe.output_router_logits", "false"},
      {"model.moe.router_aux_loss_coef", "0"},
      {"model.moe.normalize_top_k_affinities",
       all.integer("moe-router-topk", 2) == 1 ? "false" : "true"},
  };
  settings.insert(settings.end(), moe.begin(), moe.end());
}

/// Where Megatron-LM's sizes follow from other sizes.
void size_defaults(const MegatronArguments& all, std::vector<Setting>& settings) {
  if (const auto hidden = all.integer("hidden-size"); hidden && *hidden > 0 && *hidden < 1 << 24) {
    // The size of a gated MLP is 8/3 of it, in multiples of 64; else 4 times.
    const std::int64_t gated = *hidden * 4 * 2 / 3 / 64 * 64;
    settings.push_back(
        {"model.ffn_hidden_size", fmt::format("{}", all.has("swiglu") ? gated : *hidden * 4)});
  }
  if (const auto batch = megatron_global_batch(all))
    settings.push_back({"data.global_batch_size", fmt::format("{}", *batch)});
  if (all.has("data-path")) settings.push_back({"data.splits_string", "\"969,30,1\""});
  if (all.has("optimizer") && all.text("optimizer") == "sgd")
    settings.push_back({"model.optim.momentum", "0.9"});
  if (!all.has("optimizer") || all.text("optimizer") == "adam")
    settings.push_back({"model.optim.betas", "[0.9, 0.999]"});
}

}  // namespace

std::vector<Setting> megatron_defaults(const MegatronArguments& all) {
  const MegatronSchedule schedule = megatron_schedule(all);
  const bool ring = all.integer("context-parallel-size", 1) != 1;
  const bool validates = all.has("eval-interval");
  std::vector<Setting> settings = {
      {"name", name_of(all)},
      {"model_source", "megatron"},
      {"seed", "1234"},
      {"trainer.devices", "auto"},
      {"trainer.num_nodes", "1"},
      {"trainer.max_epochs", "-1"},
      {"trainer.log_every_n_steps", "100"},
      {"trainer.check_val_every_n_epoch", "null"},
      {"trainer.num_sanity_val_steps", "0"},
      {"trainer.limit_val_batches", validates ? "100" : "0"},
      {"trainer.limit_test_batches", validates ? "100" : "0"},
      {"trainer.gradient_clip_val", "1.0"},
      {"exp_manager.name", name_of(all)},
      {"exp_manager.create_tensorboard_logger", "false"},
      {"exp_manager.create_checkpoint_callback", "false"},
      // With --bf16 every rank keeps fp32 master weights, which are part of ZeRO-1 here.
      {"distributed_strategy.zero1", all.has("bf16") || all.has("fp16") ? "true" : "false"},
      {"data.dataloader_type", "single"},
      {"model.max_position_embeddings", "${.encoder_seq_length}"},
      {"model.hidden_dropout", "0.1"},
      {"model.attention_dropout", "0.1"},
      {"model.apply_query_key_layer_scaling", "false"},
      {"model.fusions.flash_attention", ring ? "false" : "true"},
      {"model.optim.name", "adamw"},
      {"model.optim.weight_decay", "0.01"},
      {"model.optim.sched.name", schedule.name.empty() ? "CosineAnnealing" : schedule.name},
      {"model.optim.sched.min_lr", "0"},
      {"precision.type", all.has("bf16") || all.has("fp16") ? "mixed_precision" : "fp32"},
  };
  size_defaults(all, settings);
  experts_defaults(all, settings);
  return settings;
}

ImportedConfig import_megatron(const std::string& file) {
  ShellReader reader;
  return import_megatron_text(read_source_text(file), file, reader);
}

ImportedConfig import_megatron_text(const std::string& text, const std::string& name,
                                    ShellReader& reader) {
  const std::optional<MegatronYaml> yaml = read_megatron_yaml(text, name);
  const MegatronArguments all =
      megatron_arguments(yaml ? yaml->script : reader.read(text, name), name);
  ImportedConfig imported{.from = "megatron", .keys = {}, .implied = megatron_defaults(all)};
  for (const MegatronArgument& argument : all.all())
    imported.keys.push_back(import_argument(argument, all));
  if (yaml) imported.keys.insert(imported.keys.end(), yaml->others.begin(), yaml->others.end());
  return imported;
}

}  // namespace trellis::analysis
