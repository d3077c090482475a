#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trellis {

/// One mistake of an input with its parts as fields, for tools. `text` is what people read: the
/// whole line.
struct Problem {
  std::string file;      ///< "command line" for an override; "" when none is named
  int line = 0;          ///< from 1; 0: none is named
  std::string key;       ///< dotted
  std::string expected;  ///< "" when the line does not say
  std::string got;
  std::string text;
  bool operator==(const Problem&) const = default;
};

/// The parts of a line of `Problems`: "file:line:key: text", "file:line:column: text" (no key) or
/// "command line:key: text", with "expected X, got Y" or "must be X, got Y" in its text. `file`:
/// the input's name, whose own colons are then no separators; "": the name ends at the first colon
/// in front of a number.
[[nodiscard]] Problem parse_problem(const std::string& line, const std::string& file = "");

/// A person reads no more at a time.
inline constexpr std::size_t kMostShownProblems = 50;

/// The first ones; then, when there are more, "and 19950 more, 20000 in all: correct these first".
[[nodiscard]] std::vector<std::string> shown_problems(const std::vector<std::string>& lines);

/// One record per line of a text, such as a ConfigError's. A line that begins with a space
/// continues the one before it.
[[nodiscard]] std::vector<Problem> parse_problems(const std::string& text,
                                                  const std::string& file = "");

}  // namespace trellis
