#include "base/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/escape.h"

namespace trellis {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& reason) {
  throw ConfigError(terminal_line(path.string()) + ": cannot read: " + reason);
}

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return "a directory";
    case S_IFIFO: return "a named pipe";
    case S_IFCHR:
    case S_IFBLK: return "a device";
    case S_IFSOCK: return "a socket";
    default: return "of an unknown kind";
  }
}

/// "" for a regular file.
std::string why_not_regular(mode_t mode) {
  return S_ISREG(mode) ? "" : std::string("it is ") + kind_of(mode) + "; expected a regular file";
}

std::string text_of_errno() {
  return errno == ENOENT ? "there is no such file" : std::strerror(errno);
}

}  // namespace

std::string why_no_input_file(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return text_of_errno();
  return why_not_regular(status.st_mode);
}

void require_utf8(std::string_view text, const std::string& file) {
  const auto at = find_no_utf8(text);
  if (!at) return;
  const std::string_view before = text.substr(0, *at);
  throw ConfigError(terminal_line(file) + ":" +
                    std::to_string(1 + std::ranges::count(before, '\n')) +
                    ": expected a text in UTF-8, got the byte " +
                    terminal_line(text.substr(*at, 1)) + ": save it as UTF-8");
}

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Asked before it is opened, since opening a device can act on it; and again afterwards, since
  // the path may lead elsewhere by then.
  if (const std::string why = why_no_input_file(path_); !why.empty()) cannot_read(path_, why);
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) cannot_read(path_, text_of_errno());
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const std::string why = known ? why_not_regular(status.st_mode) : text_of_errno();
  if (!why.empty()) {
    ::close(descriptor_);
    cannot_read(path_, why);
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { ::close(descriptor_); }

std::string InputFile::text(std::int64_t most) const {
  std::string text;
  std::size_t filled = 0;
  const auto check = [&](std::int64_t bytes) {
    if (bytes > most)
      cannot_read(path_, "it has more than " + std::to_string(most) +
                             " bytes, the most that is read as a whole: is it the wrong file?");
  };
  check(size_);
  text.resize(static_cast<std::size_t>(size_) + 1);  // one more: the read that finds the end
  for (;;) {
    const ssize_t read = ::read(descriptor_, text.data() + filled, text.size() - filled);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) cannot_read(path_, std::strerror(errno));
    filled += static_cast<std::size_t>(read);
    check(static_cast<std::int64_t>(filled));
    if (read == 0) break;
    if (filled == text.size())
      text.resize(2 * filled + (1 << 16));  // longer than its size said, as files of /proc are
  }
  text.resize(filled);
  return text;
}

std::string read_input_file(const std::filesystem::path& path, std::int64_t most) {
  return InputFile(path).text(most);
}

}  // namespace trellis
