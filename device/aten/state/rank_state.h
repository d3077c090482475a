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

#include "device/aten/state/view_memo.h"
#include "device/driver/session.h"

/// Ownership on the emulated device: a device index is a rank's place among those of this process,
/// and the thread that owns a rank is the only user of its recorder. A thread owns the ranks that
/// it was bound to and those that it used first while no one owned them; it gives them up when it
/// ends.
namespace trellis::device {

/// One rank as the LibTorch side sees it. Lives until the process ends: storages may outlive every
/// rank thread, generators every session.
class RankState {
 public:
  RankState(RankRecorder& recorder, int index, bool shape_only);
  /// Another session's recorder takes over. REQUIRES: no storage of the rank is alive.
  void reconfigure(RankRecorder& recorder, bool shape_only);

  RankRecorder& recorder() { return *recorder_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] bool shape_only() const { return shape_only_; }
  [[nodiscard]] c10::Device device() const {
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index_)};
  }
  /// The generator of device(); random kernels draw from the CPU generator inside it.
  at::Generator& generator() { return generator_; }
  ViewMemo& views() { return views_; }
  TextMemo& texts() { return texts_; }
  std::string& scratch() { return scratch_; }

  /// True when the calling thread owns this rank: it may use the recorder directly.
  [[nodiscard]] bool owned_by_this_thread() const;
  /// As owned_by_this_thread(), but a rank without an owner becomes the calling thread's.
  [[nodiscard]] bool claim();
  /// True if a running thread other than this one owns the rank.
  [[nodiscard]] bool owned_elsewhere() const;
  /// Makes the calling thread the owner, whoever was before.
  void bind();
  /// Gives the rank up when the thread `token` owns it.
  void release_from(const void* token);

  /// A buffer and its place in the modelled memory; no block for 0 bytes. Any thread. Throws
  /// c10::OutOfMemoryError.
  struct Charge {
    std::uint64_t buffer = 0;
    MemoryBlock* block = nullptr;
  };
  Charge charge(std::int64_t bytes, BufferCategory category);
  /// Another block for the same buffer, `bytes` long; both exist while data move. REQUIRES:
  /// `charge` stays where it is.
  void recharge(Charge& charge, std::int64_t bytes, BufferCategory category);
  void discharge(const Charge& charge) noexcept;
  /// Notifies the recorder of which buffers other threads released. REQUIRES:
  /// owned_by_this_thread().
  void settle();

  /// True the first time it is asked about `place`: for notices that are worth one line.
  bool first_time(const std::string& place);

 private:
  MemoryBlock* allocate(std::int64_t bytes, BufferCategory category, std::uint64_t buffer);

  RankRecorder* recorder_;
  std::atomic<const void*> owner_{nullptr};  ///< the owning thread's token
  int rank_;
  const int index_;
  bool shape_only_;
  at::Generator generator_;
  ViewMemo views_;
  TextMemo texts_;
  std::string scratch_;
  std::mutex mutex_;                     ///< guards released_ and seen_
  std::vector<std::uint64_t> released_;  ///< buffers that other threads released
  std::atomic<bool> has_released_{false};
  std::vector<std::string> seen_;
};

/// The largest world that fits one process: LibTorch's device index is a signed byte.
inline constexpr int kMaxDevices = 127;

struct DeviceRank {
  RankRecorder* recorder;
  bool shape_only;
};

/// Makes `neuron:0` … `neuron:n-1` usable; a later call replaces the earlier ones. Throws while
/// tensors of an earlier call are alive, naming their bytes. REQUIRES: their ranks
/// are consecutive, and the recorders live until the next call or the end of the process.
void configure_devices(const std::vector<DeviceRank>& ranks);
/// Throws when configure_devices() would: device tensors are alive, or a running thread uses a
/// rank.
void check_no_tensor_alive();
/// Sets the function that configures the devices when a program uses one without having configured
/// any.
void set_default_configuration(void (*configure)());

[[nodiscard]] int device_count() noexcept;  ///< 0 before configure_devices()
/// As device_count(), after the default configuration when there is none yet; 0 when that fails.
[[nodiscard]] int available_devices() noexcept;
/// Throws when the device was not configured or has no such index (names the valid ones), or in a
/// process that was forked from one that had devices.
RankState& rank_state(c10::DeviceIndex index);
/// True if this process was forked from one that had devices: rank_state() throws then.
[[nodiscard]] bool in_forked_child() noexcept;

/// Binds the calling thread to a rank and makes its device current. Ranks that it owned before stay
/// its own; −1 gives them all up.
void bind_this_thread(int rank);
/// The rank that this thread was bound to last or, without a binding, claimed first; nullptr: it
/// owns none.
[[nodiscard]] RankState* bound_rank() noexcept;
/// All that this thread owns, in the order in which it came to own them.
[[nodiscard]] const std::vector<RankState*>& owned_ranks();

[[nodiscard]] c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index) noexcept;

}  // namespace trellis::device
