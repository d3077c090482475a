#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "device/driver/step_timing.h"

namespace trellis::device {

/// Graphs become compiled and timed programs here, each content once, however many ranks, micro-batches and steps run it.
/// Calls may come from any thread.
class ProgramTimer {
 public:
  explicit ProgramTimer(const sim::SystemConfig& system) : system_(system) {}

  [[nodiscard]] const sim::SystemConfig& system() const { return system_; }
  /// Throws UnsupportedOp for an operation with neither a lowering nor an estimate.
  const TimedProgram& time(const Graph& graph);
  /// Never refuses a graph: what cannot be lowered is estimated, listed in CompiledGraph::estimated, and warned of once per operation.
  const TimedProgram& time_or_estimate(const Graph& graph);
  /// A communication whose members all arrive now, on an idle machine. Throws ConfigError when the fabric cannot form the group.
  Picoseconds communication(const CommRequest& request);
  sim::ClusterTiming run_cluster(const sim::ClusterJob& job);

 private:
  using Programs = std::map<ContentHash, std::unique_ptr<TimedProgram>>;
  using CommKey = std::tuple<sim::CollectiveKind, std::vector<int>, std::int64_t, int>;

  sim::Simulator& machine();
  const TimedProgram& keep(Programs& programs, const ContentHash& key, CompiledGraph compiled);
  CompiledGraph compile_anyhow(const Graph& graph);
  void warn_of(const CompiledGraph& compiled, const std::string& reason);

  const sim::SystemConfig& system_;
  std::mutex mutex_;
  Programs exact_;      ///< every operation has a lowering or an estimate of its own
  Programs estimated_;  ///< the others
  std::map<CommKey, Picoseconds> communications_;
  std::set<std::string> warned_;
  std::unique_ptr<sim::Simulator> simulator_;  ///< made at first use: SystemC elaborates once
};

}  // namespace trellis::device
