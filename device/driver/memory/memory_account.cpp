#include "device/driver/memory/memory_account.h"

#include <algorithm>

#include "device/driver/memory/pass_log.h"

namespace trellis::device {

MemoryBlock* MemoryAccount::allocate(std::int64_t bytes, BufferCategory category,
                                     std::uint32_t scope, std::uint64_t buffer) {
  const Lock lock(mutex_);
  MemoryBlock* const block = allocator_.allocate({bytes, category, scope, op(), buffer});
  if (block == nullptr) return nullptr;
  block->serial = ++serial_;
  note_peaks(*block);
  if (log_ != nullptr) log_->allocated(*block, op());
  return block;
}

void MemoryAccount::note_peaks(const MemoryBlock& block) {
  const AllocatorStats& stats = allocator_.stats();
  const std::int64_t allocated = stats.all.allocated_bytes.current;
  if (block.scope >= scope_peaks_.size()) scope_peaks_.resize(block.scope + 1);
  ScopePeak& peak = scope_peaks_[block.scope];
  peak.reserved = std::max(peak.reserved, stats.all.reserved_bytes.current);
  if (peak.first_serial == 0) {
    peak.first_serial = block.serial;
    peak.at_start = stats.by_category;
    peak.at_start[static_cast<std::size_t>(block.category)] -= block.size;
  }
  if (allocated > peak.allocated) {
    peak.allocated = allocated;
    peak.at_peak = stats.by_category;
    peak.serial = block.serial;
  }
  if (allocated > peak_.allocated) {
    peak_.allocated = allocated;
    peak_.at_peak = stats.by_category;
    peak_.serial = block.serial;
    peak_scope_ = block.scope;
    live_is_stale_ = unlimited_;
  }
  if (stats.num_ooms > 0 && !first_refusal_)
    first_refusal_ = Refusal{block.scope, block.requested, allocated - block.size};
}

/// Keeps the tensors that live now: they lived at the peak, since nothing was freed after it.
void MemoryAccount::keep_live() const {
  live_is_stale_ = false;
  live_.clear();
  for (const auto& [address, segment] : allocator_.segments()) {
    for (const MemoryBlock* block = segment.first; block != nullptr; block = block->after) {
      if (block->state != MemoryBlock::State::kFree && block->serial <= peak_.serial)
        live_.push_back({block->category, block->scope, block->size});
    }
  }
}

void MemoryAccount::release(MemoryBlock& block) {
  const Lock lock(mutex_);
  if (live_is_stale_) keep_live();
  if (log_ != nullptr) log_->touched(PassLog::What::kFree, block, block.category, op());
  allocator_.free(block, op());
}

void MemoryAccount::recategorize(MemoryBlock& block, BufferCategory category) {
  const Lock lock(mutex_);
  if (block.category == category) return;
  if (log_ != nullptr) log_->touched(PassLog::What::kRecategorize, block, category, op());
  move_category(block, category);
}

void MemoryAccount::move_category(MemoryBlock& block, BufferCategory category) {
  const auto from = static_cast<std::size_t>(block.category),
             to = static_cast<std::size_t>(category);
  const auto move_in = [&](Categories& bytes) {
    bytes[from] -= block.size;
    bytes[to] += block.size;
  };
  const auto move = [&](ScopePeak& peak) {  // where it was there already
    if (peak.serial >= block.serial) move_in(peak.at_peak);
    if (peak.first_serial > block.serial) move_in(peak.at_start);
  };
  move(peak_);
  for (ScopePeak& peak : scope_peaks_) move(peak);
  allocator_.recategorize(block, category, op());
}

void MemoryAccount::keep_since(std::uint32_t since, BufferCategory category) {
  const Lock lock(mutex_);
  if (log_ != nullptr) log_->other(op());
  for (const auto& [address, segment] : allocator_.segments()) {
    for (MemoryBlock* block = segment.first; block != nullptr; block = block->after) {
      if (block->state == MemoryBlock::State::kActive &&
          block->category == BufferCategory::kTemporary && block->op >= since)
        move_category(*block, category);
    }
  }
}

void MemoryAccount::record_stream(MemoryBlock& block) {
  const Lock lock(mutex_);
  if (log_ != nullptr) log_->touched(PassLog::What::kUseByStream, block, block.category, op());
  block.used_by_stream = true;
}

void MemoryAccount::synchronize() {
  const Lock lock(mutex_);
  allocator_.release_held(op());
}

void MemoryAccount::empty_cache() {
  const Lock lock(mutex_);
  if (log_ != nullptr) log_->other(op());
  allocator_.empty_cache(op());
}

AllocatorStats MemoryAccount::stats() const {
  const Lock lock(mutex_);
  return allocator_.stats();
}

MemoryAccount::Categories MemoryAccount::at_peak_by_category() const {
  const Lock lock(mutex_);
  return peak_.at_peak;
}

std::vector<MemoryAccount::ScopePeak> MemoryAccount::scope_peaks() const {
  const Lock lock(mutex_);
  return scope_peaks_;
}

std::vector<MemoryAccount::LiveTensor> MemoryAccount::live_at_peak() const {
  const Lock lock(mutex_);
  if (live_is_stale_) keep_live();
  return live_;
}

std::optional<MemoryAccount::Refusal> MemoryAccount::first_refusal() const {
  const Lock lock(mutex_);
  return first_refusal_;
}

std::uint32_t MemoryAccount::peak_scope() const {
  const Lock lock(mutex_);
  return peak_scope_;
}

void MemoryAccount::reset_peak() {
  const Lock lock(mutex_);
  allocator_.reset_peak();
  const AllocatorStats& stats = allocator_.stats();
  peak_ = {stats.all.allocated_bytes.current, stats.all.reserved_bytes.current, stats.by_category,
           serial_};
  peak_scope_ = 0;
  scope_peaks_.clear();
  live_is_stale_ = unlimited_;
}

void MemoryAccount::reset_accumulated() {
  const Lock lock(mutex_);
  allocator_.reset_accumulated();
}

std::vector<MemoryAccount::Segment> MemoryAccount::snapshot() const {
  const Lock lock(mutex_);
  std::vector<Segment> all;
  for (const auto& [address, segment] : allocator_.segments()) {
    Segment& copy = all.emplace_back(Segment{segment, {}});
    for (const MemoryBlock* block = segment.first; block != nullptr; block = block->after)
      copy.blocks.push_back(*block);
  }
  return all;
}

MemoryTimeline MemoryAccount::timeline() const {
  const Lock lock(mutex_);
  return timeline_;
}

void MemoryAccount::set_timeline_capacity(std::size_t events) {
  const Lock lock(mutex_);
  const AllocatorStats& stats = allocator_.stats();
  timeline_.restart(events, {stats.all.reserved_bytes.current, stats.all.allocated_bytes.current,
                             stats.all.active_bytes.current, stats.by_category});
}

}  // namespace trellis::device
