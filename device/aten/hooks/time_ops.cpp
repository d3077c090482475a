#include <nlohmann/json.hpp>
#include <torch/library.h>

#include "device/aten/state/rank_state.h"
#include "device/driver/reports/portability.h"
#include "device/driver/timing/rank_clock.h"

/// Operators by which Python reads simulated times: torch.ops.trellis.*.
namespace trellis::device {
namespace {

/// The recorder of a device, for its owner: its log belongs to one thread.
RankRecorder& recorder_of(std::int64_t device, const char* what) {
  TORCH_CHECK(device >= -1 && device < kMaxDevices, "neuron: invalid device index ", device);
  RankState& owner =
      rank_state(device < 0 ? current_device() : static_cast<c10::DeviceIndex>(device));
  TORCH_CHECK(owner.claim(), "neuron: ", what, " of ", owner.device(),
              " is known to the thread that is bound to rank ", owner.rank());
  TORCH_CHECK(owner.recorder().recording(), "neuron: ", what, " of ", owner.device(),
              " is not known: the device was configured with record=false");
  return owner.recorder();
}

std::int64_t simulated_time_ps(std::int64_t device) {
  RankRecorder& recorder = recorder_of(device, "the simulated time");
  recorder.cut("clock is read");
  recorder.clock().read();
  return recorder.clock().now().value;
}

std::string portability_of(std::int64_t device) {
  RankRecorder& recorder = recorder_of(device, "the portability list");
  recorder.cut("portability is asked for");
  const sim::SystemConfig& system = recorder.clock().system();
  return portability(recorder.uses(), system.instance.name, system.chip.core.limits.core_version)
      .dump();
}

TORCH_LIBRARY_FRAGMENT(trellis, m) {
  m.def("simulated_time_ps(int device=-1) -> int", &simulated_time_ps);
  m.def("portability(int device=-1) -> str", &portability_of);
}

}  // namespace
}  // namespace trellis::device
