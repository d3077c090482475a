// Two windows of a chain in turn. An engine executes in order, so that with one window at a time Vector waits for what Scalar makes of it,
// and Scalar for Vector; with two, each has the other window's step to do meanwhile.
#include "device/compiler/chain_emitter.h"

namespace trellis::device {

namespace {
constexpr std::int64_t kPartitions = 128;
}

void ChainEmitter::in_pairs(std::int64_t width) {
  const bool of_loops = space_.rows.size < 2 * kPartitions && !space_.loops.empty() && space_.loops.back().size % 2 == 0;
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
    whole_bodies({block(first, kPartitions), block(first + Index(kPartitions), kPartitions)}, {shared, shared});
  });
  for (std::int64_t done = pairs * 2 * kPartitions; done < space_.rows.size; done += kPartitions) {
    phase_.scope([&] { whole_bodies({block(done, std::min(kPartitions, space_.rows.size - done))}, {shared}); });
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

void ChainEmitter::whole_bodies(const std::vector<Window>& windows, std::vector<Places> lanes) {
  const std::size_t steps = chain_.steps.size();
  for (std::size_t s = 0; s < steps; s = unit_end(s, steps)) {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      std::swap(now_, lanes[i]);
      run_unit(windows[i], s, steps);
      std::swap(now_, lanes[i]);
    }
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    std::swap(now_, lanes[i]);
    for (std::size_t o = 0; o < chain_.outputs.size(); ++o) store_output(o, windows[i]);
    std::swap(now_, lanes[i]);
  }
}

}  // namespace trellis::device
