#include "device/aten/state/rank_state.h"

#include <pthread.h>

#include <algorithm>

#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include "base/log.h"
#include "device/aten/state/generator.h"
#include "device/driver/record/out_of_memory.h"

namespace trellis::device {
namespace {

constexpr int kNoRank = -1;

/// Buffer ids handed out by threads that are not bound to the buffer's rank; the recorder's own
/// counter never gets this far.
constexpr std::uint64_t kForeignBuffers = std::uint64_t{1} << 39;

struct Devices {
  std::array<std::unique_ptr<RankState>, kMaxDevices> ranks;
  std::atomic<int> count{0};
  std::atomic<int> first_rank{0};  ///< of index 0
  std::atomic<void (*)()> configure_by_default{nullptr};
  std::atomic<bool> forked{false};  ///< from a process that had devices
};

/// Never destroyed: storages are released up to the very end of the process.
Devices& devices() {
  static auto* const all = new Devices;
  return *all;
}

thread_local char token_of_this_thread;  // its address identifies a thread
thread_local RankState* this_threads_rank = nullptr;
thread_local c10::DeviceIndex this_threads_device = 0;

/// Gives a thread's ranks back when it ends, so that the next thread that uses them can own them.
struct Owned {
  std::vector<RankState*> ranks;
  ~Owned() { give_up(); }
  void give_up() {
    for (RankState* rank : ranks) rank->release_from(&token_of_this_thread);
    ranks.clear();
    this_threads_rank = nullptr;
  }
};
thread_local Owned owned;

/// On a thread of autograd's own, backward would be another thread's work: ranks, and with them
/// records, belong to the one that calls it.
void take_over(RankState* rank) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (std::find(owned.ranks.begin(), owned.ranks.end(), rank) == owned.ranks.end())
    owned.ranks.push_back(rank);
}

}  // namespace

RankState::RankState(RankRecorder& recorder, int index, bool shape_only)
    : recorder_(&recorder),
      rank_(recorder.rank()),
      index_(index),
      shape_only_(shape_only),
      generator_(make_generator(static_cast<c10::DeviceIndex>(index))) {}

void RankState::reconfigure(RankRecorder& recorder, bool shape_only) {
  recorder_ = &recorder;
  rank_ = recorder.rank();
  shape_only_ = shape_only;
  views_ = ViewMemo();  // its ids are the old recorder's
  texts_ = TextMemo();
  const std::lock_guard lock(mutex_);
  released_.clear();
  has_released_.store(false, std::memory_order_relaxed);
  seen_.clear();
}

bool RankState::owned_by_this_thread() const {
  return owner_.load(std::memory_order_acquire) == &token_of_this_thread;
}

bool RankState::owned_elsewhere() const {
  const void* const owner = owner_.load(std::memory_order_acquire);
  return owner != nullptr && owner != &token_of_this_thread;
}

bool RankState::claim() {
  if (C10_LIKELY(owned_by_this_thread())) return true;
  const void* unowned = nullptr;
  if (!owner_.compare_exchange_strong(unowned, &token_of_this_thread, std::memory_order_acq_rel))
    return false;
  take_over(this);
  if (this_threads_rank == nullptr) this_threads_rank = this;
  return true;
}

void RankState::bind() {
  owner_.store(&token_of_this_thread, std::memory_order_release);
  take_over(this);
  this_threads_rank = this;
}

void RankState::release_from(const void* token) {
  owner_.compare_exchange_strong(token, nullptr, std::memory_order_acq_rel);
}

RankState::Charge RankState::charge(std::int64_t bytes, BufferCategory category) {
  static std::atomic<std::uint64_t> next_foreign{kForeignBuffers};
  Charge charge;
  if (C10_LIKELY(claim())) {
    settle();
    charge.buffer = recorder_->new_buffer();
  } else {
    charge.buffer = next_foreign.fetch_add(1, std::memory_order_relaxed);
  }
  if (bytes > 0) charge.block = allocate(bytes, category, charge.buffer);
  return charge;
}

MemoryBlock* RankState::allocate(std::int64_t bytes, BufferCategory category,
                                 std::uint64_t buffer) {
  const bool own = owned_by_this_thread();
  MemoryBlock* const block =
      recorder_->memory().allocate(bytes, category, own ? recorder_->scope_id() : 0, buffer);
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr,
                   out_of_memory(*recorder_, bytes, category, own));
  return block;
}

void RankState::recharge(Charge& charge, std::int64_t bytes, BufferCategory category) {
  MemoryBlock* const old = charge.block;
  charge.block = bytes > 0 ? allocate(bytes, category, charge.buffer) : nullptr;
  if (charge.block != nullptr) charge.block->holder = &charge.block;
  if (old != nullptr) recorder_->memory().release(*old);
}

void RankState::discharge(const Charge& charge) noexcept {
  if (charge.block != nullptr) recorder_->memory().release(*charge.block);
  if (C10_LIKELY(owned_by_this_thread())) {
    recorder_->release_buffer(charge.buffer);
    return;
  }
  const std::lock_guard lock(mutex_);
  released_.push_back(charge.buffer);
  has_released_.store(true, std::memory_order_release);
}

