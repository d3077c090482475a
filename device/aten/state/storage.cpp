#include "device/aten/state/storage.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "base/training_phase.h"

namespace trellis::device {

namespace {

c10::DataPtr allocate_bytes(const RankState& owner, std::int64_t nbytes) {
  if (nbytes == 0 || owner.shape_only()) return {nullptr, owner.device()};
  void* const data = c10::alloc_cpu(static_cast<std::size_t>(nbytes));
  return {data, data, &c10::free_cpu, owner.device()};
}

c10::DataPtr relabel(c10::DataPtr&& data, c10::Device device) {
  void* const bytes = data.get();
  const c10::DeleterFnPtr deleter = data.get_deleter();
  return {bytes, data.release_context(), deleter, device};
}

c10::Allocator* host_allocator(const RankState& owner) {
  return owner.shape_only() ? c10::GetAllocator(c10::kMeta) : c10::GetCPUAllocator();
}

c10::DataPtr host_pointer(const RankState& owner, void* bytes) {
  return {bytes, c10::Device(owner.shape_only() ? c10::kMeta : c10::kCPU)};
}

/// Saved for the backward pass are the results of the forward pass; the trainer tags what is more.
BufferCategory initial_category(RankState& owner) {
  if (!owner.owned_by_this_thread()) return BufferCategory::kTemporary;
  return training_phase(owner.recorder().current_scope().phase) == TrainingPhase::kForward
             ? BufferCategory::kActivation
             : BufferCategory::kTemporary;
}

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

c10::CachingAllocator::StatArray stat_array(const AllocatorStats& stats,
                                            MemoryStat PoolStats::* which) {
  c10::CachingAllocator::StatArray array;  // all, small pool, large pool
  const std::array<const PoolStats*, 3> pools = {&stats.all, &stats.pools[0], &stats.pools[1]};
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const MemoryStat& stat = pools[i]->*which;
    array[i] = {stat.current, stat.peak, stat.allocated, stat.freed};
  }
  return array;
}

/// LibTorch's view of the rank's memory account. The bytes are charged where a storage holds them
/// (NeuronStorage).
class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    return allocate_bytes(rank_state(current_device()), static_cast<std::int64_t>(nbytes));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* destination, const void* source, std::size_t nbytes) const override {
    if (destination != nullptr && source != nullptr) std::memcpy(destination, source, nbytes);
  }
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t) override {
    for (int rank = 0; rank < device_count(); ++rank) memory(rank).empty_cache();
  }
  /// Shape-only tensors have no pointer to find them by; they are recorded where the tensor is
  /// known (aten::record_stream).
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const AllocatorStats from = memory(index).stats();
    DeviceStats stats;
    stats.allocation = stat_array(from, &PoolStats::allocations);
    stats.segment = stat_array(from, &PoolStats::segments);
    stats.active = stat_array(from, &PoolStats::active);
    stats.allocated_bytes = stat_array(from, &PoolStats::allocated_bytes);
    stats.reserved_bytes = stat_array(from, &PoolStats::reserved_bytes);
    stats.active_bytes = stat_array(from, &PoolStats::active_bytes);
    stats.requested_bytes = stat_array(from, &PoolStats::requested_bytes);
    stats.num_alloc_retries = from.num_alloc_retries;
    stats.num_ooms = from.num_ooms;
    stats.num_device_alloc = from.all.segments.allocated;
    stats.num_device_free = from.all.segments.freed;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { memory(index).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { memory(index).reset_peak(); }
  /// Returns free and total bytes. Free are all bytes that could become a segment.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const std::int64_t total = memory(index).capacity().value;
    return {static_cast<std::size_t>(total - memory(index).stats().all.reserved_bytes.current),
            static_cast<std::size_t>(total)};
  }

 private:
  static MemoryAccount& memory(int index) {
    return rank_state(static_cast<c10::DeviceIndex>(index)).recorder().memory();
  }
};

NeuronAllocator& neuron_allocator() {
  static auto* const allocator = new NeuronAllocator;
  return *allocator;
}

/// Charged before the host gives memory: what does not fit the modelled HBM must not exhaust the
/// host first.
c10::intrusive_ptr<c10::StorageImpl> make_storage(RankState& owner, std::int64_t nbytes,
                                                  c10::Allocator* allocator, bool resizable) {
  auto storage = c10::make_intrusive<NeuronStorage>(
      owner, nbytes, c10::DataPtr(nullptr, owner.device()), allocator, resizable);
  storage->set_data_ptr_noswap(allocate_bytes(owner, nbytes));
  return storage;
}

c10::intrusive_ptr<c10::StorageImpl> create_storage(c10::StorageImpl::use_byte_size_t,
                                                    c10::SymInt size, c10::DataPtr data,
                                                    c10::Allocator* allocator, bool resizable) {
  const bool placed = data.device().has_index();
  RankState& owner = rank_state(placed ? data.device().index() : current_device());
  const std::int64_t nbytes = size.guard_int(__FILE__, __LINE__);
  // A lazy clone's pointer has a context even where there are no bytes.
  if (data.get() != nullptr || data.get_context() != nullptr)
    return c10::make_intrusive<NeuronStorage>(owner, nbytes, std::move(data), allocator, resizable);
  return make_storage(owner, nbytes, allocator, resizable);
}

struct RegisterMemory {
  RegisterMemory() {
    c10::SetAllocator(c10::kPrivateUse1, &neuron_allocator());
    c10::SetStorageImplCreate(c10::kPrivateUse1, &create_storage);
  }
} const register_memory;

}  // namespace

