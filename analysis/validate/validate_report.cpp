#include "analysis/validate/validate_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/validate/ci_reports.h"
#include "base/escape.h"
#include "base/problem.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/lr_scheduler.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using trainer::GroupPlan;
using trainer::RunCheck;
using trainer::RunConfig;
using trainer::RunPlan;
using trainer::StagePlan;

/// 70553706496 as "70,553,706,496".
std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string row(const std::string& label, const std::string& text) {
  return fmt::format("{:<12} {}\n", label, text);
}

std::string model_text(const RunConfig& config) {
  const trainer::ModelSection& m = config.model;
  std::string text = fmt::format(
      "{} ({}): {} layers, hidden {}, feed-forward {}, {} heads of {} ({} key/value), vocabulary "
      "{}, sequence {}",
      m.architecture, config.model_source, m.num_layers, m.hidden_size, m.ffn_hidden_size,
      m.num_attention_heads, m.head_dim, m.num_kv_heads, m.vocab_size, m.encoder_seq_length);
  if (m.moe) text += fmt::format(", {} experts, {} per token", m.moe->num_experts, m.moe->top_k);
  if (m.sliding_window) text += fmt::format(", window {}", *m.sliding_window);
  if (m.share_embeddings_and_output_weights) text += ", head shares the embedding's weight";
  return text;
}

std::string ranks_text(const RunConfig& config) {
  const trainer::DistributedStrategySection& s = config.distributed_strategy;
  std::string text =
      fmt::format("{} = {} nodes × {}: TP {} × PP {}", config.world_size(),
                  config.trainer.num_nodes, config.trainer.devices, config.tp(), config.pp());
  if (config.cp() > 1) text += fmt::format(" × CP {}", config.cp());
  text += fmt::format(" × DP {}", config.dp());
  if (config.vpp() > 1) text += fmt::format(", {} virtual stages per rank", config.vpp());
  if (s.kv_replicator > 1) text += fmt::format(", key/value heads {} times", s.kv_replicator);
  text += s.fsdp ? ", fully sharded" : s.zero1 ? ", ZeRO-1" : ", no ZeRO-1";
  if (s.data_parallel_replicate_size > 1)
    text += fmt::format(" in {} copies", s.data_parallel_replicate_size);
  return text + (s.sequence_parallel ? ", sequence parallel" : "");
}

std::string precision_text(const trainer::PrecisionSection& p) {
  std::string text = fmt::format("{}: weights {}, sums over TP in {}", p.type,
                                 p.type == "fp64" ? "fp64"
                                 : p.weights_bf16 ? "bf16"
                                                  : "fp32",
                                 p.parallel_layers_reduce_dtype);
  if (p.autocast) text += ", autocast to bf16";
  if (p.master_weights) text += ", fp32 master weights";
  if (p.fp32_grad_acc) text += ", gradients accumulated in fp32";
  return text + (p.stochastic_rounding ? ", stochastic rounding" : "");
}

std::string optimizer_text(const RunConfig& config) {
  const trainer::OptimSection& optim = config.model.optim;
  std::string text =
      fmt::format("{}, lr {}, weight decay {}", optim.name, optim.lr, optim.weight_decay);
  if (!optim.sched) return text + ", constant rate";
  text += fmt::format("; {}, warm-up {}", optim.sched->name, optim.sched->warmup_steps);
  return text + fmt::format(", min {}; {} steps", optim.sched->min_lr,
                            trainer::schedule_steps(optim, config.trainer.max_steps));
}

std::string members(const std::vector<int>& ranks) {
  if (ranks.size() <= 4) return fmt::format("[{}]", fmt::join(ranks, ", "));
  return fmt::format("[{}, {}, …, {}]", ranks[0], ranks[1], ranks.back());
}