void RankState::settle() {
  if (C10_LIKELY(!has_released_.load(std::memory_order_acquire))) return;
  std::vector<std::uint64_t> released;
  {
    const std::lock_guard lock(mutex_);
    released.swap(released_);
    has_released_.store(false, std::memory_order_relaxed);
  }
  for (const std::uint64_t buffer : released) recorder_->release_buffer(buffer);
}

bool RankState::first_time(const std::string& place) {
  const std::lock_guard lock(mutex_);
  if (std::find(seen_.begin(), seen_.end(), place) != seen_.end()) return false;
  seen_.push_back(place);
  return true;
}

void check_no_tensor_alive() {
  std::string alive;
  for (int index = 0; index < device_count(); ++index) {
    RankState& state = *devices().ranks[static_cast<std::size_t>(index)];
    TORCH_CHECK(!state.owned_elsewhere(),
                "neuron: cannot configure the device again: a running thread is bound to rank ",
                state.rank(), ": end that thread first");
    if (const std::int64_t bytes = state.recorder().memory().current(); bytes > 0) {
      alive += c10::str(alive.empty() ? "" : ", ", state.device(), " holds ", bytes, " B");
    }
  }
  TORCH_CHECK(alive.empty(),
              "neuron: cannot configure the device again while tensors are alive on it: ", alive,
              ": release models, optimizers and results first (in Python: del, then gc.collect()), "
              "or configure before the first use");
}

namespace {

/// A forked child has neither the threads nor the simulator of its parent.
void watch_forks() {
  static const int error = pthread_atfork(nullptr, nullptr, [] { devices().forked = true; });
  TORCH_INTERNAL_ASSERT(error == 0, "pthread_atfork: ", error);
}

[[noreturn]] void refuse_in_fork() {
  TORCH_CHECK(false,
              "Cannot re-initialize neuron in a forked subprocess: the parent had used the device. "
              "Use the 'spawn' start method of multiprocessing, or fork before the first use");
}

}  // namespace

void configure_devices(const std::vector<DeviceRank>& ranks) {
  Devices& all = devices();
  TORCH_CHECK(!ranks.empty() && ranks.size() <= kMaxDevices, "neuron: expected 1 to ", kMaxDevices,
              " ranks in one process, got ", ranks.size(),
              ": LibTorch's device index is a signed byte: start more processes (torchrun)");
  check_no_tensor_alive();
  const int first_rank = ranks.front().recorder->rank();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int index = static_cast<int>(i);
    TORCH_INTERNAL_ASSERT(ranks[i].recorder->rank() == first_rank + index,
                          "the ranks of a process are consecutive");
    if (all.ranks[i]) {
      all.ranks[i]->reconfigure(*ranks[i].recorder, ranks[i].shape_only);
    } else {
      all.ranks[i] = std::make_unique<RankState>(*ranks[i].recorder, index, ranks[i].shape_only);
    }
  }
  watch_forks();
  all.forked.store(false, std::memory_order_relaxed);  // these are the child's own
  all.first_rank.store(first_rank, std::memory_order_release);
  all.count.store(static_cast<int>(ranks.size()), std::memory_order_release);
}

void set_default_configuration(void (*configure)()) { devices().configure_by_default = configure; }

int device_count() noexcept { return devices().count.load(std::memory_order_acquire); }

namespace {

void configure_by_default() {
  void (*const configure)() = devices().configure_by_default.load();
  TORCH_CHECK(configure != nullptr,
              "neuron: the device is not configured: call trellis_device_plugin()->configure() "
              "before the first use of `neuron`");
  configure();
}

}  // namespace

int available_devices() noexcept {
  if (const int count = device_count(); C10_LIKELY(count > 0)) return count;
  if (devices().configure_by_default.load() == nullptr) return 0;
  try {
    configure_by_default();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
  return device_count();
}

bool in_forked_child() noexcept { return devices().forked.load(std::memory_order_relaxed); }

RankState& rank_state(c10::DeviceIndex index) {
  if (C10_UNLIKELY(in_forked_child())) refuse_in_fork();
  if (C10_UNLIKELY(device_count() == 0)) configure_by_default();
  const int count = device_count();
  TORCH_CHECK(index >= 0 && index < count, "neuron: invalid device index ", static_cast<int>(index),
              ": expected 0 to ", count - 1);
  return *devices().ranks[static_cast<std::size_t>(index)];
}

void bind_this_thread(int rank) {
  if (rank == kNoRank) return owned.give_up();
  const int count = available_devices(), first = devices().first_rank.load();
  TORCH_CHECK(rank >= first && rank < first + count, "neuron: cannot bind this thread to rank ",
              rank, ": the device is configured for ", count, " ranks",
              first > 0 ? c10::str(" from ", first, " on") : "");
  const auto index = static_cast<c10::DeviceIndex>(rank - first);
  rank_state(index).bind();
  this_threads_device = index;
}

RankState* bound_rank() noexcept { return this_threads_rank; }
const std::vector<RankState*>& owned_ranks() { return owned.ranks; }
c10::DeviceIndex current_device() noexcept { return this_threads_device; }
void set_current_device(c10::DeviceIndex index) noexcept { this_threads_device = index; }

}  // namespace trellis::device
