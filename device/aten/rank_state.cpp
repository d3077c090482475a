#include "device/aten/rank_state.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "device/aten/generator.h"
#include "device/aten/observer.h"

namespace trellis::device {
namespace {

/// Buffer ids handed out by threads that are not bound to the buffer's rank; the recorder's own counter never gets this far.
constexpr std::uint64_t kForeignBuffers = std::uint64_t{1} << 39;

struct Devices {
  std::vector<std::unique_ptr<RankState>> ranks;
  std::atomic<int> count{0};
};

/// Never destroyed: storages are released up to the very end of the process.
Devices& devices() {
  static auto* const all = new Devices;
  return *all;
}

thread_local RankState* this_threads_rank = nullptr;
thread_local c10::DeviceIndex this_threads_device = 0;

}  // namespace

RankState::RankState(RankRecorder& recorder, bool shape_only)
    : recorder_(recorder),
      rank_(recorder.rank()),
      shape_only_(shape_only),
      generator_(make_generator(static_cast<c10::DeviceIndex>(recorder.rank()))) {}

bool RankState::owned_by_this_thread() const { return this_threads_rank == this; }

std::uint64_t RankState::charge(std::int64_t bytes, BufferCategory category) {
  if (owned_by_this_thread()) {
    settle();
    if (bytes > 0) recorder_.memory().allocate(bytes, category, recorder_.current_scope());
    return recorder_.new_buffer();
  }
  static std::atomic<std::uint64_t> next_foreign{kForeignBuffers};
  if (bytes > 0) leave_behind({0, bytes, category});
  return next_foreign.fetch_add(1, std::memory_order_relaxed);
}

void RankState::recharge(std::int64_t old_bytes, std::int64_t new_bytes, BufferCategory category) {
  if (old_bytes == new_bytes) return;
  if (!owned_by_this_thread()) {
    leave_behind({0, -old_bytes, category});
    leave_behind({0, new_bytes, category});
    return;
  }
  settle();
  if (new_bytes > 0) recorder_.memory().allocate(new_bytes, category, recorder_.current_scope());  // both exist while data moves
  if (old_bytes > 0) recorder_.memory().release(old_bytes, category);
}

void RankState::discharge(std::uint64_t buffer, std::int64_t bytes, BufferCategory category) noexcept {
  if (!owned_by_this_thread()) {
    leave_behind({buffer, -bytes, category});
    return;
  }
  if (bytes > 0) recorder_.memory().release(bytes, category);
  recorder_.release_buffer(buffer);
}

void RankState::recategorize(std::int64_t bytes, BufferCategory from, BufferCategory to) {
  if (bytes == 0 || from == to) return;
  if (owned_by_this_thread()) {
    recorder_.memory().recategorize(bytes, from, to);
  } else {
    leave_behind({0, -bytes, from});
    leave_behind({0, bytes, to});
  }
}

void RankState::leave_behind(const Pending& pending) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(pending);
  has_pending_.store(true, std::memory_order_release);
}

void RankState::settle() {
  if (C10_LIKELY(!has_pending_.load(std::memory_order_acquire))) return;
  std::vector<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    pending.swap(pending_);
    has_pending_.store(false, std::memory_order_relaxed);
  }
  for (const Pending& p : pending) {
    if (p.bytes > 0) recorder_.memory().allocate(p.bytes, p.category, recorder_.current_scope());
    if (p.bytes < 0) recorder_.memory().release(-p.bytes, p.category);
    if (p.released_buffer != 0) recorder_.release_buffer(p.released_buffer);
  }
}

bool RankState::first_time(const std::string& place) {
  const std::lock_guard lock(mutex_);
  if (std::find(seen_.begin(), seen_.end(), place) != seen_.end()) return false;
  seen_.push_back(place);
  return true;
}

void configure_devices(const std::vector<DeviceRank>& ranks) {
  Devices& all = devices();
  TORCH_CHECK(all.count.load() == 0, "neuron: the device is configured already (", all.count.load(),
              " ranks); it can be configured once per process");
  TORCH_CHECK(!ranks.empty() && ranks.size() <= kMaxDevices, "neuron: expected 1 to ", kMaxDevices, " ranks in one process, got ",
              ranks.size(), ": LibTorch's device index is a signed byte; reduce the number of ranks");
  for (const DeviceRank& rank : ranks) {
    TORCH_INTERNAL_ASSERT(rank.recorder->rank() == static_cast<int>(all.ranks.size()), "device index and rank must agree");
    all.ranks.push_back(std::make_unique<RankState>(*rank.recorder, rank.shape_only));
  }
  install_scope_observer();
  all.count.store(static_cast<int>(ranks.size()), std::memory_order_release);
}

int device_count() noexcept { return devices().count.load(std::memory_order_acquire); }

RankState& rank_state(c10::DeviceIndex index) {
  const int count = device_count();
  TORCH_CHECK(count > 0,
              "neuron: the device is not configured: call trellis_device_plugin()->configure() before the first use of `neuron`");
  TORCH_CHECK(index >= 0 && index < count, "neuron: invalid device index ", static_cast<int>(index), ": expected 0 to ", count - 1);
  return *devices().ranks[static_cast<std::size_t>(index)];
}

void bind_this_thread(int rank) {
  TORCH_CHECK(rank >= 0 && rank < device_count(), "neuron: cannot bind this thread to rank ", rank, ": the device is configured for ",
              device_count(), " ranks");
  this_threads_rank = &rank_state(static_cast<c10::DeviceIndex>(rank));
  this_threads_device = static_cast<c10::DeviceIndex>(rank);
}

RankState* bound_rank() noexcept { return this_threads_rank; }
c10::DeviceIndex current_device() noexcept { return this_threads_device; }
void set_current_device(c10::DeviceIndex index) noexcept { this_threads_device = index; }

}  // namespace trellis::device