std::string group_text(const GroupPlan& group) {
  std::string text = fmt::format("{} × {} [", group.count, group.size);
  const std::size_t shown = std::min<std::size_t>(group.replica_groups.size(), 3);
  for (std::size_t i = 0; i < shown; ++i)
    text += (i > 0 ? ", " : "") + members(group.replica_groups[i]);
  return text + (shown < group.replica_groups.size() ? ", …]" : "]");
}

/// Neighbouring stages of equal size share a line.
std::string stages_text(const RunPlan& plan) {
  std::string text = "stages       stage       layers      parameters per rank\n";
  for (std::size_t i = 0; i < plan.stages.size();) {
    const StagePlan& first = plan.stages[i];
    const int layers = first.end_layer - first.first_layer;
    std::size_t end = i + 1;
    while (end < plan.stages.size() &&
           plan.stages[end].end_layer - plan.stages[end].first_layer == layers &&
           plan.stages[end].parameters_per_rank == first.parameters_per_rank) {
      ++end;
    }
    const std::string stages = end == i + 1 ? std::to_string(i) : fmt::format("{}–{}", i, end - 1);
    const std::string each =
        end == i + 1 ? fmt::format("{} ({}–{})", layers, first.first_layer, first.end_layer - 1)
                     : fmt::format("{} each", layers);
    text += fmt::format("             {:<11} {:<11} {}\n", stages, each,
                        grouped(first.parameters_per_rank));
    i = end;
  }
  return text;
}

std::string parameters_text(const RunPlan& plan) {
  const auto [least, most] = std::ranges::minmax(plan.parameters_of_pipeline_rank);
  return grouped(plan.parameters) +
         (least == most ? fmt::format("; {} on each rank", grouped(most))
                        : fmt::format("; {} to {} on each rank", grouped(least), grouped(most)));
}

std::string batch_text(const RunConfig& config) {
  const std::int64_t tokens =
      std::int64_t{config.data.global_batch_size} * config.model.encoder_seq_length;
  return fmt::format("{} = micro_batch_size {} × DP {} × {} micro-batches; {} tokens per step",
                     config.data.global_batch_size, config.data.micro_batch_size, config.dp(),
                     config.num_microbatches(), grouped(tokens));
}

std::string schedule_text(const RunConfig& config, const RunPlan& plan) {
  if (config.pp() == 1)
    return fmt::format("{} micro-batches one after the other", plan.schedule.num_microbatches);
  const std::string factor = config.vpp() > 1 ? fmt::format("{} × ", config.vpp()) : "";
  return fmt::format("{}, {} micro-batches, bubble {:.1f} % = (PP − 1) / ({}{} micro-batches)",
                     plan.schedule.name, plan.schedule.num_microbatches, 100 * plan.schedule.bubble,
                     factor, plan.schedule.num_microbatches);
}

std::string list_text(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = title + "\n";
  for (const std::string& line : lines) text += "  " + terminal_line(line) + "\n";
  return text;
}

std::vector<std::string> unsupported_lines(const RunConfig& config) {
  std::vector<std::string> lines;
  for (const trainer::UnsupportedFeature& feature : config.unsupported)
    lines.push_back(feature.where + ": " + feature.text);
  return lines;
}

/// "key (line 12)"
std::string key_with_line(const trainer::KeyWithoutEffect& one) {
  const int line = parse_problem(terminal_line(one.where) + ": ").line;
  return line == 0 ? one.key : fmt::format("{} (line {})", one.key, line);
}

/// Keys that share a reason share a line.
std::vector<std::string> without_effect_lines(const RunCheck& check) {
  std::vector<std::pair<std::string, std::string>> keys_of;  // why, keys
  for (const trainer::KeyWithoutEffect& one : check.without_effect) {
    const auto found =
        std::ranges::find(keys_of, one.why, &std::pair<std::string, std::string>::first);
    if (found == keys_of.end()) {
      keys_of.emplace_back(one.why, key_with_line(one));
    } else {
      found->second += ", " + key_with_line(one);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [why, keys] : keys_of) lines.push_back(keys + ": " + why);
  return lines;
}

json stages_json(const RunPlan& plan) {
  json stages = json::array();
  for (const StagePlan& stage : plan.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"pipeline_rank", stage.pipeline_rank},
                      {"first_layer", stage.first_layer},
                      {"end_layer", stage.end_layer},
                      {"parameters_per_rank", stage.parameters_per_rank}});
  }
  return stages;
}

