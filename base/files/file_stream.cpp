#include "base/files/file_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/output_error.h"

namespace trellis {
namespace {

constexpr std::size_t kBufferBytes = 1 << 16;

/// The kernel copies from other addresses at a quarter of the speed, so that one more copy to a
/// buffer is faster.
bool is_aligned(const char* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(std::max_align_t) == 0;
}

int open_for_writing(const std::filesystem::path& path, FileStream::Mode mode) {
  const int how = mode == FileStream::Mode::kAppend ? O_APPEND : O_TRUNC;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
  if (descriptor < 0) {
    throw ConfigError(path.string() + ": cannot write here: " + std::strerror(errno) +
                      "; choose another place");
  }
  return descriptor;
}

}  // namespace

OutputError::OutputError(const std::filesystem::path& output, int reason)
    : OutputError(output.string() + ": write failed: " + std::strerror(reason) +
                  (reason == ENOSPC || reason == EDQUOT
                       ? "; free some space or choose another place"
                       : "; choose another place")) {}

DescriptorBuffer::DescriptorBuffer(int descriptor)
    : descriptor_(descriptor), buffer_(kBufferBytes) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

void DescriptorBuffer::put(const char* bytes, std::size_t size) {
  while (size > 0 && error_ == 0) {
    const ssize_t written = ::write(descriptor_, bytes, size);
    if (written < 0) {
      if (errno != EINTR) error_ = errno;
      continue;
    }
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

int DescriptorBuffer::flush() {
  put(pbase(), static_cast<std::size_t>(pptr() - pbase()));
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  return error_;
}

DescriptorBuffer::int_type DescriptorBuffer::overflow(int_type c) {
  if (flush() != 0) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
  return traits_type::not_eof(c);
}

std::streamsize DescriptorBuffer::xsputn(const char* text, std::streamsize size) {
  const bool direct = size >= std::ssize(buffer_) && is_aligned(text);
  if (direct) {
    flush();
    put(text, static_cast<std::size_t>(size));
  }
  for (std::streamsize done = direct ? size : 0; done < size && error_ == 0;) {
    if (pptr() == epptr()) flush();
    const std::streamsize part = std::min<std::streamsize>(size - done, epptr() - pptr());
    std::memcpy(pptr(), text + done, static_cast<std::size_t>(part));
    pbump(static_cast<int>(part));
    done += part;
  }
  return error_ == 0 ? size : 0;
}

FileStream::FileStream(std::filesystem::path path, Mode mode)
    : FileStream(path, open_for_writing(path, mode)) {}

FileStream::FileStream(std::filesystem::path path, int descriptor)
    : std::ostream(nullptr), path_(std::move(path)), descriptor_(descriptor), buffer_(descriptor) {
  rdbuf(&buffer_);
}

FileStream::~FileStream() {
  buffer_.flush();
  ::close(descriptor_);
}

void FileStream::check() {
  if (const int reason = buffer_.flush(); reason != 0) throw OutputError(path_, reason);
}

void FileStream::sync_to_disk() {
  check();
  if (::fsync(descriptor_) != 0) throw OutputError(path_, errno);
}

}  // namespace trellis
