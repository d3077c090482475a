#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/calls/flight_dump.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {

/// The dumps of a world, written once: by its watch, or when all ranks have ended.
class DumpOnce {
 public:
  DumpOnce(const Rendezvous& rendezvous, const FlightDumpWriter& write)
      : rendezvous_(rendezvous), write_(write) {}
  std::string operator()() {
    const std::lock_guard lock(mutex_);
    if (!text_) text_ = written();
    return *text_;
  }

 private:
  [[nodiscard]] std::string written() const {
    if (!write_) return "";
    try {
      return write_(rendezvous_.flight_dumps());
    } catch (const std::exception& error) {
      return std::string("  flight recorder: not written: ") + error.what();
    }
  }
  const Rendezvous& rendezvous_;
  const FlightDumpWriter& write_;
  std::mutex mutex_;
  std::optional<std::string> text_;
};

}  // namespace trellis::runtime
