#include "device/driver/timing/piece_timer.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/activity.h"
#include "base/log.h"

namespace trellis::device {

/// Compiles graphs in order on helper threads while the owner times those that are done. A graph
/// that cannot be compiled is compiled again by take(), so that its error is thrown where it is
/// wanted.
class PieceTimer::CompileAhead {
 public:
  CompileAhead(std::vector<const Graph*> graphs, const sim::CoreConfig& core, int threads)
      : graphs_(std::move(graphs)),
        core_(core),
        claimed_(graphs_.size()),
        done_(graphs_.size()),
        compiled_(graphs_.size()) {
    const int helpers = std::min(threads, static_cast<int>(graphs_.size())) - 1;
    for (int i = 0; i < helpers; ++i) {
      helpers_.emplace_back([this](const std::stop_token& stop) {
        for (std::size_t g = 0; g < graphs_.size() && !stop.stop_requested(); ++g) try_compile(g);
      });
    }
  }

  CompiledGraph take(std::size_t index) {
    try_compile(index);
    done_[index].wait(false);
    if (!compiled_[index]) return compile(*graphs_[index], core_);
    CompiledGraph compiled = std::move(*compiled_[index]);
    compiled_[index].reset();
    return compiled;
  }

 private:
  void try_compile(std::size_t index) {
    if (claimed_[index].test_and_set()) return;
    try {
      compiled_[index] = compile(*graphs_[index], core_);
    } catch (const std::exception&) {  // thrown again by take()
    }
    done_[index].test_and_set();
    done_[index].notify_all();
  }

  std::vector<const Graph*> graphs_;
  const sim::CoreConfig& core_;
  std::vector<std::atomic_flag> claimed_, done_;
  std::vector<std::optional<CompiledGraph>> compiled_;
  std::vector<std::jthread> helpers_;  ///< last: they end before what they use
};

PieceTimer::Shared PieceTimer::find(const ContentHash& hash, Unknown unknown) const {
  auto known = pieces_.find({hash, Unknown::kRefuse});
  if (known == pieces_.end() && unknown == Unknown::kEstimate)
    known = pieces_.find({hash, Unknown::kEstimate});
  return known == pieces_.end() ? nullptr : known->second;
}

std::vector<PieceTimer::Shared> PieceTimer::time(const std::vector<Graph>& pieces,
                                                 Unknown unknown) {
  std::vector<ContentHash> hashes;
  std::vector<const Graph*> fresh;
  std::set<ContentHash> seen;
  for (const Graph& piece : pieces) {
    const ContentHash hash = piece.hash();
    hashes.push_back(hash);
    if (find(hash, unknown) != nullptr || !seen.insert(hash).second) continue;
    if (std::optional<TimedPiece> kept = cache_.load(hash)) {
      keep(piece, {hash, Unknown::kRefuse}, std::move(*kept));
    } else {
      fresh.push_back(&piece);
    }
  }
  std::optional<Activity> activity;
  if (!fresh.empty())
    activity.emplace("compiling and timing pieces of a graph of phase " + fresh.front()->name);
  CompileAhead ahead(fresh, core_, threads_);
  std::vector<Shared> timed;
  std::size_t next = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (activity)
      activity->count(static_cast<std::int64_t>(next), static_cast<std::int64_t>(fresh.size()));
    const Shared known = find(hashes[i], unknown);
    timed.push_back(known != nullptr ? known : make(pieces[i], hashes[i], unknown, ahead, next++));
  }
  return timed;
}

PieceTimer::Shared PieceTimer::make(const Graph& piece, const ContentHash& hash, Unknown unknown,
                                    CompileAhead& ahead, std::size_t index) {
  if (unknown == Unknown::kRefuse) return keep(piece, {hash, Unknown::kRefuse}, ahead.take(index));
  try {
    return keep(piece, {hash, Unknown::kRefuse}, ahead.take(index));
  } catch (const std::exception&) {  // an UnsupportedOp, or operands that a lowering did not expect
    return keep(piece, {hash, Unknown::kEstimate}, compile_anyhow(piece));
  }
}

PieceTimer::Shared PieceTimer::keep(const Graph& piece, const Key& key,
                                    const CompiledGraph& compiled) {
  TimedPiece timed;
  timed.kernels = compiled.program.kernels;
  timed.instructions = compiled.program.instruction_count();
  timed.estimated = compiled.estimated;
  timed.unknown = compiled.unknown;
  timed.coverage = compiled.coverage;
  timed.host_copies = compiled.host_copies;
  timed.timing = std::make_shared<const sim::CoreTiming>(time_(compiled.program));
  // Operations that the compiler does not know are reported in every process, so their pieces are
  // not kept.
  if (key.second == Unknown::kRefuse) cache_.store(key.first, timed);
  return keep(piece, key, std::move(timed));
}

PieceTimer::Shared PieceTimer::keep(const Graph& piece, const Key& key, TimedPiece timed) {
  const double stretch =
      piece.phase() == TrainingPhase::kOptimizer ? stretch_.optimizer : stretch_.programs;
  if (stretch != 1) {
    sim::CoreTiming longer = *timed.timing;
    // No one is busier for it: the engines wait.
    for (sim::SegmentTiming& segment : longer.segments)
      segment.duration = Picoseconds(
          static_cast<std::int64_t>(static_cast<double>(segment.duration.value) * stretch));
    timed.timing = std::make_shared<const sim::CoreTiming>(std::move(longer));
  }
  return pieces_.emplace(key, std::make_shared<const TimedPiece>(std::move(timed))).first->second;
}

void PieceTimer::forget_unused() {
  std::erase_if(pieces_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

CompiledGraph PieceTimer::compile_anyhow(const Graph& piece) {
  std::string reason = "their program never ends";
  try {
    CompiledGraph compiled = compile(piece, core_, Estimates::kUnknownToo);
    if (!compiled.unknown.empty()) {
      warn_of(compiled, "the compiler has neither a lowering nor an estimate for them");
      return compiled;
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  CompiledGraph compiled = compile(piece, core_, Estimates::kEverything);
  warn_of(compiled, fmt::format("the compiler cannot take their graph ({})", reason));
  return compiled;
}

void PieceTimer::warn_of(const CompiledGraph& compiled, const std::string& reason) {
  std::vector<std::string> fresh;
  for (const std::string& name : compiled.unknown) {
    if (warned_.insert(name).second) fresh.push_back(name);
  }
  if (fresh.empty()) return;
  log_warning(fmt::format("simulated time counts {} as passes over the operands: {}",
                          fmt::join(fresh, ", "), reason));
}

}  // namespace trellis::device
