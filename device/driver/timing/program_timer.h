#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/driver/timing/piece_timer.h"
#include "device/driver/timing/step_stream.h"

namespace trellis::device {

/// Graphs become timed programs here, each content once, however many ranks, micro-batches and
/// steps run it; so do their pieces, however many layers are equal. Calls may come from any thread.
class ProgramTimer {
 public:
  /// Distinct graphs, and communications, whose timings are kept; then all are forgotten, and those
  /// that come again are timed (or read from the disk's cache) again.
  static constexpr std::size_t kMostPrograms = 4096, kMostCommunications = std::size_t{1} << 16;

  /// `threads`: host threads that compile; 0: as many as the host has. `cache`: where timings
  /// outlive the process, see cache_directory().
  explicit ProgramTimer(const sim::SystemConfig& system, int threads = 0,
                        std::optional<std::filesystem::path> cache = std::nullopt,
                        std::size_t most_programs = kMostPrograms);

  [[nodiscard]] const sim::SystemConfig& system() const { return system_; }
  /// kRefuse: throws UnsupportedOp for an operation with neither a lowering nor an estimate.
  /// kEstimate: never refuses a graph; what cannot be lowered is estimated, listed in
  /// TimedProgram::estimated, and warned of once per operation.
  [[nodiscard]] std::shared_ptr<const TimedProgram> share(const Graph& graph, Unknown unknown);
  /// The same, valid until kMostPrograms others were timed.
  const TimedProgram& time(const Graph& graph) { return *share(graph, Unknown::kRefuse); }
  const TimedProgram& time_or_estimate(const Graph& graph) {
    return *share(graph, Unknown::kEstimate);
  }
  /// A communication whose members all arrive now, on an idle machine. Throws ConfigError when the
  /// fabric cannot form the group.
  Picoseconds communication(const CommRequest& request);
  [[nodiscard]] sim::RankFold equal_ranks(const sim::ClusterJob& job);
  sim::ClusterTiming run_cluster(const sim::ClusterJob& job);
  Picoseconds makespan_without_slow_parts(const sim::ClusterJob& job);

 private:
  using CommKey = std::tuple<sim::CollectiveKind, std::vector<int>, std::int64_t, int>;

  [[nodiscard]] std::shared_ptr<const TimedProgram> build(const Graph& graph,
                                                          const ContentHash& hash, Unknown unknown);
  void add_communication(const Graph& graph, std::uint32_t index, TimedProgram& program) const;
  sim::Simulator& machine();

  const sim::SystemConfig& system_;
  std::size_t most_programs_;
  std::mutex mutex_;
  PieceTimer pieces_;
  std::map<std::pair<ContentHash, Unknown>, std::shared_ptr<const TimedProgram>> programs_;
  std::map<CommKey, Picoseconds> communications_;
  std::unique_ptr<sim::Simulator> simulator_;  ///< made at first use: SystemC elaborates once
};

}  // namespace trellis::device
