#include "device/aten/hooks/events.h"

#include <mutex>
#include <unordered_set>

#include "device/aten/state/rank_state.h"
#include "device/aten/state/streams.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device::events {
namespace {

struct Event {
  c10::DeviceIndex device = 0;
  std::shared_ptr<TimeMark> mark;  ///< null: nothing was recorded there, see why_untimed
};

struct Registry {
  std::mutex mutex;
  std::unordered_set<const void*> live;
};

/// Never destroyed: programs free events up to the very end of the process.
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

Event& live(void* event) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  TORCH_CHECK(all.live.contains(event),
              "neuron: use of an event that was freed, or that this device did not make");
  return *static_cast<Event*>(event);
}

Event& make(void** event) {
  Registry& all = registry();
  auto fresh = std::make_unique<Event>();
  const std::lock_guard lock(all.mutex);
  all.live.insert(fresh.get());
  *event = fresh.get();
  return *fresh.release();
}

/// The recorder that writes this thread's work on the device down; null: none does.
RankRecorder* recorder_here(c10::DeviceIndex device) {
  RankState& owner = rank_state(device);
  return owner.claim() && owner.recorder().recording() ? &owner.recorder() : nullptr;
}

}  // namespace

void record(void** event, const c10::Stream& stream) {
  check_stream(stream);
  Event& marked = *event == nullptr ? make(event) : live(*event);
  marked.device = stream.device_index();
  marked.mark.reset();
  RankRecorder* const recorder = recorder_here(marked.device);
  if (recorder == nullptr) return;
  recorder->cut("event");
  marked.mark = std::make_shared<TimeMark>();
  recorder->clock().mark(static_cast<int>(stream.id()), marked.mark);
}

void destroy(void* event) noexcept {
  if (event == nullptr) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.live.erase(event) != 0) delete static_cast<Event*>(event);
}

void block(void* event, const c10::Stream& stream) {
  check_stream(stream);
  const Event& marked = live(event);
  TORCH_CHECK(marked.device == stream.device_index(), "neuron: stream ", stream.id(), " of ",
              stream.device(),
              " cannot wait for an event of neuron:", static_cast<int>(marked.device),
              ": streams wait inside one device; synchronise the host instead");
  RankRecorder* const recorder = recorder_here(marked.device);
  if (recorder == nullptr || marked.mark == nullptr) return;
  recorder->cut("event");
  recorder->clock().wait(static_cast<int>(stream.id()), marked.mark);
}

void synchronize(void* event) {
  const Event& marked = live(event);
  RankRecorder* const recorder = recorder_here(marked.device);
  if (recorder != nullptr && marked.mark != nullptr) recorder->clock().host_waits(marked.mark);
}

void check(void* event) { live(event); }

double elapsed_ms(void* start, void* end) {
  const Event &first = live(start), &last = live(end);
  TORCH_CHECK(first.device == last.device,
              "neuron: elapsed time between events of neuron:", static_cast<int>(first.device),
              " and neuron:", static_cast<int>(last.device), ": each device has its own clock");
  TORCH_CHECK(first.mark != nullptr && last.mark != nullptr,
              "neuron: an event has no simulated time: it was recorded with record=false, or by a ",
              "thread that is not bound to rank ", static_cast<int>(first.device));
  if (!first.mark->time || !last.mark->time) {
    RankRecorder* const recorder = recorder_here(first.device);
    TORCH_CHECK(recorder != nullptr, "neuron: only the thread that is bound to rank ",
                static_cast<int>(first.device), " can ask for the time of its events");
    recorder->clock().read();
    TORCH_CHECK(first.mark->time && last.mark->time,
                "neuron: an event was recorded on a machine that has been shut down since: the "
                "device was configured again");
  }
  return to_milliseconds(*last.mark->time - *first.mark->time);
}

}  // namespace trellis::device::events
