#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/neuron_core/busy_meter.h"
#include "sim/systemc/engine.h"

namespace trellis::sim {

/// A core as the fast-forward sees it, except for its engines.
class RepeatingCore {
 public:
  /// All that decides about the future, relative to `now`: increments to come, DMA queues and
  /// engines, memory, intervals not yet counted.
  virtual void append_state(std::vector<std::int64_t>& out, std::int64_t now) const = 0;
  /// Appends the semaphores on which an engine waits.
  virtual void append_semaphores(std::vector<Semaphore*>& out) = 0;
  /// Appends the running totals, to be extrapolated.
  virtual void append_counters(std::vector<std::int64_t*>& out) = 0;
  [[nodiscard]] virtual BusyMeter& meter() = 0;
  /// Whatever it does from `now` on happens later by `time` than the clock shows.
  virtual void skip(std::int64_t now, std::int64_t time) = 0;

 protected:
  ~RepeatingCore() = default;
};

/// Skips the repetitions of loops. When an engine starts a loop over and the whole machine,
/// relative to the clock, is in a state in which it has been before at the same loop, then all that
/// has happened since will happen again, as often as every open loop allows:
///
///   state S ──period──▷ state S ──period──▷ S ──period──▷ S ── the loops run out ─▷
///   seen               seen again: count the period k more times, take k periods' iterations off
///                      the loops, go on
///
/// Exact: states compare equal to the picosecond, and every decision inside a period is the same as
/// long as no loop ends in it. The value of a semaphore may grow from period to period if no one
/// took from it in between: such a period repeats until its waiter could go on. Nothing is moved in
/// time: the clock stays, and the cores are notified of what is missing.
class FastForward final : public LoopObserver {
 public:
  void start(std::vector<Engine*> engines, std::vector<RepeatingCore*> cores);
  void loop_closed(Engine& engine, int level, std::int64_t now) override;

 private:
  struct Position {
    std::size_t at = 0;
    std::int64_t ahead = 0;  ///< of `now`
    bool operator==(const Position&) const = default;
  };
  /// The machine at one moment.
  struct Snapshot {
    std::int64_t time = 0;  ///< what is skipped included
    std::vector<Position> positions;
    std::vector<std::int64_t> state;
    std::vector<std::vector<Engine::OpenLoop>> loops;  ///< [engine]
    std::vector<Semaphore::Level> levels;              ///< [semaphore]
    std::vector<std::int64_t> counters;
    std::vector<BusyMeter::Totals> totals;  ///< [core]
  };
  /// Brent's search for a cycle: compares with one snapshot, which is replaced after 1, 2, 4, …
  /// iterations.
  struct Search {
    Snapshot before;
    Engine::OpenLoop loop{isa::kNone, 0};  ///< at the last look
    std::int64_t steps = 0;
    std::int64_t power = 0;  ///< 0: no snapshot
  };

  void capture(Snapshot& snapshot, std::int64_t now);
  [[nodiscard]] bool same_positions(const Snapshot& before, std::int64_t now) const;
  [[nodiscard]] bool same_state(const Snapshot& before, std::int64_t now);
  /// How many periods since `before` fit into every open loop and every semaphore; 0 when it was no
  /// period.
  [[nodiscard]] std::int64_t periods_left(const Snapshot& before, std::int64_t now) const;
  [[nodiscard]] std::int64_t periods_in_loops(const Snapshot& before) const;
  [[nodiscard]] std::int64_t periods_in_semaphores(const Snapshot& before, std::int64_t now) const;
  void skip(const Snapshot& before, std::int64_t periods, std::int64_t now);
  void read_state(std::int64_t now);

  std::vector<Engine*> engines_;
  std::vector<RepeatingCore*> cores_;
  std::vector<Semaphore*> semaphores_;
  std::vector<std::int64_t*> counters_;
  std::vector<std::array<Search, isa::kMaxLoopDepth>> searches_;  ///< [engine][level]
  std::vector<std::int64_t> state_;
  std::int64_t skipped_ = 0;
};

}  // namespace trellis::sim
