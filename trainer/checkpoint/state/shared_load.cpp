#include "trainer/checkpoint/state/shared_load.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "trainer/checkpoint/sharding/state_keys.h"
#include "trainer/checkpoint/storage/storage.h"

namespace trellis::checkpoint {
namespace {

/// Of the tensors that are in memory in addition to those of training.
constexpr std::int64_t kWaveBytes = std::int64_t{128} << 20;

}  // namespace

at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape) {
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
  return tensor;
}

void copy_step(const CopyStep& step, const at::Tensor& stored, const LiveTensor& into) {
  const at::Tensor target = box_of(into.values, step.into, step.from.shape);
  const at::Tensor from = box_of(stored, step.from.offset, step.from.shape);
  target.copy_(target.device().is_cpu() ? from : from.to(target.scalar_type()).contiguous());
}

std::vector<LoadCopy> plan_copies(const std::vector<LiveTensor>& wanted, const SourceIndex& index,
                                  const std::function<DType(std::size_t item)>& dtype_of,
                                  const std::string& address) {
  const at::NoGradGuard no_grad;
  const auto stored = [&](const std::string& key) -> std::optional<DType> {
    const auto found = index.find(key);
    if (found == index.end()) return std::nullopt;
    return dtype_of(found->second.front().tensor);
  };
  Problems problems;
  std::vector<LoadCopy> all;
  for (const LiveTensor& tensor : wanted) {
    for (const ShardedPart& part : tensor.parts) {
      const std::string key = source_key(part.tensor.key, part.tensor.dtype, stored);
      if (key.empty()) {
        if (!tensor.optional)
          problems.add(address, "has no " + part.tensor.key +
                                    "; it is of another model or optimizer, or of weights alone "
                                    "(model.weight_init_only loads those)");
        continue;
      }
      all.push_back({&tensor, plan_reads(part, key, index)});
      if (all.back().reads.elements < part.local.elements())
        box_of(tensor.values, part.local.offset, part.local.shape).zero_();
    }
  }
  problems.throw_if_any();
  return all;
}

SharedLoad::SharedLoad(std::vector<LoadItem> items, int world_size)
    : items_(std::move(items)), wanted_(static_cast<std::size_t>(world_size)) {}

void SharedLoad::plan_waves() {
  std::map<std::size_t, Transfer> transfers;
  for (std::size_t rank = 0; rank < wanted_.size(); ++rank) {
    for (const std::size_t item : wanted_[rank]) {
      Transfer& transfer = transfers[item];
      transfer.id = items_[item].id;
      transfer.bytes = items_[item].bytes;
      transfer.holders.push_back(static_cast<int>(rank));
    }
  }
  std::vector<Transfer> list;
  waves_.clear();
  std::int64_t bytes = kWaveBytes;
  for (const auto& [item, transfer] : transfers) {
    if (bytes + transfer.bytes > kWaveBytes) {
      waves_.emplace_back();
      bytes = 0;
    }
    waves_.back().push_back(item);
    bytes += transfer.bytes;
    list.push_back(transfer);
  }
  plan_ = distribute(std::move(list));
}

void SharedLoad::read_wave(int rank, const std::vector<std::size_t>& wave, const Read& read) {
  for (const std::size_t item : wave) {
    if (plan_.rank_of(items_[item].id) != rank) continue;
    at::Tensor content = read(item);
    const std::scoped_lock lock(mutex_);
    read_.emplace(item, std::move(content));
  }
}

void SharedLoad::take(const std::map<std::size_t, at::Tensor>& contents,
                      const std::vector<LoadCopy>& copies) {
  for (const LoadCopy& part : copies) {
    for (const CopyStep& copy : part.reads.copies) {
      const auto content = contents.find(copy.tensor);
      if (content != contents.end()) copy_step(copy, content->second, *part.into);
    }
  }
}

void SharedLoad::load(runtime::RankContext& rank, const std::vector<LoadCopy>& copies,
                      const Read& read, Readers readers) {
  const at::NoGradGuard no_grad;
  std::set<std::size_t>& own = wanted_[static_cast<std::size_t>(rank.rank())];
  own.clear();
  for (const LoadCopy& part : copies) {
    for (const CopyStep& copy : part.reads.copies) own.insert(copy.tensor);
  }
  if (readers == Readers::kEach) {
    for (const std::size_t item : own) take({{item, read(item)}}, copies);
    return;
  }
  rank.process_barrier(kStorageTimeout);
  if (rank.leads_process()) plan_waves();
  rank.process_barrier(kStorageTimeout);
  for (const std::vector<std::size_t>& wave : waves_) {
    read_wave(rank.rank(), wave, read);
    rank.process_barrier(kStorageTimeout);
    take(read_, copies);
    rank.process_barrier(kStorageTimeout);
    if (rank.leads_process()) read_.clear();
    rank.process_barrier(kStorageTimeout);
  }
}

}  // namespace trellis::checkpoint
