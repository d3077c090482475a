#include "trainer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& reason) {
  throw ConfigError(path.string() + ": cannot read: " + reason);
}

struct OpenFile {
  explicit OpenFile(const std::filesystem::path& path) : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor < 0) cannot_read(path, std::strerror(errno));
  }
  ~OpenFile() { close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor;
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const OpenFile file(path_);
  struct stat status {};
  if (fstat(file.descriptor, &status) != 0) cannot_read(path_, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) cannot_read(path_, S_ISDIR(status.st_mode) ? "it is a directory, expected a file" : "it is no regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // nothing can be mapped
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor, 0);
  if (memory == MAP_FAILED) cannot_read(path_, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trellis::trainer
