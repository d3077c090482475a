#pragma once

#include <chrono>
#include <memory>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace trellis::device {

/// Reads a device's time without keeping its queue waiting: with events, where the device times
/// them. A device without such events is waited for at every reading.
class DeviceClock {
 public:
  /// A moment: when the device's current stream reached it.
  struct Mark {
    std::chrono::steady_clock::time_point host;
    std::shared_ptr<c10::Event> event;  ///< null: `host` is the moment
  };
  explicit DeviceClock(c10::Device device);

  [[nodiscard]] Mark mark() const;
  /// Waits until the device has done what was asked of it.
  void synchronize() const;
  /// Seconds. REQUIRES: both are of this clock, and synchronize() since.
  [[nodiscard]] double between(const Mark& from, const Mark& to) const;
  [[nodiscard]] bool has_events() const { return has_events_; }

 private:
  [[nodiscard]] std::shared_ptr<c10::Event> recorded_event() const;
  [[nodiscard]] bool events_work() const;

  c10::Device device_;
  bool has_events_;
};

}  // namespace trellis::device
