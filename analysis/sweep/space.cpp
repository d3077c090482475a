#include "analysis/sweep/space.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/sweep/bounds.h"
#include "base/activity.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/problem.h"
#include "base/process/parallel_for.h"
#include "base/yaml/yaml.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {
namespace {

using trainer::Recompute;

/// Sizes that the enumeration needs, read by the validation's own reader: problems of the layout in
/// the file do not matter here.
struct BaseConfig {
  trainer::RunConfig config;

  explicit BaseConfig(const SweepRequest& request)
      : config(trainer::check_run_config(request.config, request.overrides).config) {
    if (config.model.num_layers > 0 && config.data.global_batch_size > 0) return;
    (void)trainer::load_run_config(request.config, request.overrides);  // says what is wrong
    throw ConfigError(request.config +
                      ": a sweep needs model.num_layers and data.global_batch_size");
  }

  [[nodiscard]] Candidate layout() const {
    Candidate c{trainer::layout_of(config)};
    c.micro_batch_size = config.data.micro_batch_size;
    c.fsdp_replicas = 1;  // the user's own, and no axis
    c.balanced_context = false;
    return c;
  }
};

void check_overrides(const SweepRequest& request) {
  for (const std::string& text : request.overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (!is_axis_key(key)) continue;
    throw ConfigError(
        fmt::format("{}: the sweep sets {} itself for each candidate: leave it out, and restrict "
                    "the axis with --only or --fix (axes: {})",
                    text, key, fmt::join(axis_names(), ", ")));
  }
}

void place_on_machine(SweepSpace& space, const sim::SystemConfig& system) {
  const SweepRequest& request = space.request;
  const int chips = system.instance.chips;
  space.space.ranks_per_node = space.space.cores_per_node = system.logical_cores_per_node();
  if (request.chips == 0) {
    space.space.nodes = request.nodes.empty() ? std::vector<int>{1} : request.nodes;
  } else if (!request.nodes.empty()) {
    throw ConfigError("--nodes and --chips say the same twice: expected one of them");
  } else if (request.chips < chips) {
    space.space.ranks_per_node = request.chips * system.logical_cores_per_chip();
  } else if (request.chips % chips == 0) {
    space.space.nodes = {request.chips / chips};
  } else {
    throw ConfigError(
        fmt::format("--chips {}: a {} has {} chips, expected fewer or a multiple of them: {} or {}",
                    request.chips, request.instance, chips, request.chips / chips * chips,
                    (request.chips / chips + 1) * chips));
  }
  std::sort(space.space.nodes.begin(), space.space.nodes.end());
  if (std::adjacent_find(space.space.nodes.begin(), space.space.nodes.end()) !=
      space.space.nodes.end())
    throw ConfigError("--nodes: a number occurs twice");
}

void restrict_axes(SweepSpace& space, const BaseConfig& base) {
  for (const std::string& text : space.request.only) restrict_axis(space.space.only, text);
  for (const std::string& axis : space.request.fix)
    restrict_axis(space.space.only, axis + "=" + value_on(base.layout(), axis));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

/// The settings that the modes of recomputation change in a configuration. No rule about a layout
/// reads them, so layouts that differ only in the mode share one validation. Modes that have their
/// own rules here (a list of modules that is wrong) are validated one by one.
class RecomputeModes {
 public:
  RecomputeModes(const SweepSpace& space, const trainer::RunConfigFile& file) {
    for (const Candidate& candidate : space.candidates) {
      if (!known_.empty()) return;
      add_modes_of(space, file, candidate);
    }
  }

  /// The check of a layout with `mode`, from its check with `other`; none: it has to be validated.
  [[nodiscard]] std::optional<trainer::RunCheck> derive(const trainer::RunCheck& check,
                                                        Recompute other, Recompute mode) const {
    const auto found = known_.find(mode);
    if (found == known_.end() || !known_.contains(other)) return std::nullopt;
    trainer::RunCheck derived = check;
    derived.config.model.recompute = found->second.recompute;
    derived.config.model.recompute_modules = found->second.recompute_modules;
    return derived;
  }

 private:
  void add_modes_of(const SweepSpace& space, const trainer::RunConfigFile& file,
                    Candidate candidate) {
    std::optional<trainer::RunCheck> first;
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      candidate.recompute = mode;
      trainer::RunCheck check = file.check(space.overrides(candidate));
      if (!check.problems.empty()) continue;
      if (!first) first = check;
      if (check.config.unsupported == first->config.unsupported) known_[mode] = check.config.model;
    }
  }

  std::map<Recompute, trainer::ModelSection> known_;
};

void judge_one(const trainer::RunCheck& check, TimedMachine& machine, SweepRow& row) {
  const auto illegal = [&row](const std::string& reason) {
    row.status = SweepStatus::kIllegal;
    row.reason = first_line(reason);
  };
  if (!check.problems.empty()) return illegal(check.problems.front());
  try {
    trainer::refuse_unsupported(check.config, true);
    const StepBound bound = bound_step(check.config, machine.system, machine.times);
    row.bound_ps = bound.step_ps;
    row.bound_by = bound.largest;
  } catch (const ConfigError& error) {
    return illegal(error.what());
  }
  row.bound_bytes = bound_memory(check.config);
  const std::int64_t capacity = machine.system.hbm_per_logical_core().value;
  if (row.bound_bytes <= capacity) return;
  row.status = SweepStatus::kOom;
  row.reason = fmt::format(
      "weights, gradients, optimizer states and what passes or update add at least take {}; "
      "a core has {}",
      gib(row.bound_bytes), gib(capacity));
}

/// Rows [begin, end): one layout with each of its modes of recomputation.
void judge_layout(const SweepSpace& space, const trainer::RunConfigFile& file,
                  const RecomputeModes& modes, TimedMachine& machine, std::vector<SweepRow>& rows,
                  std::size_t begin, std::size_t end) {
  std::optional<trainer::RunCheck> first;
  for (std::size_t i = begin; i < end; ++i) {
    rows[i].index = i;
    rows[i].candidate = space.candidates[i];
    const Candidate& candidate = rows[i].candidate;
    std::optional<trainer::RunCheck> check;
    if (first) check = modes.derive(*first, rows[begin].candidate.recompute, candidate.recompute);
    if (!check) check = file.check(space.overrides(candidate));
    judge_one(*check, machine, rows[i]);
    if (!first) first = std::move(check);
  }
}

/// Where the layouts begin, and the end of the last one.
std::vector<std::size_t> borders_of_layouts(const std::vector<Candidate>& candidates) {
  std::vector<std::size_t> borders;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate before = candidates[i == 0 ? 0 : i - 1];
    before.recompute = candidates[i].recompute;
    if (i == 0 || before != candidates[i]) borders.push_back(i);
  }
  borders.push_back(candidates.size());
  return borders;
}

