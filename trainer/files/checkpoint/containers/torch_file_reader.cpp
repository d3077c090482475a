#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/containers/torch_file_parser.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"

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
                                 std::set<std::string> classes,
                                 std::shared_ptr<RecordChecks> checks)
    : file_(std::move(file)),
      checks_(checks ? std::move(checks) : std::make_shared<RecordChecks>()) {
  TorchFileParser(*this, std::move(classes)).parse();
  is_checked_ = std::make_unique<std::atomic<bool>[]>(storages_.size());
}

void TorchFileReader::read_checked(const TorchStorage& storage, std::int64_t first,
                                   std::span<std::byte> into) const {
  std::uint32_t crc = 0;
  const auto read_to = [&](std::int64_t begin, std::int64_t end, std::byte* place) {
    read_pieces(*file_, storage.file_offset + begin, storage.file_offset + end, place,
                [&](std::span<const std::byte> piece) { crc = zip_crc32(crc, piece); });
  };
  const std::int64_t end = first + static_cast<std::int64_t>(into.size());
  read_to(0, first, nullptr);
  read_to(first, end, into.data());
  read_to(end, storage.bytes, nullptr);
  if (crc != storage.crc32)
    throw ConfigError(name() + ": data/" + storage.key +
                      ": the checksum differs: the file is damaged; use another copy of it");
}

void TorchFileReader::read_storage(std::int64_t number, std::int64_t first,
                                   std::span<std::byte> into) const {
  const TorchStorage& storage = storages_[static_cast<std::size_t>(number)];
  std::atomic<bool>& is_checked = is_checked_[static_cast<std::size_t>(number)];
  bool is_read = false;
  if (!is_checked && checks_->are_needed()) {
    if (storage.crc32 == 0)
      checks_->say_unseen(name());
    else
      is_read =
          checks_->once(name() + "/" + storage.key, [&] { read_checked(storage, first, into); });
    is_checked = true;
  }
  if (!is_read) file_->read(storage.file_offset + first, into);
}

void TorchFileReader::read_tensor(std::int64_t tensor, std::span<std::byte> into) const {
  const TorchTensor& what = tensors_.at(static_cast<std::size_t>(tensor));
  TRELLIS_CHECK(static_cast<std::int64_t>(into.size()) == what.meta.bytes(), "size of the buffer");
  read_bytes(tensor, 0, into);
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
  if (!what.is_contiguous()) return gather(what, first_byte / width, into);
  read_storage(what.storage, what.storage_offset * width + first_byte, into);
}

/// Reads the part of the storage that the range touches, piece by piece, and takes from each piece
/// the elements that lie in it.
void TorchFileReader::gather(const TorchTensor& tensor, std::int64_t first,
                             std::span<std::byte> into) const {
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
    read_storage(tensor.storage, from * width, bytes);
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