NeuronStorage::NeuronStorage(RankState& owner, std::int64_t nbytes, c10::DataPtr data,
                             c10::Allocator* allocator, bool resizable)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(nbytes), std::move(data), allocator,
                       resizable),
      owner_(owner),
      category_(initial_category(owner)) {
  released_ = true;  // so that a failing charge leaves nothing to release
  charge_ = owner_.charge(nbytes, category_);
  if (charge_.block != nullptr) charge_.block->holder = &charge_.block;
  released_ = false;
}

NeuronStorage::~NeuronStorage() { release(); }

void NeuronStorage::release_resources() {
  release();
  c10::StorageImpl::release_resources();
}

void NeuronStorage::release() noexcept {
  if (!released_) owner_.discharge(charge_);
  released_ = true;
  alias_.reset();
  if (c10::StorageImpl* host = host_.exchange(nullptr))
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(host);
}

void NeuronStorage::take_block(MemoryBlock& block, std::int64_t nbytes) {
  TORCH_INTERNAL_ASSERT(charge_.block == nullptr && data() == nullptr,
                        "the storage has bytes already");
  charge_.block = &block;
  block.holder = &charge_.block;
  set_nbytes(static_cast<std::size_t>(nbytes));
}

void NeuronStorage::set_category(BufferCategory category) {
  category_ = category;
  if (charge_.block != nullptr) owner_.recorder().memory().recategorize(*charge_.block, category);
}

c10::StorageImpl* NeuronStorage::known_host_view() {
  c10::StorageImpl* const host = host_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(
          host != nullptr &&
          (host->data() != data() || host->nbytes() != nbytes()))) {  // set_data_ptr() from outside
    host->set_data_ptr_noswap(host_pointer(owner_, _mutable_data_ptr_no_checks().get()));
    host->set_nbytes(nbytes());
  }
  return host;
}

c10::intrusive_ptr<c10::StorageImpl> NeuronStorage::host_view() {
  if (c10::StorageImpl* const host = known_host_view())
    return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(host);
  auto fresh = c10::make_intrusive<c10::StorageImpl>(
      use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(nbytes())),
      host_pointer(owner_, _mutable_data_ptr_no_checks().get()), host_allocator(owner_), true);
  c10::StorageImpl* expected = nullptr;
  auto ours = fresh;  // the reference that host_ keeps
  if (host_.compare_exchange_strong(expected, ours.get(), std::memory_order_acq_rel)) {
    ours.release();
    return fresh;
  }
  return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
      expected);  // another thread was first
}

void NeuronStorage::adopt_resize() {
  c10::StorageImpl* const host = host_.load(std::memory_order_acquire);
  if (host == nullptr || (host->nbytes() == nbytes() && host->data() == data())) return;
  const auto new_bytes = static_cast<std::int64_t>(host->nbytes());
  owner_.recharge(charge_, new_bytes, category());
  if (host->data() != data()) {
    void* const bytes = host->_mutable_data_ptr_no_checks().get();
    set_data_ptr_noswap(relabel(std::move(host->_mutable_data_ptr_no_checks()), owner_.device()));
    host->set_data_ptr_noswap(host_pointer(owner_, bytes));
  }
  set_nbytes(static_cast<std::size_t>(new_bytes));
}

void NeuronStorage::resize(std::int64_t new_bytes) {
  const auto old_bytes = static_cast<std::int64_t>(nbytes());
  if (new_bytes == old_bytes) return;
  owner_.recharge(charge_, new_bytes, category());
  c10::DataPtr fresh = allocate_bytes(owner_, new_bytes);
  if (fresh.get() != nullptr && data() != nullptr)
    std::memcpy(fresh.get(), data(), static_cast<std::size_t>(std::min(old_bytes, new_bytes)));
  set_data_ptr_noswap(std::move(fresh));
  set_nbytes(static_cast<std::size_t>(new_bytes));
}

c10::intrusive_ptr<c10::StorageImpl> new_storage(RankState& owner, std::int64_t nbytes) {
  return make_storage(owner, nbytes, &neuron_allocator(), true);
}

namespace {

void drop_storage(void* context) { delete static_cast<c10::Storage*>(context); }

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> adopt_storage(RankState& owner, const c10::Storage& host) {
  c10::StorageImpl* const impl = host.unsafeGetStorageImpl();
  const auto nbytes = static_cast<std::int64_t>(impl->nbytes());
  void* const bytes = owner.shape_only() ? nullptr : impl->mutable_data();
  if (host.use_count() > 1 || !impl->resizable()) {  // another owner keeps using the bytes
    c10::DataPtr shared = owner.shape_only() ? c10::DataPtr(nullptr, owner.device())
                                             : c10::DataPtr(bytes, new c10::Storage(host),
                                                            &drop_storage, owner.device());
    return c10::make_intrusive<NeuronStorage>(owner, nbytes, std::move(shared),
                                              &neuron_allocator());
  }
  // The result's tensor holds the only reference: the bytes change hands, and the kernel's storage
  // becomes the view of them.
  c10::DataPtr data = relabel(std::move(impl->_mutable_data_ptr_no_checks()), owner.device());
  impl->set_data_ptr_noswap(host_pointer(owner, bytes));
  auto storage =
      c10::make_intrusive<NeuronStorage>(owner, nbytes, std::move(data), &neuron_allocator());
  storage->set_host_view(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl));
  return storage;
}

NeuronStorage& adopt_foreign_storage(const c10::TensorImpl& tensor) {
  const c10::Storage foreign = tensor.unsafe_storage();
  auto& writable = const_cast<c10::TensorImpl&>(
      tensor);  // only where the tensor is stored changes, not what it is
  writable.set_storage_keep_dtype(
      c10::Storage(adopt_storage(rank_state(tensor.device().index()), foreign)));
  return static_cast<NeuronStorage&>(*tensor.unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace trellis::device
