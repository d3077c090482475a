#include "sim/systemc/fast_forward.h"

#include <algorithm>
#include <utility>

namespace trellis::sim {
namespace {

/// By how much the one level on which they differ has gone on; -1: they are not the same loops, or
/// differ on several levels.
std::int64_t iterations_between(std::span<const Engine::OpenLoop> before,
                                std::span<const Engine::OpenLoop> after, std::size_t& level) {
  if (before.size() != after.size()) return -1;
  std::int64_t between = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].loop != after[i].loop || (before[i] != after[i] && between != 0)) return -1;
    if (before[i] == after[i]) continue;
    between = before[i].remaining - after[i].remaining;
    level = i;
  }
  return between;
}

struct KernelRange {
  std::uint32_t first = 0, end = 0;
};

/// The kernels on which engines inside loops work: what they do until a loop ends is for these.
KernelRange looping_kernels(std::span<Engine* const> engines) {
  KernelRange range{0xffffffffu, 0};
  for (Engine* engine : engines) {
    if (engine->open_loops().empty()) continue;
    const LoopBody& outermost = engine->queue().loops[engine->open_loops().front().loop];
    range.first = std::min(range.first, outermost.first_kernel);
    range.end = std::max(range.end, outermost.last_kernel + 1);
  }
  return range.first < range.end ? range : KernelRange{};
}

std::int64_t ahead_of(const Engine& engine, std::int64_t now) {
  return std::max<std::int64_t>(engine.local_time() - now, 0);
}

}  // namespace

void FastForward::start(std::vector<Engine*> engines, std::vector<RepeatingCore*> cores) {
  engines_ = std::move(engines);
  cores_ = std::move(cores);
  counters_.clear();
  semaphores_.clear();
  for (auto* core : cores_) {
    core->append_counters(counters_);
    core->append_semaphores(semaphores_);
  }
  searches_.resize(engines_.size());
  for (auto& levels : searches_) {
    for (auto& search : levels) search.loop = {isa::kNone, 0};
  }
  skipped_ = 0;
}

void FastForward::loop_closed(Engine& engine, int level, std::int64_t now) {
  Search& search =
      searches_[static_cast<std::size_t>(engine.number())][static_cast<std::size_t>(level)];
  const Engine::OpenLoop& loop = engine.open_loops()[static_cast<std::size_t>(level)];
  const bool entered_again =
      loop.loop != search.loop.loop || loop.remaining >= search.loop.remaining;
  if (entered_again) search.power = 0;
  if (search.power > 0 && same_positions(search.before, now) && same_state(search.before, now)) {
    const std::int64_t periods = periods_left(search.before, now);
    if (periods > 0) {
      skip(search.before, periods, now);
      search.power = 0;
    }
  }
  search.loop = loop;
  if (search.power > 0 && ++search.steps < search.power) return;
  search.power = std::max<std::int64_t>(1, 2 * search.power);
  search.steps = 0;
  capture(search.before, now);
}

void FastForward::read_state(std::int64_t now) {
  state_.clear();
  for (const auto* engine : engines_) engine->append_state(state_, now);
  for (const auto* core : cores_) core->append_state(state_, now);
}

void FastForward::capture(Snapshot& snapshot, std::int64_t now) {
  snapshot.time = now + skipped_;
  read_state(now);
  snapshot.state.swap(state_);
  snapshot.positions.clear();
  snapshot.loops.resize(engines_.size());
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    const auto open = engines_[e]->open_loops();
    snapshot.positions.push_back({engines_[e]->position(), ahead_of(*engines_[e], now)});
    snapshot.loops[e].assign(open.begin(), open.end());
  }
  snapshot.levels.clear();
  for (const auto* semaphore : semaphores_) snapshot.levels.push_back(semaphore->level(now));
  snapshot.counters.clear();
  for (const auto* counter : counters_) snapshot.counters.push_back(*counter);
  snapshot.totals.resize(cores_.size());
  for (std::size_t c = 0; c < cores_.size(); ++c) {
    const KernelRange kernels =
        looping_kernels({engines_.data() + c * isa::kNumEngines, isa::kNumEngines});
    cores_[c]->meter().read(snapshot.totals[c], now, kernels.first, kernels.end);
  }
}

bool FastForward::same_positions(const Snapshot& before, std::int64_t now) const {
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    if (before.positions[e] != Position{engines_[e]->position(), ahead_of(*engines_[e], now)})
      return false;
  }
  return true;
}

bool FastForward::same_state(const Snapshot& before, std::int64_t now) {
  read_state(now);
  return state_ == before.state;
}

std::int64_t FastForward::periods_left(const Snapshot& before, std::int64_t now) const {
  return std::min(periods_in_loops(before), periods_in_semaphores(before, now));
}

std::int64_t FastForward::periods_in_semaphores(const Snapshot& before, std::int64_t now) const {
  std::int64_t periods = kNever;
  for (std::size_t s = 0; s < semaphores_.size(); ++s) {
    const Semaphore::Level level = semaphores_[s]->level(now);
    const std::int64_t growth = level.visible - before.levels[s].visible;
    if (growth == 0) continue;
    if (growth < 0 || level.taken != before.levels[s].taken) return 0;
    if (level.missing != kNever) periods = std::min(periods, (level.missing - 1) / growth);
  }
  return periods;
}

std::int64_t FastForward::periods_in_loops(const Snapshot& before) const {
  std::int64_t periods = kNever;
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    std::size_t level = 0;
    const auto open = engines_[e]->open_loops();
    const std::int64_t iterations = iterations_between(before.loops[e], open, level);
    if (iterations < 0) return 0;
    // One iteration stays: an engine inside a loop has not ended it.
    if (iterations > 0) periods = std::min(periods, (open[level].remaining - 1) / iterations);
  }
  return periods == kNever ? 0 : periods;
}

void FastForward::skip(const Snapshot& before, std::int64_t periods, std::int64_t now) {
  const std::int64_t period = now + skipped_ - before.time;
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    std::size_t level = 0;
    const auto open = engines_[e]->open_loops();
    const std::int64_t iterations = iterations_between(before.loops[e], open, level);
    if (iterations > 0) open[level].remaining -= periods * iterations;
  }
  for (std::size_t s = 0; s < semaphores_.size(); ++s) {
    const std::int64_t growth = semaphores_[s]->level(now).visible - before.levels[s].visible;
    if (growth > 0) semaphores_[s]->raise(now, periods * growth);
  }
  for (std::size_t i = 0; i < counters_.size(); ++i)
    *counters_[i] += periods * (*counters_[i] - before.counters[i]);
  for (std::size_t c = 0; c < cores_.size(); ++c) {
    cores_[c]->meter().repeat(before.totals[c], now, periods, period);
    cores_[c]->skip(now, periods * period);
  }
  skipped_ += periods * period;
}

}  // namespace trellis::sim
