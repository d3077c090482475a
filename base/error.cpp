#include "base/error.h"

#include "base/address.h"  // pair: an error hides keys of addresses; a wrong address is one
#include "base/escape.h"
#include "base/problem.h"

namespace trellis {

Error::Error(ExitCode code, const std::string& text)
    : std::runtime_error(terminal_lines(without_keys(text))), code_(code) {}

void Problems::add(const std::string& where, const std::string& text) {
  lines_.push_back(terminal_line(without_keys(where + ": " + text)));
}

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
