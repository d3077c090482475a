#include "runtime/links/shared_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <ATen/ops/from_blob.h>

#include "base/error.h"

namespace trellis::runtime {
namespace {

bool write_all(int descriptor, const std::byte* begin, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, begin, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    begin += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

std::unique_ptr<SharedBytes> SharedBytes::copy_of(
    const std::vector<std::pair<const std::byte*, std::size_t>>& pieces) {
  const int descriptor = ::memfd_create("trellis message", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<SharedBytes> bytes(new SharedBytes(descriptor));
  for (const auto& [begin, size] : pieces) {
    if (!write_all(descriptor, begin, size)) return nullptr;
  }
  return bytes;
}

SharedBytes::~SharedBytes() { ::close(descriptor_); }

at::Tensor SharedBytes::map(int descriptor, std::size_t size) {
  void* const place = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (place == MAP_FAILED)
    throw Error(ExitCode::kInternal, "cannot map " + std::to_string(size) +
                                         " bytes of another process: " + std::strerror(error));
  return at::from_blob(
      place, {static_cast<std::int64_t>(size)}, [size](void* begin) { ::munmap(begin, size); },
      at::TensorOptions(at::kByte));
}

}  // namespace trellis::runtime
