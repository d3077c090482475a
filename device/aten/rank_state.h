#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "device/aten/view_memo.h"
#include "device/driver/session.h"

/// Who owns what on the emulated device: device index = rank, and the thread that is bound to a rank is the only user of its recorder.
namespace trellis::device {

/// One rank as the LibTorch side sees it. Lives until the process ends: storages may outlive every rank thread.
class RankState {
 public:
  RankState(RankRecorder& recorder, bool shape_only);

  RankRecorder& recorder() { return recorder_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] bool shape_only() const { return shape_only_; }
  [[nodiscard]] c10::Device device() const { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(rank_)}; }
  /// The generator of device neuron:<rank>; random kernels draw from the CPU generator inside it.
  at::Generator& generator() { return generator_; }
  ViewMemo& views() { return views_; }
  std::string& scratch() { return scratch_; }

  /// True when the calling thread is bound to this rank: it may use the recorder directly.
  [[nodiscard]] bool owned_by_this_thread() const;

  /// Memory accounting from any thread. What another thread charges or releases waits until the owner's next use of the account.
  /// Throws Error (exit 3) when the rank's memory is exhausted.
  std::uint64_t charge(std::int64_t bytes, BufferCategory category);
  void recharge(std::int64_t old_bytes, std::int64_t new_bytes, BufferCategory category);
  void discharge(std::uint64_t buffer, std::int64_t bytes, BufferCategory category) noexcept;
  void recategorize(std::int64_t bytes, BufferCategory from, BufferCategory to);
  /// Applies what other threads left behind. REQUIRES: owned_by_this_thread().
  void settle();

  /// True the first time it is asked about `place`: for notices that are worth one line.
  bool first_time(const std::string& place);

 private:
  struct Pending {
    std::uint64_t released_buffer;  ///< 0: none
    std::int64_t bytes;             ///< negative: released
    BufferCategory category;
  };
  void leave_behind(const Pending& pending);

  RankRecorder& recorder_;
  int rank_;
  bool shape_only_;
  at::Generator generator_;
  ViewMemo views_;
  std::string scratch_;
  std::mutex mutex_;  ///< guards pending_ and seen_
  std::vector<Pending> pending_;
  std::atomic<bool> has_pending_{false};
  std::vector<std::string> seen_;
};

/// The largest world that fits one process: LibTorch's device index is a signed byte.
inline constexpr int kMaxDevices = 127;

struct DeviceRank {
  RankRecorder* recorder;
  bool shape_only;
};

/// Makes `neuron:0` … `neuron:n-1` usable. Once per process. REQUIRES: ranks[i].recorder->rank() == i, and the recorders live until the
/// process ends.
void configure_devices(const std::vector<DeviceRank>& ranks);
[[nodiscard]] int device_count() noexcept;
/// Throws when the device was not configured or has no such index (names the valid ones).
RankState& rank_state(c10::DeviceIndex index);

/// Binds the calling thread to a rank and makes its device current.
void bind_this_thread(int rank);
[[nodiscard]] RankState* bound_rank() noexcept;  ///< nullptr: this thread is bound to none

[[nodiscard]] c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index) noexcept;

}  // namespace trellis::device
