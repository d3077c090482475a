#include "trainer/checkpoint/engine/loader.h"

#include <cstddef>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint::native {
namespace {

/// A large tensor is read in pieces of this size.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

void compare(const StoredFile& expected, const StoredFile& got, const std::string& name) {
  if (got.bytes != expected.bytes)
    throw ConfigError(name + ": expected " + std::to_string(expected.bytes) + " bytes, got " +
                      std::to_string(got.bytes) + "; load another checkpoint");
  if (got != expected)
    throw ConfigError(name + ": its content is not what was saved: expected XXH3-128 " +
                      expected.xxh3_128 + ", got " + got.xxh3_128 + "; load another checkpoint");
}

}  // namespace

Loader::Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size, int most_readers)
    : storage_(std::move(storage)),
      tag_(std::move(tag)),
      address_(tag_.empty() ? storage_->address() : storage_->address() + "/" + tag_),
      manifest_(read_manifest(*storage_, tag_)) {
  if (most_readers > 0) gate_.emplace(most_readers);
  make_pieces(world_size);
}

void Loader::make_pieces(int world_size) {
  std::vector<LoadItem> items;
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest_.tensors[i];
    const std::int64_t width = element_bytes(tensor.dtype);
    std::int64_t first_byte = 0;
    const auto add = [&](const Box& box) {
      for (const StoredPart& part : tensor.parts) {
        const Box common = intersection(part.local, box);
        if (common.elements() == 0 && part.local.elements() > 0) continue;
        Shape global = part.global_offset, local = common.offset;
        for (std::size_t axis = 0; axis < global.size(); ++axis) {
          global[axis] += common.offset[axis] - part.local.offset[axis];
          local[axis] -= box.offset[axis];
        }
        index_[part.key].push_back({pieces_.size(),
                                    part.global_shape,
                                    std::move(global),
                                    {std::move(local), common.shape}});
      }
      items.push_back(
          {tensor.id() + " " + text_of(box.offset), {tensor.dtype, box.shape}, tensor.file});
      pieces_.push_back({i, box, first_byte});
      first_byte += box.elements() * width;
    };
    if (elements_of(tensor.shape) == 0) {
      add({Shape(tensor.shape.size(), 0), tensor.shape});
    } else {
      for_each_piece(tensor.shape, kPieceBytes / width, add);
    }
  }
  shared_ = std::make_unique<SharedLoad>(std::move(items), world_size);
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

FileStream& Loader::stream_of(int rank, const StoredTensor& stored) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = streams_.find({rank, stored.file});
    if (found != streams_.end()) return *found->second;
  }
  auto file = storage_->open(join_path(tag_, stored.file));
  // The reader would say of a file that was cut that it is no archive.
  const StoredFile& expected = manifest_.files.at(stored.file);
  if (file->size() != expected.bytes) compare(expected, {file->size(), ""}, file->name());
  auto stream = std::make_unique<FileStream>(std::move(file));
  const std::scoped_lock lock(mutex_);
  return *streams_.emplace(StreamKey{rank, stored.file}, std::move(stream)).first->second;
}

std::int64_t Loader::offset_of(int rank, std::size_t piece) {
  const StoredTensor& stored = stored_of(piece);
  return stream_of(rank, stored).offset_of(stored, address_) + pieces_[piece].first_byte;
}

at::Tensor Loader::read(int rank, std::size_t piece, at::Tensor content) {
  const GatePass pass(gate_);
  if (!content.defined())
    content = at::empty(pieces_[piece].box.shape,
                        at::TensorOptions().dtype(scalar_type_of(stored_of(piece).dtype)));
  const std::int64_t offset = offset_of(rank, piece);
  stream_of(rank, stored_of(piece)).read(offset, bytes_of(content));
  return content;
}

void Loader::close(int rank, const std::string& path) {
  std::unique_ptr<FileStream> stream;
  {
    const std::scoped_lock lock(mutex_);
    stream = std::move(streams_.extract({rank, path}).mapped());
  }
  compare(manifest_.files.at(path), stream->finish(), join_path(address_, path));
}

void Loader::load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
                  Readers readers) {
  const std::vector<LoadCopy> copies =
      plan_copies(wanted, index_, [this](std::size_t piece) { return dtype_of(piece); }, address_);
  const int self = rank.rank();
  const LoadSource source{
      [this, self](std::size_t piece, const at::Tensor& place) { return read(self, piece, place); },
      [this, self](std::size_t piece) { return offset_of(self, piece); },
      [this, self](std::size_t piece) { close(self, stored_of(piece).file); }};
  reading([&] { shared_->load(rank, copies, source, readers); });
}

}  // namespace trellis::checkpoint::native
