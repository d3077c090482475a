#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/driver/timing/timing_cache.h"

namespace trellis::device {

/// How an operation is treated that the compiler does not know.
enum class Unknown : std::uint8_t {
  kRefuse,    ///< UnsupportedOp
  kEstimate,  ///< never refused: estimated, listed in TimedPiece::unknown, and warned of once per
              ///< operation
};

/// Time of pieces divided by the time of their programs alone.
struct PieceStretch {
  double programs = 1, optimizer = 1;
};

/// Pieces of graphs become compiled and timed programs here, each content once. Compiles on several
/// host threads, times on the kernel's. Not thread-safe.
class PieceTimer {
 public:
  using Time = std::function<sim::CoreTiming(const sim::isa::Program&)>;

  /// `threads`: host threads that compile, at least 1; the result does not depend on it.
  PieceTimer(const sim::CoreConfig& core, Time time, TimingCache cache, int threads,
             PieceStretch stretch = {})
      : core_(core),
        time_(std::move(time)),
        cache_(std::move(cache)),
        threads_(threads),
        stretch_(stretch) {}

  using Shared = std::shared_ptr<const TimedPiece>;
  /// One for each graph, in order.
  std::vector<Shared> time(const std::vector<Graph>& pieces, Unknown unknown);
  /// Forgets those that have no other holder.
  void forget_unused();

 private:
  using Key =
      std::pair<ContentHash, Unknown>;  ///< kEstimate: only those that kRefuse would throw for

  class CompileAhead;
  [[nodiscard]] Shared find(const ContentHash& hash, Unknown unknown) const;
  Shared make(const Graph& piece, const ContentHash& hash, Unknown unknown, CompileAhead& ahead,
              std::size_t index);
  CompiledGraph compile_anyhow(const Graph& piece);
  void warn_of(const CompiledGraph& compiled, const std::string& reason);
  Shared keep(const Graph& piece, const Key& key, const CompiledGraph& compiled);
  Shared keep(const Graph& piece, const Key& key, TimedPiece timed);

  const sim::CoreConfig& core_;
  Time time_;
  TimingCache cache_;
  int threads_;
  PieceStretch stretch_;
  std::map<Key, Shared> pieces_;
  std::set<std::string> warned_;
};

}  // namespace trellis::device
