#include "analysis/memory/changes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using trainer::Recompute;
using trainer::RunConfig;

/// A change of the configuration, as factors and switches.
struct Choice {
  bool zero1 = false, sequence_parallel = false;
  Recompute recompute = Recompute::kNone;  ///< kNone: as it is
  int micro_batch_divisor = 1, tp_factor = 1, pp_factor = 1;
  int rank_factor = 1;  ///< more ranks: cores of the nodes that are there, then more nodes
  int node_factor = 1;
  std::string instance = {};  ///< "": as it is
};

int doublings(int factor) {
  int n = 0;
  for (; factor > 1; factor /= 2) ++n;
  return n;
}

// Next to what uses them: hardware is what changes most.
constexpr int kMoreCores = 8, kMoreNodes = 12, kOtherInstance = 16;

int cost_of(const Choice& choice) {
  return (choice.zero1 ? 1 : 0) + (choice.sequence_parallel ? 1 : 0) +
         (choice.recompute == Recompute::kFull        ? 4
          : choice.recompute == Recompute::kSelective ? 2
                                                      : 0) +
         3 * doublings(choice.micro_batch_divisor) + 5 * doublings(choice.tp_factor) +
         6 * doublings(choice.pp_factor) + (choice.instance.empty() ? 0 : kOtherInstance);
}

struct Machine {
  int cores = 1;  ///< logical ones of one instance
  std::int64_t capacity = 0;
};

sim::SystemConfig system_of(const std::string& instance, int nodes, const std::optional<int>& lnc) {
  sim::LoadOptions load;
  load.nodes = nodes;
  load.logical_core_size = lnc;
  return sim::load_system(instance, load);
}

Machine machine_of(const std::string& instance, const std::optional<int>& lnc) {
  const sim::SystemConfig system = system_of(instance, 1, lnc);
  return {system.logical_cores_per_node(), system.hbm_per_logical_core().value};
}

/// Bytes of the worst rank at its peak.
struct Sizes {
  double parameter = 0, gradient = 0, optimizer_state = 0, other = 0;
};

Sizes sizes_of(const json& plan) {
  const auto& rows = plan.at("ranks");
  const auto worst = std::ranges::find_if(
      rows, [&](const json& row) { return row.at("rank") == plan.at("worst_rank"); });
  const auto of = [&](const char* key) { return worst->at("at_peak").at(key).get<double>(); };
  return {of("parameter_bytes"), of("gradient_bytes"), of("optimizer_state_bytes"),
          of("activation_bytes") + of("temporary_bytes") + of("input_bytes")};
}

/// Makes changes of one run.
class Changes {
 public:
  Changes(const trainer::RunSource& run, const json& plan) : run_(run), sizes_(sizes_of(plan)) {
    const trainer::RunCheck check =
        trainer::check_run_config(run.config_file, run.overrides, run.instance);
    if (!check.problems.empty()) throw ConfigError(check.problems.front());
    config_ = check.config;
    machine_ = machine_of(run.instance, config_.trainer.lnc);
  }

  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const Machine& machine() const { return machine_; }

  [[nodiscard]] MemoryChange make(const Choice& choice) const {
    MemoryChange change{
        run_, {}, cost_of(choice), 0, 0, machine_.capacity, !choice.instance.empty()};
    std::vector<std::string> settings;
    add_settings(choice, settings);
    const Machine machine =
        choice.instance.empty() ? machine_ : machine_of(choice.instance, config_.trainer.lnc);
    change.capacity = machine.capacity;
    add_ranks(choice, machine, change, settings);
    std::vector<std::string> words = settings;
    if (!choice.instance.empty())
      words.push_back("--instance " + (change.run.instance = choice.instance));
    if (change.run.nodes != run_.nodes)
      words.push_back(fmt::format("--nodes {}", change.run.nodes));
    change.arguments = fmt::format("{}", fmt::join(words, " "));
    change.run.overrides.insert(change.run.overrides.end(), settings.begin(), settings.end());
    return change;
  }

