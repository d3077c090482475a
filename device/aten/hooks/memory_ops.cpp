#include <limits>

#include <nlohmann/json.hpp>
#include <torch/library.h>

#include "device/aten/state/rank_state.h"
#include "device/driver/reports/memory_report.h"

/// The memory services as operators, `torch.ops.trellis.*`: how Python asks a device that knows no
/// Python. Device −1: the current one.
namespace trellis::device {
namespace {

RankRecorder& recorder(std::int64_t device) {
  TORCH_CHECK(device >= -1 && device <= std::numeric_limits<c10::DeviceIndex>::max(),
              "neuron: invalid device index ", device, ": expected -1 (the current device) to ",
              device_count() - 1);
  return rank_state(device == -1 ? current_device() : static_cast<c10::DeviceIndex>(device))
      .recorder();
}

std::string stats(std::int64_t device) { return memory_stats(recorder(device).memory()).dump(); }
std::string snapshot(std::int64_t device) { return memory_snapshot(recorder(device)).dump(); }
std::string timeline(std::int64_t device) { return memory_timeline(recorder(device)).dump(); }
void reset_peak(std::int64_t device) { recorder(device).memory().reset_peak(); }
void reset_accumulated(std::int64_t device) { recorder(device).memory().reset_accumulated(); }

void keep_events(std::int64_t device, std::int64_t events) {
  constexpr std::int64_t kMost = std::int64_t{1} << 28;  // 4 GiB of host memory
  TORCH_CHECK(events >= 0 && events <= kMost, "neuron: memory timeline: expected 0 (off) to ",
              kMost, " events, got ", events);
  recorder(device).memory().set_timeline_capacity(static_cast<std::size_t>(events));
}

void empty_cache() {
  for (int rank = 0; rank < device_count(); ++rank) recorder(rank).memory().empty_cache();
}

TORCH_LIBRARY_FRAGMENT(trellis, library) {
  library.def("memory_stats(int device) -> str", stats);
  library.def("memory_snapshot(int device) -> str", snapshot);
  library.def("memory_timeline(int device) -> str", timeline);
  library.def("keep_memory_events(int device, int events) -> ()", keep_events);
  library.def("reset_peak_memory_stats(int device) -> ()", reset_peak);
  library.def("reset_accumulated_memory_stats(int device) -> ()", reset_accumulated);
  library.def("empty_cache() -> ()", empty_cache);
}

}  // namespace
}  // namespace trellis::device
