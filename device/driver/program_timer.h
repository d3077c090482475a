#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/driver/piece_timer.h"
#include "device/driver/rank_stream.h"

namespace trellis::device {

/// Graphs become timed programs here, each content once, however many ranks, micro-batches and steps run it; so do their pieces, however
/// many layers are equal. Calls may come from any thread.
class ProgramTimer {
 public:
  /// `threads`: host threads that compile; 0: as many as the host has. `cache`: where timings outlive the process, see cache_directory().
  explicit ProgramTimer(const sim::SystemConfig& system, int threads = 0, std::optional<std::filesystem::path> cache = std::nullopt);

  [[nodiscard]] const sim::SystemConfig& system() const { return system_; }
  /// Throws UnsupportedOp for an operation with neither a lowering nor an estimate.
  const TimedProgram& time(const Graph& graph) { return time(graph, Unknown::kRefuse); }
  /// Never refuses a graph: what cannot be lowered is estimated, listed in TimedProgram::estimated, and warned of once per operation.
  const TimedProgram& time_or_estimate(const Graph& graph) { return time(graph, Unknown::kEstimate); }
  /// A communication whose members all arrive now, on an idle machine. Throws ConfigError when the fabric cannot form the group.
  Picoseconds communication(const CommRequest& request);
  [[nodiscard]] sim::RankFold equal_ranks(const sim::ClusterJob& job);
  sim::ClusterTiming run_cluster(const sim::ClusterJob& job);

 private:
  using CommKey = std::tuple<sim::CollectiveKind, std::vector<int>, std::int64_t, int>;

  const TimedProgram& time(const Graph& graph, Unknown unknown);
  [[nodiscard]] std::unique_ptr<TimedProgram> build(const Graph& graph, const ContentHash& hash, Unknown unknown);
  void add_communication(const Graph& graph, std::uint32_t index, TimedProgram& program) const;
  sim::Simulator& machine();

  const sim::SystemConfig& system_;
  std::mutex mutex_;
  PieceTimer pieces_;
  std::map<std::pair<ContentHash, Unknown>, std::unique_ptr<TimedProgram>> programs_;
  std::map<CommKey, Picoseconds> communications_;
  std::unique_ptr<sim::Simulator> simulator_;  ///< made at first use: SystemC elaborates once
};

}  // namespace trellis::device
