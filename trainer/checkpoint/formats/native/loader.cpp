#include "trainer/checkpoint/formats/native/loader.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "trainer/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/checkpoint/formats/native/stored_tensor.h"
#include "trainer/checkpoint/state/torch_dtype.h"

namespace trellis::checkpoint::native {
namespace {

std::vector<LoadItem> items_of(const Manifest& manifest) {
  std::vector<LoadItem> items;
  for (const StoredTensor& tensor : manifest.tensors)
    items.push_back({tensor.id(), tensor.bytes()});
  return items;
}

/// The memory of training that is the whole stored tensor, byte for byte; undefined: there is none.
at::Tensor place_of(const CopyStep& step, const StoredTensor& stored, const LiveTensor& into) {
  if (step.from.shape != stored.shape || !into.values.device().is_cpu() ||
      into.values.scalar_type() != scalar_type_of(stored.dtype))
    return {};
  at::Tensor place = box_of(into.values, step.into, step.from.shape);
  return place.is_contiguous() ? place : at::Tensor();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

void compare(const StoredFile& expected, const StoredFile& got, const std::string& name,
             Problems& problems) {
  if (got.bytes != expected.bytes)
    problems.add(name, "expected " + std::to_string(expected.bytes) + " bytes, got " +
                           std::to_string(got.bytes) + "; load another checkpoint");
  else if (got != expected)
    problems.add(name, "its content is not what was saved: expected XXH3-128 " + expected.xxh3_128 +
                           ", got " + got.xxh3_128 + "; load another checkpoint");
}

}  // namespace

Loader::Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size, int most_readers)
    : storage_(std::move(storage)),
      tag_(std::move(tag)),
      address_(tag_.empty() ? storage_->address() : storage_->address() + "/" + tag_),
      manifest_(read_manifest(*storage_, tag_)),
      shared_(items_of(manifest_), world_size),
      files_(
          [this](const std::string& path, bool) { return storage_->open(join_path(tag_, path)); },
          {}, RecordChecks::Rule::kNone),
      wishes_(static_cast<std::size_t>(world_size)) {
  if (most_readers > 0) gate_.emplace(most_readers);
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    for (const StoredPart& part : manifest_.tensors[i].parts)
      index_[part.key].push_back({i, part.global_shape, part.global_offset, part.local});
  }
}

Value Loader::user_content() const {
  std::optional<Value> content = value_of(kUserContentFile);
  if (!content)
    throw ConfigError(address_ + "/" + kUserContentFile +
                      ": is not part of the checkpoint; load one that `trellis train` saved");
  return *std::move(content);
}

template <typename Work>
auto Loader::reading(const Work& work) const {
  try {
    return work();
  } catch (const DamagedCheckpoint&) {
    throw;
  } catch (const ConfigError& error) {
    throw DamagedCheckpoint({storage_, tag_}, error.what());
  }
}

std::optional<Value> Loader::value_of(const std::string& file_name) const {
  const auto known = manifest_.files.find(file_name);
  if (known == manifest_.files.end()) return std::nullopt;
  return reading([&] {
    const auto file = storage_->open(join_path(tag_, file_name));
    if (hash_file(*file) != known->second)
      throw ConfigError(file->name() +
                        ": its content is not what was saved; load another checkpoint");
    return std::optional(TorchFileReader(file).root());
  });
}

void Loader::join_wishes(const std::vector<int>& ranks) {
  all_ = {};
  for (const int rank : ranks) {
    Wish& wish = wishes_[static_cast<std::size_t>(rank)];
    all_.tensors.merge(wish.tensors);
    all_.places.merge(wish.places);
    wish = {};
  }
}

void Loader::read_files(const Wish& wish, const std::vector<int>& ranks, int self) {
  std::map<std::string, std::vector<std::size_t>> files;
  for (const std::size_t tensor : wish.tensors)
    files[manifest_.tensors[tensor].file].push_back(tensor);
  Problems problems;
  std::size_t turn = 0;
  for (const auto& [path, tensors] : files) {
    if (ranks[turn++ % ranks.size()] == self) read_file(path, tensors, wish, problems);
  }
  problems.throw_if_any();
}

