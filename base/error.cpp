#include "base/error.h"

#include "base/problem.h"

namespace trellis {

void Problems::throw_if_any() const {
  if (lines_.empty()) return;
  std::string text;
  for (const std::string& line : shown_problems(lines_)) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  throw ConfigError(text);
}

}  // namespace trellis