 private:
  void add_settings(const Choice& choice, std::vector<std::string>& settings) const {
    if (choice.zero1) settings.emplace_back("distributed_strategy.zero1=true");
    if (choice.sequence_parallel)
      settings.emplace_back("distributed_strategy.sequence_parallel=true");
    if (choice.recompute != Recompute::kNone) {
      settings.emplace_back(choice.recompute == Recompute::kFull
                                ? "model.activations_checkpoint_granularity=full"
                                : "model.activations_checkpoint_granularity=selective");
    }
    if (choice.micro_batch_divisor > 1)
      settings.push_back(fmt::format("data.micro_batch_size={}",
                                     config_.data.micro_batch_size / choice.micro_batch_divisor));
    const int tp = config_.tp() * choice.tp_factor, kv_heads = config_.model.num_kv_heads;
    if (choice.tp_factor > 1) {
      settings.push_back(fmt::format("distributed_strategy.tensor_model_parallel_size={}", tp));
      if (tp > kv_heads && kv_heads > 0 && tp % kv_heads == 0)
        settings.push_back(fmt::format("distributed_strategy.kv_replicator={}", tp / kv_heads));
    }
    if (choice.pp_factor > 1)
      settings.push_back(fmt::format("distributed_strategy.pipeline_model_parallel_size={}",
                                     config_.pp() * choice.pp_factor));
  }

  /// More ranks when the layout needs them; and what a core then holds.
  void add_ranks(const Choice& choice, const Machine& machine, MemoryChange& change,
                 std::vector<std::string>& settings) const {
    int devices = config_.trainer.devices, nodes = config_.trainer.num_nodes * choice.node_factor;
    const int of_one_model =
        config_.tp() * choice.tp_factor * config_.pp() * choice.pp_factor * config_.cp();
    const int ranks = std::max(of_one_model, devices * nodes * choice.rank_factor);
    if (ranks > devices * nodes) devices = std::min((ranks + nodes - 1) / nodes, machine.cores);
    if (ranks > devices * nodes) nodes = (ranks + devices - 1) / devices;
    if (devices != config_.trainer.devices)
      settings.push_back(fmt::format("trainer.devices={}", devices));
    if (nodes != config_.trainer.num_nodes)
      settings.push_back(fmt::format("trainer.num_nodes={}", nodes));
    change.run.nodes = std::max(run_.nodes, nodes);
    change.more_hardware |= devices * nodes > config_.world_size();
    change.cost += kMoreCores * doublings(devices / config_.trainer.devices) +
                   kMoreNodes * doublings(nodes / config_.trainer.num_nodes);
    bound(choice, std::max(1, devices * nodes / of_one_model), change);
  }

  void bound(const Choice& choice, int dp, MemoryChange& change) const {
    const double shards = choice.tp_factor * choice.pp_factor;
    const trainer::DistributedStrategySection& strategy = config_.distributed_strategy;
    const double more = static_cast<double>(dp) / config_.dp();
    const double over = strategy.zero1 ? more : choice.zero1 ? dp : 1;  // of the states
    const double states = sizes_.optimizer_state / shards / over;
    // ZeRO-1 may shard gradients too. Stages of another number are cut elsewhere: the largest may
    // be less than its share of what it was.
    constexpr double kUneven = 1.25;
    change.lower_bound = (sizes_.parameter / shards / (strategy.fsdp ? more : 1) +
                          sizes_.gradient / shards / over + states) /
                         (choice.pp_factor > 1 ? kUneven : 1);
    if (!choice.instance.empty() && shards == 1)
      change.lower_bound += sizes_.other;  // the same run
    const double recomputed = choice.recompute == Recompute::kFull        ? 0.1
                              : choice.recompute == Recompute::kSelective ? 0.4
                                                                          : 1;
    change.guess = (sizes_.parameter + sizes_.gradient) / shards + states +
                   sizes_.other * recomputed / choice.micro_batch_divisor / choice.tp_factor;
  }

  trainer::RunSource run_;
  Sizes sizes_;
  RunConfig config_;
  Machine machine_;
};

void sort_by_cost(std::vector<MemoryChange>& changes) {
  std::ranges::stable_sort(
      changes, [](const MemoryChange& a, const MemoryChange& b) { return a.cost < b.cost; });
}

