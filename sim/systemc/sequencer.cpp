#include "sim/systemc/sequencer.h"

#include <algorithm>
#include <utility>

#include "sim/systemc/time.h"

namespace trellis::sim {

Sequencer::Sequencer(const sc_core::sc_module_name& name) : sc_module(name) {
  SC_HAS_PROCESS(Sequencer);
  SC_METHOD(advance);
  sensitive << wake_;
  dont_initialize();
}

void Sequencer::start(std::vector<Engine*> engines) {
  engines_ = std::move(engines);
  wake_.notify(sc_core::SC_ZERO_TIME);
}

/// An event holds one notification, its earliest; `advance` finds out by itself who is to act.
void Sequencer::wake(std::int64_t time) {
  wake_.notify(duration_ps(std::max<std::int64_t>(time - now_ps(), 0)));
}

Engine* Sequencer::next() {
  Engine* first = nullptr;
  std::int64_t first_time = kNever;
  std::int64_t limit = kNever - 1;
  for (Engine* engine : engines_) {
    const std::int64_t time = engine->next_time();
    if (time < first_time) {
      // The ones before it win ties against it.
      if (first != nullptr) limit = std::min(limit, first_time - 1);
      first = engine;
      first_time = time;
    } else {
      limit = std::min(limit, time);
    }
  }
  limit_ = std::min(limit, horizon_);
  return first;
}

void Sequencer::advance() {
  horizon_ =
      sc_core::sc_pending_activity()
          ? now_ps() + static_cast<std::int64_t>(sc_core::sc_time_to_pending_activity().value())
          : kNever - 1;
  for (;;) {
    Engine* engine = next();
    if (engine == nullptr) return;
    if (engine->next_time() > horizon_) {
      wake(engine->next_time());
      return;
    }
    running_ = engine->number();
    engine->act();
    running_ = kNone;
  }
}

}  // namespace trellis::sim
