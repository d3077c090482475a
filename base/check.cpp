#include "base/check.h"

#include <string_view>

#include "base/error.h"

namespace trellis {
namespace {

/// "base/yaml/yaml.cpp" of an absolute path: the build directory of a machine is no information for
/// the reader.
std::string_view short_path(std::string_view path) {
  const std::size_t last = path.rfind('/');
  if (last == std::string_view::npos || last == 0) return path;
  const std::size_t before = path.rfind('/', last - 1);
  return before == std::string_view::npos ? path : path.substr(before + 1);
}

}  // namespace

void check_failed(const char* file, int line, const char* condition, const std::string& text) {
  throw Error(ExitCode::kInternal, std::string(short_path(file)) + ":" + std::to_string(line) +
                                       ": internal error: " + text + " (check failed: " +
                                       condition + "); this is a bug in Trellis, please report it");
}

}  // namespace trellis