sim::SystemConfig machine_of(const SweepRequest& request, int nodes, std::optional<int> lnc) {
  sim::LoadOptions load;
  load.nodes = nodes;
  load.logical_core_size = lnc;
  return sim::load_system(request.instance, load);
}

/// Dotted keys of a YAML mapping down to its leaves.
void flatten(const YamlMap& map, const std::string& path, nlohmann::json& facts) {
  for (const std::string& key : map.keys()) {
    const std::string dotted = path.empty() ? key : path + "." + key;
    if (map.is_map(key)) {
      flatten(map.map(key), dotted, facts);
    } else {
      facts[dotted] = map.flow_text(key);
    }
  }
}

/// Throws ConfigError for mistakes that every candidate has: no layout is legal with them.
void refuse_shared_problems(const SweepSpace& space) {
  const SweepRequest& request = space.request;
  std::vector<std::string> shared =
      trainer::check_run_config(request.config, request.overrides).problems;
  if (shared.empty()) return;
  const trainer::RunConfigFile file(request.config);
  for (const Candidate& candidate : space.candidates) {
    const std::vector<std::string> problems = file.check(space.overrides(candidate)).problems;
    std::erase_if(shared, [&](const std::string& each) {
      return std::ranges::find(problems, each) == problems.end();
    });
    if (shared.empty()) return;
  }
  throw ConfigError(fmt::format("{}", fmt::join(shown_problems(shared), "\n")));
}

}  // namespace

std::vector<std::string> SweepSpace::overrides(const Candidate& candidate) const {
  std::vector<std::string> all = request.overrides;
  for (std::string& text : overrides_of(candidate, space.ranks_per_node, space.global_batch_size))
    all.push_back(std::move(text));
  return all;
}

