#include "base/files/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/files/input_file.h"

namespace trellis {
namespace {

[[noreturn]] void cannot_map(const std::filesystem::path& path, const std::string& reason) {
  throw ConfigError(path.string() + ": cannot read: " + reason);
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const InputFile file(path_);
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return;  // nothing can be mapped
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (memory == MAP_FAILED) cannot_map(path_, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trellis