std::vector<int> powers_of_two(int most) {
  std::vector<int> all;
  for (int factor = 1; factor <= most; factor *= 2) all.push_back(factor);
  return all;
}

/// The settings that take no other layout, in every combination that changes anything or nothing.
std::vector<Choice> savers(const RunConfig& config) {
  std::vector<Choice> all{{}};
  const auto also = [&](bool possible, auto set) {
    if (!possible) return;
    const std::size_t before = all.size();
    for (std::size_t i = 0; i < before; ++i) {
      Choice choice = all[i];
      set(choice);
      all.push_back(choice);
    }
  };
  also(!config.distributed_strategy.zero1, [](Choice& choice) { choice.zero1 = true; });
  also(!config.distributed_strategy.sequence_parallel,
       [](Choice& choice) { choice.sequence_parallel = true; });
  const std::size_t before = all.size();
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (recompute <= config.model.recompute) continue;
    for (std::size_t i = 0; i < before; ++i) {
      Choice choice = all[i];
      choice.recompute = recompute;
      all.push_back(choice);
    }
  }
  also(config.data.micro_batch_size % 2 == 0,
       [](Choice& choice) { choice.micro_batch_divisor = 2; });
  return all;
}

}  // namespace

std::vector<MemoryChange> single_changes(const trainer::RunSource& run, const json& plan) {
  const Changes changes(run, plan);
  const RunConfig& config = changes.config();
  std::vector<MemoryChange> all;
  if (!config.distributed_strategy.zero1) all.push_back(changes.make({.zero1 = true}));
  if (!config.distributed_strategy.sequence_parallel)
    all.push_back(changes.make({.sequence_parallel = true}));
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (recompute > config.model.recompute) all.push_back(changes.make({.recompute = recompute}));
  }
  if (config.data.micro_batch_size % 2 == 0)
    all.push_back(changes.make({.micro_batch_divisor = 2}));
  all.push_back(changes.make({.tp_factor = 2}));
  all.push_back(changes.make({.pp_factor = 2}));
  all.push_back(changes.make({.node_factor = 2}));
  for (const std::string& instance : sim::instance_names()) {
    MemoryChange change = changes.make({.instance = instance});
    if (change.capacity > changes.machine().capacity) all.push_back(std::move(change));
  }
  sort_by_cost(all);
  return all;
}

std::vector<std::vector<MemoryChange>> combined_changes(const trainer::RunSource& run,
                                                        const json& plan) {
  constexpr int kMostTp = 64, kMostPp = 16, kMostRanks = 64;
  const Changes changes(run, plan);
  const std::vector<Choice> ways = savers(changes.config());
  std::set<std::string> seen;
  std::vector<std::pair<int, std::vector<MemoryChange>>> layouts;  // cost of the cheapest variant
  for (const int tp : powers_of_two(kMostTp)) {
    for (const int pp : powers_of_two(kMostPp)) {
      for (const int ranks : powers_of_two(kMostRanks)) {
        std::vector<MemoryChange> variants;
        for (Choice choice : ways) {
          choice.tp_factor = tp;
          choice.pp_factor = pp;
          choice.rank_factor = ranks;
          MemoryChange change = changes.make(choice);
          if (!change.arguments.empty() && change.guess <= static_cast<double>(change.capacity))
            variants.push_back(std::move(change));
        }
        if (variants.empty() || !seen.insert(variants.front().arguments).second)
          continue;  // more ranks that the layout needs anyway
        sort_by_cost(variants);
        layouts.emplace_back(variants.front().cost, std::move(variants));
      }
    }
  }
  std::ranges::stable_sort(layouts, {}, &std::pair<int, std::vector<MemoryChange>>::first);
  std::vector<std::vector<MemoryChange>> all;
  for (auto& [cost, variants] : layouts) all.push_back(std::move(variants));
  return all;
}

std::string why_illegal(const trainer::RunSource& run) {
  try {
    const trainer::RunCheck check =
        trainer::check_run_config(run.config_file, run.overrides, run.instance);
    if (!check.problems.empty()) return check.problems.front();
    trainer::refuse_unsupported(check.config, true);
    trainer::check_fits_machine(check.config,
                                system_of(run.instance, run.nodes, check.config.trainer.lnc));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace trellis::analysis
