#include "trainer/checkpoint/formats/native/loader.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/checkpoint/state/torch_dtype.h"

namespace trellis::checkpoint::native {
namespace {

/// Of the tensors that are in memory in addition to those of training.
constexpr std::int64_t kWaveBytes = std::int64_t{128} << 20;

at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape) {
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
  return tensor;
}

}  // namespace

Loader::Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size)
    : storage_(std::move(storage)),
      tag_(std::move(tag)),
      address_(tag_.empty() ? storage_->address() : storage_->address() + "/" + tag_),
      manifest_(read_manifest(*storage_, tag_)),
      wanted_(static_cast<std::size_t>(world_size)) {
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    for (const StoredPart& part : manifest_.tensors[i].parts)
      index_[part.key].push_back({i, part.global_shape, part.global_offset, part.local});
  }
}

Value Loader::user_content() const {
  const std::string path = join_path(tag_, kUserContentFile);
  const auto file = storage_->open(path);
  const auto known = manifest_.files.find(kUserContentFile);
  if (known == manifest_.files.end() || hash_file(*file) != known->second)
    throw ConfigError(file->name() +
                      ": its content is not what was saved; load another checkpoint");
  return TorchFileReader(file).root();
}

/// The stored tensor that a part is read from; "" when there is none.
std::string Loader::key_of(const ShardedPart& part) const {
  return source_key(part.tensor.key, part.tensor.dtype,
                    [&](const std::string& key) -> std::optional<DType> {
                      const auto found = index_.find(key);
                      if (found == index_.end()) return std::nullopt;
                      return manifest_.tensors[found->second.front().tensor].dtype;
                    });
}

std::vector<Loader::Copies> Loader::plan_copies(const std::vector<LiveTensor>& wanted) const {
  Problems problems;
  std::vector<Copies> all;
  for (const LiveTensor& tensor : wanted) {
    for (const ShardedPart& part : tensor.parts) {
      const std::string key = key_of(part);
      if (key.empty()) {
        if (!tensor.optional)
          problems.add(address_, "has no " + part.tensor.key +
                                     "; it is of another model or optimizer, or of weights alone "
                                     "(model.weight_init_only loads those)");
        continue;
      }
      all.push_back({&tensor, plan_reads(part, key, index_)});
      if (all.back().reads.elements < part.local.elements())
        box_of(tensor.values, part.local.offset, part.local.shape).zero_();
    }
  }
  problems.throw_if_any();
  return all;
}

void Loader::plan_waves() {
  std::map<std::size_t, Transfer> transfers;
  for (std::size_t rank = 0; rank < wanted_.size(); ++rank) {
    for (const std::size_t tensor : wanted_[rank]) {
      Transfer& transfer = transfers[tensor];
      transfer.id = manifest_.tensors[tensor].id();
      transfer.bytes = manifest_.tensors[tensor].bytes();
      transfer.holders.push_back(static_cast<int>(rank));
    }
  }
  std::vector<Transfer> list;
  waves_.clear();
  std::int64_t bytes = kWaveBytes;
  for (const auto& [tensor, transfer] : transfers) {
    if (bytes + transfer.bytes > kWaveBytes) {
      waves_.emplace_back();
      bytes = 0;
    }
    waves_.back().push_back(tensor);
    bytes += transfer.bytes;
    list.push_back(transfer);
  }
  plan_ = distribute(std::move(list));
}

/// The ranks share the hashing of the files that any of them reads.
void Loader::check_files(const runtime::RankContext& rank) {
  std::set<std::string> files;
  for (const auto& tensors : wanted_) {
    for (const std::size_t tensor : tensors) files.insert(manifest_.tensors[tensor].file);
  }
  Problems problems;
  int turn = 0;
  for (const std::string& path : files) {
    if (turn++ % static_cast<int>(wanted_.size()) != rank.rank()) continue;
    const auto file = storage_->open(join_path(tag_, path));
    const StoredFile &expected = manifest_.files.at(path), got = hash_file(*file);
    if (got.bytes != expected.bytes)
      problems.add(file->name(), "expected " + std::to_string(expected.bytes) + " bytes, got " +
                                     std::to_string(got.bytes) + "; load another checkpoint");
    else if (got != expected)
      problems.add(file->name(), "its content is not what was saved: expected XXH3-128 " +
                                     expected.xxh3_128 + ", got " + got.xxh3_128 +
                                     "; load another checkpoint");
  }
  problems.throw_if_any();
}

std::shared_ptr<const TorchFileReader> Loader::reader_of(const std::string& file) {
  const std::scoped_lock lock(mutex_);
  auto& reader = readers_[file];
  if (!reader)
    reader = std::make_shared<const TorchFileReader>(storage_->open(join_path(tag_, file)));
  return reader;
}

at::Tensor Loader::read(std::size_t tensor) {
  const StoredTensor& stored = manifest_.tensors[tensor];
  const auto reader = reader_of(stored.file);
  const Value* value = &reader->root();
  for (const PathKey& key : stored.path)
    value = &value->at(std::visit([](const auto& word) { return Value(word); }, key));
  const std::int64_t number = value->as_tensor();
  const TensorMeta& meta = reader->tensors().at(static_cast<std::size_t>(number)).meta;
  if (meta.dtype != stored.dtype || meta.shape != stored.shape)
    throw ConfigError(address_ + ": " + stored.id() + " is not as " + kManifestFile +
                      " says: expected " + name(stored.dtype) + " " + text_of(stored.shape) +
                      ", got " + name(meta.dtype) + " " + text_of(meta.shape));
  at::Tensor content =
      at::empty(stored.shape, at::TensorOptions().dtype(scalar_type_of(stored.dtype)));
  reader->read_tensor(number,
                      {static_cast<std::byte*>(content.mutable_data_ptr()), content.nbytes()});
  return content;
}

void Loader::load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted) {
  const at::NoGradGuard no_grad;
  const std::vector<Copies> copies = plan_copies(wanted);
  const auto self = static_cast<std::size_t>(rank.rank());
  wanted_[self].clear();
  for (const Copies& part : copies) {
    for (const CopyStep& copy : part.reads.copies) wanted_[self].insert(copy.tensor);
  }
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0) plan_waves();
  check_files(rank);
  rank.host_barrier(kStorageTimeout);
  for (const std::vector<std::size_t>& wave : waves_) {
    const std::set<std::size_t> present(wave.begin(), wave.end());
    for (const std::size_t tensor : wave) {
      if (plan_.rank_of(manifest_.tensors[tensor].id()) != rank.rank()) continue;
      at::Tensor content = read(tensor);
      const std::scoped_lock lock(mutex_);
      read_.emplace(tensor, std::move(content));
    }
    rank.host_barrier(kStorageTimeout);
    for (const Copies& part : copies) {
      for (const CopyStep& copy : part.reads.copies) {
        if (!present.contains(copy.tensor)) continue;
        const at::Tensor into = box_of(part.into->values, copy.into, copy.from.shape);
        const at::Tensor from = box_of(read_.at(copy.tensor), copy.from.offset, copy.from.shape);
        into.copy_(into.device().is_cpu() ? from : from.to(into.scalar_type()).contiguous());
      }
    }
    rank.host_barrier(kStorageTimeout);
    if (rank.rank() == 0) read_.clear();
    rank.host_barrier(kStorageTimeout);
  }
}

}  // namespace trellis::checkpoint::native
