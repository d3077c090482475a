#include "device/aten/state/pinned_memory.h"

#include <cstring>
#include <map>
#include <mutex>

#include <c10/core/impl/alloc_cpu.h>

namespace trellis::device {
namespace {

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t nbytes) const override {
    std::memcpy(destination, source, nbytes);
  }
  /// Copies finish before they return: no memory waits for a stream.
  bool record_event(void* data, void* /*context*/, c10::Stream) override { return holds(data); }
  void empty_cache() override {}  // nothing is cached
  at::HostStats get_stats() override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard lock(mutex_);
    for (at::Stat* stat : counters()) stat->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    const std::lock_guard lock(mutex_);
    for (at::Stat* stat : counters()) stat->reset_peak();
  }

  [[nodiscard]] bool holds(const void* address) {
    const auto* const byte = static_cast<const char*>(address);
    const std::lock_guard lock(mutex_);
    const auto after = sizes_.upper_bound(byte);
    return after != sizes_.begin() && byte < std::prev(after)->first + std::prev(after)->second;
  }
  void free(void* data);

 private:
  std::array<at::Stat*, 4> counters() {
    return {&stats_.active_requests, &stats_.allocations, &stats_.active_bytes,
            &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  std::map<const char*, std::size_t> sizes_;
  at::HostStats stats_;
};

/// Never destroyed: pinned tensors are released up to the very end of the process.
PinnedAllocator& allocator() {
  static auto* const only = new PinnedAllocator;
  return *only;
}

void free_pinned(void* data) { allocator().free(data); }

c10::DataPtr PinnedAllocator::allocate(std::size_t nbytes) {
  if (nbytes == 0) return {nullptr, c10::kCPU};
  void* const data = c10::alloc_cpu(nbytes);
  const std::lock_guard lock(mutex_);
  sizes_.emplace(static_cast<const char*>(data), nbytes);
  stats_.active_requests.increase(1), stats_.allocations.increase(1);
  stats_.active_bytes.increase(nbytes), stats_.allocated_bytes.increase(nbytes);
  ++stats_.num_host_alloc;
  return {data, data, &free_pinned, c10::kCPU};
}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const { return &free_pinned; }

void PinnedAllocator::free(void* data) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(static_cast<const char*>(data));
    TORCH_INTERNAL_ASSERT(found != sizes_.end(), "a pinned allocation is freed twice");
    stats_.active_requests.decrease(1), stats_.allocations.decrease(1);
    stats_.active_bytes.decrease(found->second), stats_.allocated_bytes.decrease(found->second);
    ++stats_.num_host_free;
    sizes_.erase(found);
  }
  c10::free_cpu(data);
}

struct RegisterPinnedMemory {
  RegisterPinnedMemory() { at::setHostAllocator(at::kPrivateUse1, &allocator()); }
} const register_pinned_memory;

}  // namespace

at::HostAllocator& pinned_allocator() { return allocator(); }
bool is_pinned(const void* address) { return allocator().holds(address); }

}  // namespace trellis::device
