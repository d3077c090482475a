#include "trainer/checkpoint/state/shared_load.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "runtime/links/process_link.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {
namespace {

/// Limit of the tensors in memory in addition to those of training.
constexpr std::int64_t kWaveBytes = std::int64_t{128} << 20;

/// The memory of training that is the whole item, byte for byte; undefined: there is none.
at::Tensor place_of(const CopyStep& step, const TensorMeta& meta, const LiveTensor& into) {
  if (step.from.shape != meta.shape || !into.values.device().is_cpu() ||
      into.values.scalar_type() != scalar_type_of(meta.dtype))
    return {};
  at::Tensor place = box_of(into.values, step.into, step.from.shape);
  return place.is_contiguous() ? place : at::Tensor();
}

std::uint8_t* row_of(const at::Tensor& bytes, int row) {
  return static_cast<std::uint8_t*>(bytes.data_ptr()) + row * bytes.size(1);
}

}  // namespace

at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape) {
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
  return tensor;
}

void copy_step(const CopyStep& step, const at::Tensor& stored, const LiveTensor& into) {
  const at::Tensor target = box_of(into.values, step.into, step.from.shape);
  const at::Tensor from = box_of(stored, step.from.offset, step.from.shape);
  if (from.is_alias_of(target) && from.const_data_ptr() == target.const_data_ptr()) return;
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

SharedLoad::Places SharedLoad::places_of(const std::vector<LoadCopy>& copies) const {
  Places places;
  for (const LoadCopy& part : copies) {
    for (const CopyStep& step : part.reads.copies) {
      at::Tensor place = place_of(step, items_[step.tensor].meta, *part.into);
      if (place.defined()) places.emplace(step.tensor, std::move(place));
    }
  }
  return places;
}

void SharedLoad::exchange_wishes(runtime::RankContext& rank) {
  const std::vector<int>& ranks = rank.process_ranks();
  const auto each = static_cast<int>(ranks.size());
  std::map<int, std::vector<at::Tensor>> gives;
  std::set<int> others;
  if (rank.link() != nullptr && rank.leads_process()) {
    at::Tensor mine =
        at::zeros({each, static_cast<std::int64_t>(items_.size())}, at::TensorOptions(at::kByte));
    for (int i = 0; i < each; ++i) {
      for (const std::size_t item : wanted_[static_cast<std::size_t>(ranks[i])])
        row_of(mine, i)[item] = 1;
    }
    for (int other = 0; other < rank.link()->processes(); ++other) {
      if (other == rank.link()->process()) continue;
      others.insert(other);
      gives[other] = {mine};
    }
  }
  for (const auto& [process, bytes] : rank.exchange_bytes(gives, others)) {
    const at::Tensor theirs = bytes.view({each, -1});
    for (int i = 0; i < each; ++i) {
      std::set<std::size_t>& wanted = wanted_[static_cast<std::size_t>(process * each + i)];
      wanted.clear();
      for (std::size_t item = 0; item < items_.size(); ++item) {
        if (row_of(theirs, i)[item] != 0) wanted.insert(wanted.end(), item);
      }
    }
  }
}

void SharedLoad::plan_readers() {
  std::map<std::string, Transfer> transfers;
  std::map<std::string, std::set<int>> holders;
  std::set<std::size_t> needed;
  for (std::size_t rank = 0; rank < wanted_.size(); ++rank) {
    for (const std::size_t item : wanted_[rank]) {
      holders[reader_key(item)].insert(static_cast<int>(rank));
      if (!needed.insert(item).second) continue;
      Transfer& transfer = transfers[reader_key(item)];
      transfer.id = reader_key(item);
      transfer.bytes += items_[item].meta.bytes();
    }
  }
  std::vector<Transfer> list;
  for (auto& [key, transfer] : transfers) {
    transfer.holders.assign(holders[key].begin(), holders[key].end());
    list.push_back(std::move(transfer));
  }
  plan_ = distribute(std::move(list));
  reader_.clear();
  offset_.clear();
  for (const std::size_t item : needed) reader_[item] = plan_.rank_of(reader_key(item));
}

void SharedLoad::exchange_offsets(runtime::RankContext& rank, const LoadSource& source) {
  if (!source.offset) return;
  for (const auto& [item, reader] : reader_) {
    if (reader != rank.rank()) continue;
    const std::int64_t offset = source.offset(item);
    const std::scoped_lock lock(mutex_);
    offset_[item] = offset;
  }
  rank.process_barrier(kStorageTimeout);
  std::map<int, std::vector<at::Tensor>> gives;
  std::set<int> others;
  if (rank.link() != nullptr && rank.leads_process()) {
    at::Tensor mine = at::full({static_cast<std::int64_t>(items_.size())}, -1, at::kLong);
    auto* const values = mine.mutable_data_ptr<std::int64_t>();
    for (const auto& [item, offset] : offset_) values[item] = offset;
    for (int other = 0; other < rank.link()->processes(); ++other) {
      if (other == rank.link()->process()) continue;
      others.insert(other);
      gives[other] = {mine};
    }
  }
  for (const auto& [process, bytes] : rank.exchange_bytes(gives, others)) {
    const at::Tensor theirs = bytes.view(at::kLong);
    const auto* const values = theirs.const_data_ptr<std::int64_t>();
    for (std::size_t item = 0; item < items_.size(); ++item) {
      if (values[item] >= 0) offset_[item] = values[item];
    }
  }
}

/// Each wave has items of all readers, as far as they go, in the order of their files.
void SharedLoad::plan_waves() {
  const auto place = [&](std::size_t item) {
    const auto offset = offset_.find(item);
    return std::tuple(offset == offset_.end() ? std::string() : items_[item].file,
                      offset == offset_.end() ? 0 : offset->second, item);
  };
  std::map<int, std::vector<std::size_t>> of_readers;
  for (const auto& [item, reader] : reader_) of_readers[reader].push_back(item);
  std::vector<std::pair<std::int64_t, std::size_t>> order;  // bytes that its reader read before
  last_.clear();
  for (auto& [reader, items] : of_readers) {
    std::ranges::sort(items, {}, place);
    std::int64_t before = 0;
    std::map<std::string, std::size_t> last;
    for (const std::size_t item : items) {
      order.emplace_back(before, item);
      before += items_[item].meta.bytes();
      if (!items_[item].file.empty()) last[items_[item].file] = item;
    }
    for (const auto& [file, item] : last) last_.insert(item);
  }
  std::ranges::stable_sort(order, {}, [](const auto& one) { return one.first; });
  waves_.clear();
  std::int64_t bytes = kWaveBytes;
  for (const auto& [before, item] : order) {
    if (bytes + items_[item].meta.bytes() > kWaveBytes) {
      waves_.emplace_back();
      bytes = 0;
    }
    waves_.back().push_back(item);
    bytes += items_[item].meta.bytes();
  }
}

void SharedLoad::read_wave(int rank, const std::vector<std::size_t>& wave, const Places& places,
                           const LoadSource& source) {
  for (const std::size_t item : wave) {
    if (reader_.at(item) != rank) continue;
    const auto place = places.find(item);
    at::Tensor content = source.read(item, place == places.end() ? at::Tensor() : place->second);
    if (source.end && last_.contains(item)) source.end(item);
    const std::scoped_lock lock(mutex_);
    read_.emplace(item, std::move(content));
  }
}

std::vector<std::size_t> SharedLoad::parcel(const std::vector<std::size_t>& wave, int each,
                                            int from, int to) const {
  std::vector<std::size_t> items;
  for (const std::size_t item : wave) {
    if (reader_.at(item) / each != from) continue;
    for (int rank = to * each; rank < (to + 1) * each; ++rank) {
      if (!wanted_[static_cast<std::size_t>(rank)].contains(item)) continue;
      items.push_back(item);
      break;
    }
  }
  // Wide elements first: each begins where its type may.
  std::ranges::stable_sort(items, std::greater<>(),
                           [this](auto item) { return element_bytes(items_[item].meta.dtype); });
  return items;
}

void SharedLoad::exchange_wave(runtime::RankContext& rank, const std::vector<std::size_t>& wave) {
  if (rank.link() == nullptr) return;
  const auto each = static_cast<int>(rank.process_ranks().size());
  const int own = rank.link()->process();
  std::map<int, std::vector<at::Tensor>> gives;
  std::map<int, std::vector<std::size_t>> comes;
  std::set<int> from;
  for (int other = 0; rank.leads_process() && other < rank.link()->processes(); ++other) {
    if (other == own) continue;
    for (const std::size_t item : parcel(wave, each, own, other))
      gives[other].push_back(read_.at(item));
    comes[other] = parcel(wave, each, other, own);
    if (!comes[other].empty()) from.insert(other);
  }
  for (const auto& [process, bytes] : rank.exchange_bytes(gives, from)) {
    std::int64_t at = 0;
    for (const std::size_t item : comes[process]) {
      const TensorMeta& meta = items_[item].meta;
      const at::Tensor own_bytes = bytes.narrow(0, at, meta.bytes());
      read_.emplace(item, own_bytes.view(scalar_type_of(meta.dtype)).view(meta.shape));
      at += meta.bytes();
    }
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

void SharedLoad::read_alone(int rank, const std::vector<LoadCopy>& copies,
                            const LoadSource& source) {
  const auto at = static_cast<std::size_t>(rank);
  SharedLoad alone(items_, 1);
  alone.wanted_ = {wanted_[at]};
  alone.plan_readers();
  for (const auto& [item, reader] : alone.reader_) {
    if (source.offset) alone.offset_[item] = source.offset(item);
  }
  alone.plan_waves();
  const Places places = places_of(copies);
  for (const std::vector<std::size_t>& wave : alone.waves_) {
    for (const std::size_t item : wave) {
      alone.read_wave(0, {item}, places, source);
      take(alone.read_, copies);
      alone.read_.clear();
    }
  }
}

void SharedLoad::load(runtime::RankContext& rank, const std::vector<LoadCopy>& copies,
                      const LoadSource& source, Readers readers) {
  const at::NoGradGuard no_grad;
  std::set<std::size_t>& own = wanted_[static_cast<std::size_t>(rank.rank())];
  own.clear();
  for (const LoadCopy& part : copies) {
    for (const CopyStep& copy : part.reads.copies) own.insert(copy.tensor);
  }
  if (readers == Readers::kEach) return read_alone(rank.rank(), copies, source);
  rank.process_barrier(kStorageTimeout);
  exchange_wishes(rank);
  if (rank.leads_process()) plan_readers();
  rank.process_barrier(kStorageTimeout);
  exchange_offsets(rank, source);
  if (rank.leads_process()) plan_waves();
  rank.process_barrier(kStorageTimeout);
  const Places places = places_of(copies);
  for (const std::vector<std::size_t>& wave : waves_) {
    read_wave(rank.rank(), wave, places, source);
    rank.process_barrier(kStorageTimeout);
    exchange_wave(rank, wave);
    rank.process_barrier(kStorageTimeout);
    take(read_, copies);
    rank.host_barrier(kStorageTimeout);  // no one sends more than a wave ahead
    if (rank.leads_process()) read_.clear();
    rank.process_barrier(kStorageTimeout);
  }
}

}  // namespace trellis::checkpoint
