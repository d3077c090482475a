#include "analysis/import/source_text.h"

#include <cstdint>

#include "base/files/input_file.h"

namespace trellis::analysis {
namespace {

/// Above it a wrong file was named.
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

}  // namespace

std::string read_source_text(const std::string& file) {
  std::string text = read_input_file(file, kMostBytes);
  require_utf8(text, file);
  return text;
}

}  // namespace trellis::analysis
