#include "base/problem.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

namespace trellis {

namespace {

constexpr std::string_view kCommandLine = "command line";

/// "12:…" → 12, and `rest` is what follows the colon; 0: the text does not begin with a number and
/// a colon.
int take_number(std::string_view& rest) {
  int number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || number < 1 || end == rest.data() + rest.size() || *end != ':')
    return 0;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  return number;
}

/// Takes "file:line:" or "command line:" from the front; false: neither is there.
bool take_place(std::string_view& rest, const std::string& file, Problem& problem) {
  const auto named = [&](std::string_view name) {
    return !name.empty() && rest.starts_with(name) && rest.substr(name.size()).starts_with(':');
  };
  for (const std::string_view name : {std::string_view(file), kCommandLine}) {
    if (!named(name)) continue;
    problem.file = name;
    rest.remove_prefix(name.size() + 1);
    problem.line = take_number(rest);
    return true;
  }
  for (std::size_t colon = rest.find(':'); colon != std::string_view::npos && colon > 0;
       colon = rest.find(':', colon + 1)) {
    std::string_view tail = rest.substr(colon + 1);
    problem.line = take_number(tail);
    if (problem.line == 0) continue;
    problem.file = rest.substr(0, colon);
    rest = tail;
    return true;
  }
  return false;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The end of a value in a sentence: what follows is advice, or another clause.
std::size_t end_of_value(std::string_view text) {
  return std::min(
      {text.find("; "), text.find(": "), text.find(" ("), text.find('\n'), text.size()});
}

void read_expectation(std::string_view text, Problem& problem) {
  for (const std::string_view word : {"expected ", "must be "}) {
    const std::size_t at = text.find(word);
    if (at == std::string_view::npos) continue;
    const std::string_view tail = text.substr(at + word.size());
    problem.expected = tail.substr(
        0, std::min({tail.find(", got "), tail.find("; "), tail.find('\n'), tail.size()}));
    break;
  }
  for (const std::string_view word : {", got ", "; got ", "(got "}) {
    const std::size_t at = text.find(word);
    if (at == std::string_view::npos) continue;
    const std::string_view tail = text.substr(at + word.size());
    problem.got = tail.substr(
        0, word.front() == '(' ? std::min(tail.find(')'), tail.size()) : end_of_value(tail));
    return;
  }
}

}  // namespace

Problem parse_problem(const std::string& line, const std::string& file) {
  Problem problem;
  problem.text = line;
  std::string_view rest = line;
  if (take_place(rest, file, problem)) {
    const std::size_t end = rest.find(": ");
    if (end != std::string_view::npos && rest.substr(0, end).find(' ') == std::string_view::npos) {
      if (!is_number(rest.substr(0, end))) problem.key = rest.substr(0, end);
      rest.remove_prefix(end + 2);
    }
  }
  read_expectation(rest, problem);
  return problem;
}

std::vector<std::string> shown_problems(const std::vector<std::string>& lines) {
  if (lines.size() <= kMostShownProblems) return lines;
  std::vector<std::string> shown(lines.begin(), lines.begin() + kMostShownProblems);
  shown.push_back("and " + std::to_string(lines.size() - kMostShownProblems) + " more, " +
                  std::to_string(lines.size()) + " in all: correct these first");
  return shown;
}

std::vector<Problem> parse_problems(const std::string& text, const std::string& file) {
  std::vector<Problem> problems;
  std::istringstream stream(text);
  std::string whole;
  for (std::string line; std::getline(stream, line);) {
    if (!whole.empty() && !line.starts_with(' ')) {
      problems.push_back(parse_problem(whole, file));
      whole.clear();
    }
    whole += (whole.empty() ? "" : "\n") + line;
  }
  if (!whole.empty()) problems.push_back(parse_problem(whole, file));
  return problems;
}

}  // namespace trellis
