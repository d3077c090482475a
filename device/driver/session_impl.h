#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "device/driver/record/operator_uses.h"
#include "device/driver/session.h"
#include "device/driver/timing/cluster_job.h"
#include "device/driver/timing/program_timer.h"

namespace trellis::device {

/// A machine and what was timed on it: sessions on the same one that follow each other share both.
struct TimedMachine {
  explicit TimedMachine(sim::SystemConfig config)
      : system(std::move(config)), timer(system, 0, cache_directory()) {}

  const sim::SystemConfig system;
  ProgramTimer timer;
};

struct Session::Impl {
  explicit Impl(std::shared_ptr<TimedMachine> shared)
      : machine(std::move(shared)), timer(machine->timer) {}

  /// Gives each representative of a finer fold its own schedule.
  void split(StepTiming& step, const sim::RankFold& finer) {
    if (finer == step.job.fold) return;
    std::vector<std::size_t> sources;
    step.job = sim::unfold(step.job, finer, sources);
    const auto moved = [&](const auto& of) {
      std::remove_cvref_t<decltype(of)> result;
      for (const std::size_t source : sources) result.push_back(of[source]);
      return result;
    };
    step.origins = moved(step.origins);
    streams = moved(streams);
    graphs = moved(graphs);
  }

  std::shared_ptr<TimedMachine> machine;
  ProgramTimer& timer;
  std::vector<std::unique_ptr<RankRecorder>> ranks;
  std::optional<StepTiming> last;
  ContentHash last_key;
  std::optional<Picoseconds> without_slow_parts;  ///< the last step; none: no part is slow
  std::vector<const StepStream*> streams;
  std::vector<const std::vector<Graph>*> graphs;
  ContentHash compared_runs;  ///< graphs that all ranks ran, when their programs were last compared
  bool divergence_is_said = false;

  // with other processes
  struct Accounts {
    nlohmann::json memory;  ///< memory_row() of the rank
    OperatorUses uses;
  };
  std::map<int, ContentHash> given_graphs;  ///< by rank: what another process has got
  std::map<int, Accounts> taken;            ///< by rank: of those that ran elsewhere
};

}  // namespace trellis::device
