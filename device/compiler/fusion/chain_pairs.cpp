// Two windows of a chain alternately. An engine executes in order, so that with one window at a
// time Vector waits for what Scalar makes of it, and Scalar for Vector; with two, each has the
// other window's step to do meanwhile.
#include <algorithm>
#include <array>

#include "device/compiler/fusion/chain_emitter.h"

namespace trellis::device {

namespace {
constexpr int kTurns = 3;
}  // namespace

void ChainEmitter::in_pairs(std::int64_t width) {
  const bool of_loops = space_.rows.size < 2 * kPartitions && !space_.loops.empty() &&
                        space_.loops.back().size % 2 == 0;
  paired_ = of_loops || space_.rows.size >= 2 * kPartitions;
  Window window;
  for_each_loop(0, of_loops ? 2 : 1, window, [&](Window& w) {
    for_each_columns(width, w, [&](Window& x) { of_loops ? pairs_of_loops(x) : pairs_of_rows(x); });
  });
  remainder([&](const Window& w) { whole_body(w); });
}

/// Neighbouring blocks of rows. They share what is the same for all rows.
void ChainEmitter::pairs_of_rows(Window& window) {
  now_ = {};
  load_invariant(window);
  const Places shared = now_;
  const std::int64_t pairs = space_.rows.size / (2 * kPartitions);
  const auto block = [&](Index first, std::int64_t rows) {
    Window w = window;
    w.row = std::move(first);
    w.rows = rows;
    return w;
  };
  phase_.loop(pairs, [&](const Index& i) {
    const Index first = i * (2 * kPartitions);
    whole_bodies({block(first, kPartitions), block(first + Index(kPartitions), kPartitions)},
                 {shared, shared});
  });
  for (std::int64_t done = pairs * 2 * kPartitions; done < space_.rows.size; done += kPartitions) {
    phase_.scope([&] {
      whole_bodies({block(done, std::min(kPartitions, space_.rows.size - done))}, {shared});
    });
  }
  now_ = {};
}

/// The same rows at two steps of the innermost loop, of which `window` has the first.
void ChainEmitter::pairs_of_loops(Window& window) {
  std::vector<Window> windows(2, window);
  windows[1].loops.back() = windows[1].loops.back() + Index(1);
  std::vector<Places> shared;
  for (const Window& w : windows) {
    now_ = {};
    load_invariant(w);
    shared.push_back(std::move(now_));
  }
  phase_.tiles(space_.rows.size, kPartitions, [&](const Index& first, std::int64_t rows) {
    for (Window& w : windows) w.row = first, w.rows = rows;
    whole_bodies(windows, shared);
  });
  now_ = {};
}

/// The second window follows `lag` units after the first.
void ChainEmitter::whole_bodies(const std::vector<Window>& windows, std::vector<Places> lanes) {
  const std::size_t steps = chain_.steps.size();
  const std::vector<Unit> units = all_units();
  const std::size_t lag = windows.size() > 1 ? best_lag(windows[0]) : 0;
  for (std::size_t turn = 0; turn < units.size() + lag * (windows.size() - 1); ++turn) {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (turn < i * lag || turn - i * lag >= units.size()) continue;
      std::swap(now_, lanes[i]);
      run_unit(windows[i], units[turn - i * lag].first, steps);
      std::swap(now_, lanes[i]);
    }
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    std::swap(now_, lanes[i]);
    store_outputs(windows[i]);
    std::swap(now_, lanes[i]);
  }
}

/// Those that each window executes.
std::vector<ChainEmitter::Unit> ChainEmitter::all_units() const {
  std::vector<Unit> units;
  for (Unit unit; unit.end < chain_.steps.size();) {
    unit = unit_at(unit.end, chain_.steps.size());
    if (!constant_[static_cast<std::size_t>(chain_.steps[unit.first].dst)]) units.push_back(unit);
  }
  return units;
}

/// Cycles of two windows in the long run: engines execute in order; a unit waits for its operands
/// and for the units that still read what it overwrites.
double ChainEmitter::turn_cycles(std::size_t lag, const Window& window) const {
  struct Lane {
    std::vector<double> ready, read;  ///< value → made, last read
  };
  const std::vector<Unit> units = all_units();
  const Lane empty{std::vector<double>(chain_.values.size()),
                   std::vector<double>(chain_.values.size())};
  std::array<Lane, 2> lanes{empty, empty};
  std::array<double, isa::kNumEngines> free{};
  const double elements = static_cast<double>(window.width() * space_.group.size);
  const auto run = [&](Lane& lane, const Unit& unit) {
    const Work work = work_of(unit);
    double& engine = free[static_cast<std::size_t>(work.engine)];
    double start = engine;
    for (std::size_t s = unit.first; s < unit.end; ++s) {
      start = std::max(start, lane.read[static_cast<std::size_t>(chain_.steps[s].dst)]);
      for (const int v : {chain_.steps[s].a, chain_.steps[s].b})
        start = std::max(start, v < 0 || (s > unit.first && v == chain_.steps[s - 1].dst)
                                    ? 0
                                    : lane.ready[static_cast<std::size_t>(v)]);
    }
    engine = start + std::max(planning_.chain_unit_cycles, work.passes * elements);
    for (std::size_t s = unit.first; s < unit.end; ++s) {
      lane.ready[static_cast<std::size_t>(chain_.steps[s].dst)] =
          engine + planning_.chain_latency_cycles;
      for (const int v : {chain_.steps[s].a, chain_.steps[s].b}) {
        if (v >= 0)
          lane.read[static_cast<std::size_t>(v)] =
              std::max(lane.read[static_cast<std::size_t>(v)], engine);
      }
    }
  };
  double begin = 0;
  for (int i = 0; i < 2 * kTurns; ++i) {
    if (i == kTurns) begin = *std::max_element(free.begin(), free.end());
    for (std::size_t turn = 0; turn < units.size() + lag; ++turn) {
      if (turn < units.size()) run(lanes[0], units[turn]);
      if (turn >= lag) run(lanes[1], units[turn - lag]);
    }
  }
  return (*std::max_element(free.begin(), free.end()) - begin) / kTurns;
}

std::size_t ChainEmitter::best_lag(const Window& window) const {
  const std::size_t units = all_units().size();
  std::size_t best = 0;
  double least = turn_cycles(0, window);
  for (std::size_t lag = 1; lag <= units; ++lag) {
    const double cycles = turn_cycles(lag, window);
    if (cycles < least * planning_.chain_lag_gain) best = lag, least = cycles;
  }
  return best;
}

}  // namespace trellis::device