void Loader::read_file(const std::string& path, const std::vector<std::size_t>& tensors,
                       const Wish& wish, Problems& problems) {
  const GatePass pass(gate_);
  const StoredFile& expected = manifest_.files.at(path);
  const auto file = storage_->open(join_path(tag_, path));
  std::vector<FileRange> ranges;
  // The reader would say of a file that was cut that it is no archive.
  if (file->size() == expected.bytes) {
    for (const std::size_t tensor : tensors) {
      const auto place = wish.places.find(tensor);
      if (place == wish.places.end()) continue;
      const StoredTensor& stored = manifest_.tensors[tensor];
      const auto reader = files_.get(stored);
      const auto& what =
          reader->tensors().at(static_cast<std::size_t>(tensor_number(*reader, stored, address_)));
      const auto& storage = reader->storages()[static_cast<std::size_t>(what.storage)];
      ranges.push_back({stored.entry_offset + storage.file_offset, bytes_of(place->second)});
    }
  }
  std::ranges::sort(ranges, {}, &FileRange::offset);
  compare(expected, hash_file(*file, ranges), file->name(), problems);
}

void Loader::copy_from_places(const Wish& wish, std::vector<LoadCopy>& copies) const {
  for (LoadCopy& copy : copies) {
    std::erase_if(copy.reads.copies, [&](const CopyStep& step) {
      const auto place = wish.places.find(step.tensor);
      if (place == wish.places.end()) return false;
      const at::Tensor own = place_of(step, manifest_.tensors[step.tensor], *copy.into);
      if (!own.defined() || own.const_data_ptr() != place->second.const_data_ptr())
        copy_step(step, place->second, *copy.into);
      return true;
    });
  }
}

at::Tensor Loader::read(std::size_t tensor) {
  const GatePass pass(gate_);
  const StoredTensor& stored = manifest_.tensors[tensor];
  const auto reader = files_.get(stored);
  const std::int64_t number = tensor_number(*reader, stored, address_);
  at::Tensor content =
      at::empty(stored.shape, at::TensorOptions().dtype(scalar_type_of(stored.dtype)));
  reader->read_tensor(number, bytes_of(content));
  return content;
}

void Loader::load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
                  Readers readers) {
  const at::NoGradGuard no_grad;
  std::vector<LoadCopy> copies = plan_copies(
      wanted, index_, [this](std::size_t tensor) { return dtype_of(tensor); }, address_);
  Wish& wish = wishes_[static_cast<std::size_t>(rank.rank())];
  for (const LoadCopy& copy : copies) {
    for (const CopyStep& step : copy.reads.copies) {
      wish.tensors.insert(step.tensor);
      at::Tensor place = place_of(step, manifest_.tensors[step.tensor], *copy.into);
      if (place.defined()) wish.places.emplace(step.tensor, std::move(place));
    }
  }
  reading([&] { fill(rank, std::move(copies), readers); });
}

void Loader::fill(runtime::RankContext& rank, std::vector<LoadCopy> copies, Readers readers) {
  Wish& wish = wishes_[static_cast<std::size_t>(rank.rank())];
  if (readers == Readers::kEach) {
    read_files(wish, {rank.rank()}, rank.rank());
    copy_from_places(std::exchange(wish, {}), copies);
  } else {
    rank.process_barrier(kStorageTimeout);
    if (rank.leads_process()) join_wishes(rank.process_ranks());
    rank.process_barrier(kStorageTimeout);
    read_files(all_, rank.process_ranks(), rank.rank());
    rank.process_barrier(kStorageTimeout);
    copy_from_places(all_, copies);
  }
  shared_.load(rank, copies, [this](std::size_t tensor) { return read(tensor); }, readers);
}

}  // namespace trellis::checkpoint::native