json plan_json(const RunConfig& config) {
  const RunPlan plan = trainer::plan_run(config);
  json groups = json::object();
  for (const GroupPlan& group : plan.groups) {
    groups[group.axis] = {
        {"size", group.size}, {"count", group.count}, {"replica_groups", group.replica_groups}};
  }
  return {{"world_size", config.world_size()},
          {"tp", config.tp()},
          {"pp", config.pp()},
          {"vpp", config.vpp()},
          {"cp", config.cp()},
          {"dp", config.dp()},
          {"parameters", plan.parameters},
          {"parameters_of_pipeline_rank", plan.parameters_of_pipeline_rank},
          {"flops_per_step", config.model_flops_per_step()},
          {"num_microbatches", plan.schedule.num_microbatches},
          {"schedule", plan.schedule.name},
          {"bubble", plan.schedule.bubble},
          {"stages", stages_json(plan)},
          {"groups", groups},
          {"resolved_yaml", config.resolved_yaml}};
}

}  // namespace

std::string validate_text(const std::string& file, const RunCheck& check) {
  const RunConfig& config = check.config;
  const RunPlan plan = trainer::plan_run(config);
  std::string text = fmt::format("{}: legal\n", terminal_line(file));
  text += row("model", model_text(config)) + row("parameters", parameters_text(plan)) +
          row("ranks", ranks_text(config));
  text += row("batch", batch_text(config)) + row("schedule", schedule_text(config, plan)) +
          stages_text(plan);
  for (const GroupPlan& group : plan.groups)
    text +=
        row(&group == plan.groups.data() ? "groups" : "", group.axis + "  " + group_text(group));
  text +=
      row("optimizer", optimizer_text(config)) + row("precision", precision_text(config.precision));
  text += list_text("not supported in this version:", unsupported_lines(config));
  text += list_text("without effect:", without_effect_lines(check));
  return text + list_text("warnings:", check.warnings);
}

std::string problems_text(const std::string& file, const RunCheck& check) {
  std::string text;
  for (const std::string& problem : shown_problems(check.problems)) text += problem + "\n";
  for (const std::string& warning : check.warnings)
    text += "warning: " + terminal_line(warning) + "\n";
  return text + fmt::format("{}: {} problem{}\n", terminal_line(file), check.problems.size(),
                            check.problems.size() == 1 ? "" : "s");
}

std::vector<Problem> problems_of(const std::string& file, const RunCheck& check) {
  std::vector<Problem> problems;
  for (const std::string& problem : shown_problems(check.problems)) {
    problems.push_back(parse_problem(problem, terminal_line(file)));
  }
  return problems;
}

json validate_json(const std::string& file, const RunCheck& check) {
  json problems = json::array();
  for (const Problem& problem : problems_of(file, check)) problems.push_back(problem_json(problem));
  json report = {{"schema", "trellis.validate/2"},
                 {"file", file},
                 {"ok", check.problems.empty()},
                 {"problems", std::move(problems)},
                 {"warnings", check.warnings}};
  if (!check.problems.empty()) return report;
  report["unsupported"] = json::array();
  for (const trainer::UnsupportedFeature& feature : check.config.unsupported) {
    report["unsupported"].push_back({{"key", feature.key},
                                     {"where", feature.where},
                                     {"text", feature.text},
                                     {"changes_step", feature.changes_step}});
  }
  report["without_effect"] = json::array();
  for (const trainer::KeyWithoutEffect& one : check.without_effect)
    report["without_effect"].push_back({{"key", one.key}, {"why", one.why}, {"where", one.where}});
  report["plan"] = plan_json(check.config);
  return report;
}

}  // namespace trellis::analysis