std::vector<std::string> SweepSpace::simulate_arguments(const Candidate& candidate) const {
  std::vector<std::string> arguments = {"simulate", request.config};
  for (std::string& text : overrides(candidate)) arguments.push_back(std::move(text));
  arguments.insert(arguments.end(),
                   {"--instance", request.instance, "--nodes", std::to_string(candidate.nodes)});
  return arguments;
}

SweepSpace open_space(const SweepRequest& request) {
  check_overrides(request);
  const BaseConfig base(request);
  SweepSpace result;
  result.request = request;
  place_on_machine(result, machine_of(request, 1, base.config.trainer.lnc));
  result.space.global_batch_size = request.global_batch_size > 0
                                       ? request.global_batch_size
                                       : base.config.data.global_batch_size;
  const trainer::ModelSection& model = base.config.model;
  result.space.num_layers = model.num_layers;
  result.space.ring_attention = model.ring_attention;
  result.space.num_experts = model.moe ? model.moe->num_experts : 0;
  result.space.fsdp = base.config.distributed_strategy.fsdp;
  restrict_axes(result, base);
  result.candidates = enumerate(result.space);
  if (result.candidates.empty()) {
    throw ConfigError(
        fmt::format("--only and --fix leave no candidate: {} ranks per node on {} node{}, global "
                    "batch {}, {} layers",
                    result.space.ranks_per_node, fmt::join(result.space.nodes, " or "),
                    result.space.nodes == std::vector<int>{1} ? "" : "s",
                    result.space.global_batch_size, result.space.num_layers));
  }
  refuse_shared_problems(result);
  return result;
}

std::vector<SweepRow> judge(const SweepSpace& space, int threads) {
  const std::optional<int> lnc =
      trainer::check_run_config(space.request.config, space.request.overrides).config.trainer.lnc;
  std::map<int, std::unique_ptr<TimedMachine>> machines;
  for (const int nodes : space.space.nodes)
    machines[nodes] = std::make_unique<TimedMachine>(machine_of(space.request, nodes, lnc));
  std::vector<SweepRow> rows(space.candidates.size());
  const trainer::RunConfigFile file(space.request.config);
  const RecomputeModes modes(space, file);
  const std::vector<std::size_t> borders = borders_of_layouts(space.candidates);
  Activity activity("judging " + std::to_string(space.candidates.size()) +
                    " layouts by rules and bounds");
  parallel_for(borders.size() - 1, threads > 0 ? static_cast<std::size_t>(threads) : host_cores(),
               [&](std::size_t i) {
                 activity.count(static_cast<std::int64_t>(borders[i]),
                                static_cast<std::int64_t>(space.candidates.size()));
                 judge_layout(space, file, modes, *machines.at(space.candidates[borders[i]].nodes),
                              rows, borders[i], borders[i + 1]);
               });
  return rows;
}

nlohmann::json facts_of(const SweepSpace& space, const std::vector<SweepRow>& rows) {
  nlohmann::json facts = {{"--instance", space.request.instance},
                          {"--nodes", fmt::format("{}", fmt::join(space.space.nodes, ","))},
                          {"ranks per node", std::to_string(space.space.ranks_per_node)},
                          {"--gbs", std::to_string(space.space.global_batch_size)}};
  for (const std::string& axis : axis_names()) {
    const auto found = space.space.only.find(axis);
    facts["--only " + axis] =
        found == space.space.only.end() ? "any" : fmt::format("{}", fmt::join(found->second, ","));
  }
  ContentHasher numbers;
  for (const sim::Parameter& parameter : machine_of(space.request, 1, std::nullopt).parameters) {
    numbers.text(parameter.key);
    numbers.text(parameter.value);
  }
  facts["the machine's numbers"] = numbers.finish().to_string();
  const auto legal = std::find_if(rows.begin(), rows.end(), [](const SweepRow& row) {
    return row.status != SweepStatus::kIllegal;
  });
  if (legal == rows.end()) return facts;
  const trainer::RunConfig config =
      trainer::load_run_config(space.request.config, space.overrides(legal->candidate));
  const YamlDocument resolved = YamlDocument::parse(config.resolved_yaml, "resolved");
  flatten(resolved.root(), "", facts);
  return facts;
}

}  // namespace trellis::analysis
