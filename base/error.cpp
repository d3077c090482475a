#include "base/error.h"

namespace trellis {

void Problems::throw_if_any() const {
  if (lines_.empty()) return;
  std::string text;
  for (const std::string& line : lines_) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  throw ConfigError(text);
}

}  // namespace trellis
