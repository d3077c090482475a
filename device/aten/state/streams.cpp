#include "device/aten/state/streams.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "device/aten/state/rank_state.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device {
namespace {

constexpr int kPool = RankClock::kStreams - 1;

bool several_streams() {
  static const bool several = [] {
    const char* const value = std::getenv("NEURON_RT_ENABLE_HOST_CC");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return several;
}

/// How many streams each device was asked for.
std::array<std::atomic<unsigned>, kMaxDevices> handed_out{};
thread_local std::array<std::int8_t, kMaxDevices> current{};

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}
std::size_t slot(c10::DeviceIndex device) { return static_cast<std::size_t>(device); }

c10::Stream stream_of(c10::DeviceIndex device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device), id);
}

}  // namespace

c10::Stream default_stream(c10::Device device) { return stream_of(index_of(device), 0); }

c10::Stream current_stream(c10::Device device) {
  return stream_of(index_of(device), current[slot(index_of(device))]);
}

c10::Stream pool_stream(c10::Device device) {
  const c10::DeviceIndex index = index_of(device);
  rank_state(index);  // names the valid indices
  if (!several_streams()) return default_stream(device);
  return stream_of(index, 1 + static_cast<int>(handed_out[slot(index)].fetch_add(1) % kPool));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  check_stream(stream);
  const c10::Stream before = current_stream(stream.device());
  current[slot(stream.device_index())] = static_cast<std::int8_t>(stream.id());
  if (before != stream) {
    RankState& owner = rank_state(stream.device_index());
    if (owner.claim()) owner.recorder().set_stream(static_cast<int>(stream.id()));
  }
  return before;
}

void check_stream(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1, "neuron: stream ", stream,
              " is of another kind of device");
  rank_state(stream.device_index());
  const auto known = std::min<std::int64_t>(handed_out[slot(stream.device_index())].load(), kPool);
  TORCH_CHECK(stream.id() >= 0 && stream.id() <= known, "neuron: stream ", stream.id(), " of ",
              stream.device(), " does not exist: the default stream is 0",
              known > 0 ? c10::str(", and 1 to ", known, " were handed out") : std::string(),
              "; ask the device for a stream instead of making up its id");
}

}  // namespace trellis::device
