#include "device/torch_device/clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace trellis::device {

DeviceClock::DeviceClock(c10::Device device) : device_(device), has_events_(events_work()) {}

std::shared_ptr<c10::Event> DeviceClock::recorded_event() const {
  // BACKEND_DEFAULT: LibTorch's name for events that can be timed.
  auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

bool DeviceClock::events_work() const {
  if (device_.is_cpu()) return false;
  try {
    const auto from = recorded_event(), to = recorded_event();
    synchronize();
    return from->elapsedTime(*to) >= 0;
  } catch (const c10::Error&) {
    return false;  // LibTorch's default of a device that has none
  }
}

void DeviceClock::synchronize() const {
  if (!device_.is_cpu())
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
}

DeviceClock::Mark DeviceClock::mark() const {
  if (has_events_) return {{}, recorded_event()};
  synchronize();
  return {std::chrono::steady_clock::now(), nullptr};
}

double DeviceClock::between(const Mark& from, const Mark& to) const {
  if (from.event) return from.event->elapsedTime(*to.event) * 1e-3;
  return std::chrono::duration<double>(to.host - from.host).count();
}

}  // namespace trellis::device
