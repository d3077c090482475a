#include "trainer/files/checkpoint/storage/paths.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <random>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {
namespace {

constexpr std::string_view kUnfinished = ".trellis-unfinished-";
constexpr std::size_t kDigits = 16;
/// File systems allow 255 bytes; the name of an unfinished file needs some of them.
constexpr std::size_t kMostPart = 255 - kUnfinished.size() - kDigits;

std::string why_not(std::string_view path) {
  if (path.front() == '/') return "is absolute";
  if (path.find('\\') != std::string_view::npos) return "has a backslash";
  if (path.find('\0') != std::string_view::npos) return "has a NUL character";
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part == "..") return "has a part '..'";
    if (part.empty() || part == ".") return "has an empty part or '.'";
    if (part.size() > kMostPart)
      return "has a part longer than " + std::to_string(kMostPart) + " bytes";
    begin = end + 1;
  }
  return "";
}

}  // namespace

void check_relative_path(const std::string& path, const std::string& where) {
  if (path.empty()) return;
  if (const std::string reason = why_not(path); !reason.empty()) {
    throw ConfigError(where + ": path '" + terminal_line(path) + "' " + reason +
                      "; expected a path below the folder, such as model/part.pt");
  }
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder.empty() || name.empty()) return folder + name;
  return folder + "/" + name;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string unfinished_name(const std::string& path) {
  static const std::uint64_t process = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32) ^ random() ^ static_cast<std::uint64_t>(getpid());
  }();
  static std::atomic<std::uint64_t> writers = 0;
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(process + 0x9E3779B97F4A7C15ULL * ++writers));
  return path + std::string(kUnfinished) + digits;
}

bool is_unfinished(std::string_view path) {
  if (path.size() < kUnfinished.size() + kDigits) return false;
  const std::string_view digits = path.substr(path.size() - kDigits);
  return path.substr(path.size() - kDigits - kUnfinished.size(), kUnfinished.size()) ==
             kUnfinished &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace trellis::checkpoint
