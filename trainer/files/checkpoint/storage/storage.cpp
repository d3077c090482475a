#include "trainer/files/checkpoint/storage/storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

class RangeFile : public ReadableFile {
 public:
  RangeFile(std::shared_ptr<const ReadableFile> file, std::int64_t offset, std::int64_t length,
            std::string name)
      : file_(std::move(file)), offset_(offset), length_(length), name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return length_; }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    file_->read(offset_ + offset, into);
  }

 private:
  std::shared_ptr<const ReadableFile> file_;
  std::int64_t offset_, length_;
  std::string name_;
};

class MemoryFile : public ReadableFile {
 public:
  MemoryFile(std::vector<std::byte> content, std::string name)
      : content_(std::move(content)), name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(content_.size());
  }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    if (!into.empty()) std::memcpy(into.data(), content_.data() + offset, into.size());
  }

 private:
  std::vector<std::byte> content_;
  std::string name_;
};

}  // namespace

void check_range(const ReadableFile& file, std::int64_t offset, std::size_t length) {
  const std::int64_t size = file.size();
  if (offset < 0 || offset > size || length > static_cast<std::uint64_t>(size - offset)) {
    throw ConfigError(file.name() + ": ends at byte " + std::to_string(size) + "; expected " +
                      std::to_string(length) + " bytes at offset " + std::to_string(offset) +
                      ": the file is cut off or damaged");
  }
}

std::shared_ptr<const ReadableFile> file_range(std::shared_ptr<const ReadableFile> file,
                                               std::int64_t offset, std::int64_t length,
                                               std::string name) {
  if (length < 0) throw ConfigError(name + ": a length of " + std::to_string(length) + " bytes");
  check_range(*file, offset, static_cast<std::size_t>(length));
  return std::make_shared<RangeFile>(std::move(file), offset, length, std::move(name));
}

std::shared_ptr<const ReadableFile> file_in_memory(std::vector<std::byte> content,
                                                   std::string name) {
  return std::make_shared<MemoryFile>(std::move(content), std::move(name));
}

void read_pieces(const ReadableFile& file, std::int64_t offset, std::int64_t end, std::byte* into,
                 const std::function<void(std::span<const std::byte> piece)>& take) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::vector<std::byte> buffer;
  if (into == nullptr && offset < end)
    buffer.resize(static_cast<std::size_t>(std::min(kPiece, end - offset)));
  for (std::int64_t size = 0; offset < end; offset += size) {
    size = std::min(kPiece, end - offset);
    const std::span<std::byte> piece(into == nullptr ? buffer.data() : into,
                                     static_cast<std::size_t>(size));
    file.read(offset, piece);
    take(piece);
    if (into != nullptr) into += size;
  }
}

std::string Storage::read_text(const std::string& path, std::int64_t most) {
  const std::shared_ptr<const ReadableFile> file = open(path);
  if (file->size() > most) {
    throw ConfigError(file->name() + ": " + std::to_string(file->size()) +
                      " bytes; expected at most " + std::to_string(most));
  }
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void Storage::write_text(const std::string& path, std::string_view text) {
  const std::unique_ptr<WritableFile> file = create(path);
  file->write(std::as_bytes(std::span(text)));
  file->close();
}

}  // namespace trellis::checkpoint
