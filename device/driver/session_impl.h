#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "device/driver/cluster_job.h"
#include "device/driver/operator_uses.h"
#include "device/driver/program_timer.h"
#include "device/driver/session.h"

namespace trellis::device {

struct Session::Impl {
  explicit Impl(const sim::SystemConfig& system) : timer(system, 0, cache_directory()) {}

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

  ProgramTimer timer;
  std::vector<std::unique_ptr<RankRecorder>> ranks;
  std::optional<StepTiming> last;
  ContentHash last_key;
  std::vector<const StepStream*> streams;
  std::vector<const std::vector<Graph>*> graphs;

  // with other processes
  struct Accounts {
    nlohmann::json memory;  ///< memory_row() of the rank
    OperatorUses uses;
  };
  std::map<int, ContentHash> given_graphs;  ///< by rank: what another process has got
  std::map<int, Accounts> taken;            ///< by rank: of those that ran elsewhere
};

}  // namespace trellis::device
