#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trainer/checkpoint/containers/torch_file.h"
#include "trainer/checkpoint/containers/torch_file_parser.h"
#include "trainer/checkpoint/containers/zip_archive.h"

namespace trellis::checkpoint {
namespace {

/// Part of a storage that is in memory at once while a strided tensor is put together.
constexpr std::int64_t kGatherBytes = std::int64_t{16} << 20;

/// Walks the elements [first, last) of a tensor in row-major order, a run along the last dimension
/// at a time.
class StridedWalk {
 public:
  StridedWalk(const TorchTensor& tensor, std::int64_t first, std::int64_t last)
      : tensor_(tensor), at_(first), last_(last), index_(tensor.meta.shape.size()) {
    std::int64_t rest = first;
    for (std::size_t i = index_.size(); i-- > 0;) {
      index_[i] = rest % tensor.meta.shape[i];
      rest /= tensor.meta.shape[i];
    }
  }
  /// Calls run(element of the range, place in the storage, stride, count).
  template <typename Run>
  void each(const Run& run) {
    const std::int64_t first = at_;
    while (at_ < last_) {
      const std::size_t inner = index_.size() - 1;
      const std::int64_t count =
          index_.empty() ? 1 : std::min(last_ - at_, tensor_.meta.shape[inner] - index_[inner]);
      run(at_ - first, place(), index_.empty() ? 1 : tensor_.strides[inner], count);
      at_ += count;
      advance(count);
    }
  }

 private:
  [[nodiscard]] std::int64_t place() const {
    std::int64_t place = tensor_.storage_offset;
    for (std::size_t i = 0; i < index_.size(); ++i) place += index_[i] * tensor_.strides[i];
    return place;
  }
  void advance(std::int64_t count) {
    if (index_.empty()) return;
    index_.back() += count;
    for (std::size_t i = index_.size(); i-- > 1 && index_[i] == tensor_.meta.shape[i];) {
      index_[i] = 0;
      ++index_[i - 1];
    }
  }

  const TorchTensor& tensor_;
  std::int64_t at_, last_;
  std::vector<std::int64_t> index_;
};

}  // namespace

bool TorchTensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    if (meta.shape[i] == 0) return true;
    if (meta.shape[i] != 1 && strides[i] != expected) return false;
    expected *= meta.shape[i];
  }
  return true;
}

TorchFileReader::TorchFileReader(std::shared_ptr<const ReadableFile> file,
                                 std::set<std::string> classes)
    : file_(std::move(file)) {
  TorchFileParser(*this, std::move(classes)).parse();
}

void TorchFileReader::check_crc(const TorchStorage& storage,
                                std::span<const std::byte> bytes) const {
  if (storage.crc32 != 0 && zip_crc32(0, bytes) != storage.crc32) {
    throw ConfigError(name() + ": data/" + storage.key +
                      ": the checksum differs: the file is damaged");
  }
}

void TorchFileReader::read_tensor(std::int64_t tensor, std::span<std::byte> into) const {
  const TorchTensor& what = tensors_.at(static_cast<std::size_t>(tensor));
  TRELLIS_CHECK(static_cast<std::int64_t>(into.size()) == what.meta.bytes(), "size of the buffer");
  const TorchStorage& storage = storages_[static_cast<std::size_t>(what.storage)];
  if (what.is_contiguous() && storage.bytes == what.meta.bytes()) {
    read_bytes(tensor, 0, into);
    check_crc(storage, into);
  } else if (storage.bytes <= kGatherBytes && !into.empty()) {
    std::vector<std::byte> all(static_cast<std::size_t>(storage.bytes));
    file_->read(storage.file_offset, all);
    check_crc(storage, all);
    gather(what, 0, into, *file_in_memory(std::move(all), name()), 0);
  } else {
    read_bytes(tensor, 0, into);
  }
}

void TorchFileReader::read_rows(std::int64_t tensor, std::int64_t first_row,
                                std::span<std::byte> into) const {
  const TensorMeta& meta = tensors_.at(static_cast<std::size_t>(tensor)).meta;
  TRELLIS_CHECK(!meta.shape.empty(), "a tensor without dimensions has no rows");
  if (into.empty()) return;
  TRELLIS_CHECK(meta.shape[0] > 0, "a tensor without rows");
  read_bytes(tensor, first_row * (meta.bytes() / meta.shape[0]), into);
}

void TorchFileReader::read_bytes(std::int64_t tensor, std::int64_t first_byte,
                                 std::span<std::byte> into) const {
  const TorchTensor& what = tensors_.at(static_cast<std::size_t>(tensor));
  const std::int64_t width = element_bytes(what.meta.dtype),
                     count = static_cast<std::int64_t>(into.size());
  TRELLIS_CHECK(first_byte >= 0 && first_byte % width == 0 && count % width == 0 &&
                    count <= what.meta.bytes() - first_byte,
                "a range of bytes outside the tensor");
  if (count == 0) return;
  const TorchStorage& storage = storages_[static_cast<std::size_t>(what.storage)];
  if (!what.is_contiguous())
    return gather(what, first_byte / width, into, *file_, storage.file_offset);
  file_->read(storage.file_offset + what.storage_offset * width + first_byte, into);
}

/// Reads the part of the storage that the range touches, piece by piece, and takes from each piece
/// the elements that lie in it.
void TorchFileReader::gather(const TorchTensor& tensor, std::int64_t first,
                             std::span<std::byte> into, const ReadableFile& file,
                             std::int64_t storage_begin) {
  const std::int64_t width = element_bytes(tensor.meta.dtype),
                     last = first + static_cast<std::int64_t>(into.size()) / width;
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  StridedWalk(tensor, first, last)
      .each([&](auto, std::int64_t at, std::int64_t stride, auto count) {
        begin = std::min(begin, at);
        end = std::max(end, at + (count - 1) * stride + 1);
      });
  const std::int64_t step = kGatherBytes / width;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(step, end - begin) * width));
  for (std::int64_t from = begin; from < end; from += step) {
    const std::int64_t to = std::min(end, from + step);
    const auto bytes = std::span(piece).first(static_cast<std::size_t>((to - from) * width));
    file.read(storage_begin + from * width, bytes);
    StridedWalk(tensor, first, last)
        .each([&](std::int64_t element, std::int64_t at, std::int64_t stride, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i, at += stride) {
            if (at < from || at >= to) continue;
            std::memcpy(into.data() + (element + i) * width, bytes.data() + (at - from) * width,
                        static_cast<std::size_t>(width));
          }
        });
  }
}

}  // namespace trellis::checkpoint
