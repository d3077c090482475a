#include "trainer/checkpoint/formats/native/loader.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
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

}  // namespace

Loader::Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size)
    : storage_(std::move(storage)),
      tag_(std::move(tag)),
      address_(tag_.empty() ? storage_->address() : storage_->address() + "/" + tag_),
      manifest_(read_manifest(*storage_, tag_)),
      shared_(items_of(manifest_), world_size) {
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

/// The ranks of a process share the hashing of the files that any of them reads.
void Loader::check_files(const runtime::RankContext& rank, const std::set<std::size_t>& tensors) {
  std::set<std::string> files;
  for (const std::size_t tensor : tensors) files.insert(manifest_.tensors[tensor].file);
  Problems problems;
  const std::vector<int>& ranks = rank.process_ranks();
  std::size_t turn = 0;
  for (const std::string& path : files) {
    if (ranks[turn++ % ranks.size()] != rank.rank()) continue;
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
  const std::int64_t number = tensor_number(*reader, stored, address_);
  at::Tensor content =
      at::empty(stored.shape, at::TensorOptions().dtype(scalar_type_of(stored.dtype)));
  reader->read_tensor(number,
                      {static_cast<std::byte*>(content.mutable_data_ptr()), content.nbytes()});
  return content;
}

void Loader::load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted) {
  const std::vector<LoadCopy> copies = plan_copies(
      wanted, index_, [this](std::size_t tensor) { return manifest_.tensors[tensor].dtype; },
      address_);
  shared_.load(
      rank, copies, [this](std::size_t tensor) { return read(tensor); },
      [&](const std::set<std::size_t>& tensors) { check_files(rank, tensors); });
}

}  // namespace trellis::checkpoint::native
