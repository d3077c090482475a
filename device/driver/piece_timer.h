#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/driver/timing_cache.h"

namespace trellis::device {

/// What becomes of an operation that the compiler does not know.
enum class Unknown : std::uint8_t {
  kRefuse,    ///< UnsupportedOp
  kEstimate,  ///< never refused: estimated, listed in TimedPiece::unknown, and warned of once per operation
};

/// What pieces take over what their programs take alone.
struct PieceStretch {
  double programs = 1, optimizer = 1;
};

/// Pieces of graphs become compiled and timed programs here, each content once. Compiles on several host threads, times on the kernel's.
/// Not thread-safe.
class PieceTimer {
 public:
  using Time = std::function<sim::CoreTiming(const sim::isa::Program&)>;

  /// `threads`: host threads that compile, at least 1; the result does not depend on it.
  PieceTimer(const sim::CoreConfig& core, Time time, TimingCache cache, int threads, PieceStretch stretch = {})
      : core_(core), time_(std::move(time)), cache_(std::move(cache)), threads_(threads), stretch_(stretch) {}

  /// One for each graph, in order; valid as long as this object.
  std::vector<const TimedPiece*> time(const std::vector<Graph>& pieces, Unknown unknown);

 private:
  using Key = std::pair<ContentHash, Unknown>;  ///< kEstimate: only those that kRefuse would throw for

  class CompileAhead;
  [[nodiscard]] const TimedPiece* find(const ContentHash& hash, Unknown unknown) const;
  const TimedPiece& make(const Graph& piece, const ContentHash& hash, Unknown unknown, CompileAhead& ahead, std::size_t index);
  CompiledGraph compile_anyhow(const Graph& piece);
  void warn_of(const CompiledGraph& compiled, const std::string& reason);
  const TimedPiece& keep(const Graph& piece, const Key& key, const CompiledGraph& compiled);
  const TimedPiece& keep(const Graph& piece, const Key& key, TimedPiece timed);

  const sim::CoreConfig& core_;
  Time time_;
  TimingCache cache_;
  int threads_;
  PieceStretch stretch_;
  std::map<Key, std::unique_ptr<TimedPiece>> pieces_;
  std::set<std::string> warned_;
};

}  // namespace trellis::device
