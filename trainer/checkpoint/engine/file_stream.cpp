#include "trainer/checkpoint/engine/file_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/native/stored_tensor.h"

namespace trellis::checkpoint::native {

/// Keeps the small reads of those who find out what is in the file.
class FileStream::Remembering final : public ReadableFile {
 public:
  explicit Remembering(std::shared_ptr<const ReadableFile> file) : file_(std::move(file)) {}
  [[nodiscard]] const std::string& name() const override { return file_->name(); }
  [[nodiscard]] std::int64_t size() const override { return file_->size(); }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const auto [known, size] = next(offset, static_cast<std::int64_t>(into.size()));
      const std::span<std::byte> part = into.first(static_cast<std::size_t>(size));
      if (known != nullptr) {
        std::memcpy(part.data(), known, part.size());
      } else {
        file_->read(offset, part);
        if (remembers_) kept_[offset].assign(part.begin(), part.end());
      }
      offset += size;
      into = into.subspan(part.size());
    }
  }
  /// From here on nothing is kept.
  void go_on() { remembers_ = false; }

 private:
  /// The bytes from `offset` on, `most` at most, which are kept (null: are not), and how many.
  [[nodiscard]] std::pair<const std::byte*, std::int64_t> next(std::int64_t offset,
                                                               std::int64_t most) const {
    const auto after = kept_.upper_bound(offset);
    if (after != kept_.begin()) {
      const auto& [begin, bytes] = *std::prev(after);
      const std::int64_t rest = begin + static_cast<std::int64_t>(bytes.size()) - offset;
      if (rest > 0) return {bytes.data() + (offset - begin), std::min(rest, most)};
    }
    if (after == kept_.end()) return {nullptr, most};
    return {nullptr, std::min(most, after->first - offset)};
  }

  std::shared_ptr<const ReadableFile> file_;
  bool remembers_ = true;
  mutable std::map<std::int64_t, std::vector<std::byte>> kept_;  ///< by offset
};

FileStream::FileStream(std::shared_ptr<const ReadableFile> file)
    : file_(std::make_shared<Remembering>(std::move(file))) {}

std::int64_t FileStream::offset_of(const StoredTensor& tensor, const std::string& address) {
  std::unique_ptr<TorchFileReader>& reader = readers_[tensor.entry_offset];
  if (!reader) {
    std::shared_ptr<const ReadableFile> file = file_;
    if (tensor.entry_length > 0)
      file = file_range(file_, tensor.entry_offset, tensor.entry_length,
                        file_->name() + ", entry at " + std::to_string(tensor.entry_offset));
    reader = std::make_unique<TorchFileReader>(
        std::move(file), std::set<std::string>{},
        std::make_shared<RecordChecks>(RecordChecks::Rule::kNone));
  }
  const auto number = static_cast<std::size_t>(tensor_number(*reader, tensor, address));
  const TorchTensor& what = reader->tensors()[number];
  if (!what.is_contiguous())
    throw ConfigError(address + ": " + tensor.id() +
                      ": expected its elements one after the other; the checkpoint is damaged");
  return tensor.entry_offset +
         reader->storages()[static_cast<std::size_t>(what.storage)].file_offset +
         what.storage_offset * element_bytes(tensor.dtype);
}

void FileStream::hash(std::int64_t end, std::byte* into) {
  read_pieces(*file_, done_, end, into,
              [&](std::span<const std::byte> piece) { hasher_.bytes(piece.data(), piece.size()); });
  done_ = std::max(done_, end);
}

void FileStream::read(std::int64_t offset, std::span<std::byte> into) {
  file_->go_on();
  if (offset < done_) {
    const auto again = static_cast<std::size_t>(
        std::min<std::int64_t>(done_ - offset, static_cast<std::int64_t>(into.size())));
    file_->read(offset, into.first(again));
    into = into.subspan(again);
    offset += static_cast<std::int64_t>(again);
  }
  if (into.empty()) return;
  hash(offset, nullptr);
  hash(offset + static_cast<std::int64_t>(into.size()), into.data());
}

StoredFile FileStream::finish() {
  file_->go_on();
  hash(file_->size(), nullptr);
  return {file_->size(), hasher_.finish().to_string()};
}

}  // namespace trellis::checkpoint::native
