#include "analysis/import/shell_expansion.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::analysis {
namespace {

/// Far beyond any command line (Linux passes 2 MiB at most), and reached fast by a script that
/// doubles a variable line by line.
constexpr std::size_t kMostCharacters = std::size_t{1} << 22;
constexpr int kMostNested = 32;  ///< defaults in defaults: ${A:-${B:-…}}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool ends_word(char c) {
  return is_blank(c) || c == ';' || c == '&' || c == '|' || c == '<' || c == '>' || c == '(' ||
         c == ')';
}
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// For a message: short and on one line.
std::string shown(std::string source) {
  std::ranges::replace(source, '\n', ' ');
  constexpr std::size_t kMost = 60;
  return source.size() > kMost ? source.substr(0, kMost) + "…" : source;
}

}  // namespace

std::size_t shell_name_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() &&
         (begins_name(text[length]) || (length > 0 && is_digit(text[length]))))
    ++length;
  return length;
}

void ShellFields::cut() {
  if (open_) done_.push_back(std::move(current_));
  current_.clear();
  open_ = false;
}

void ShellFields::add(const ShellText& text, bool splits) {
  for (const ShellGlyph& glyph : text) splits&& is_blank(glyph.c) ? cut() : add(glyph);
}

std::vector<ShellText> ShellFields::take() {
  cut();
  return std::exchange(done_, {});
}

ShellExpansion::ShellExpansion(std::string_view text, std::string file)
    : text_(text), file_(std::move(file)) {}

void ShellExpansion::fail(int line, const std::string& text) const {
  throw ConfigError(fmt::format("{}:{}: {}", file_, line, text));
}

char ShellExpansion::peek(std::size_t ahead) const {
  return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
}

bool ShellExpansion::starts(std::string_view text) const {
  return text_.substr(std::min(at_, text_.size())).starts_with(text);
}

void ShellExpansion::skip(std::size_t count) {
  for (; count > 0 && at_ < text_.size(); --count) line_ += text_[at_++] == '\n' ? 1 : 0;
}

void ShellExpansion::skip_blanks() {
  while (true) {
    if (peek() == ' ' || peek() == '\t' || peek() == '\r') {
      skip();
    } else if (starts("\\\n")) {
      skip(2);
    } else if (starts("\\\r\n")) {
      skip(3);
    } else {
      return;
    }
  }
}

void ShellExpansion::skip_line() {
  while (!at_end() && peek() != '\n') skip();
}

std::string ShellExpansion::skip_brackets(char open, char close) {
  const std::size_t begin = at_;
  const int first_line = line_;
  int depth = 0;
  for (char quote = 0; !at_end();) {
    const char c = peek();
    if (c == '\\' && quote != '\'') {
      skip(2);
      continue;
    }
    skip();
    if (quote != 0) {
      quote = c == quote ? '\0' : quote;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == open && (open != close || depth == 0)) {
      ++depth;
    } else if (c == close && --depth == 0) {
      return std::string(text_.substr(begin, at_ - begin));
    }
  }
  fail(first_line, fmt::format("'{}' is never closed: expected '{}'", open, close));
}

int ShellExpansion::reason(std::string text) {
  reasons_.push_back(std::move(text));
  return static_cast<int>(reasons_.size()) - 1;
}

void ShellExpansion::charge(std::size_t characters) {
  characters_ += characters;
  if (characters_ > kMostCharacters)
    fail(line_, fmt::format("the variables of this file expand to more than {} characters",
                            kMostCharacters));
}

std::vector<ShellText> ShellExpansion::word(bool splits) {
  ShellFields fields;
  pieces(fields, Until::kWordEnd, splits);
  return fields.take();
}

void ShellExpansion::pieces(ShellFields& fields, Until until, bool splits) {
  const bool quoted = until == Until::kQuote;
  while (!at_end()) {
    const char c = peek();
    if (until == Until::kWordEnd && ends_word(c)) return;
    if (quoted && c == '"') return;
    if (c == '$' && !quoted && (peek(1) == '\'' || peek(1) == '"')) {
      skip();  // a quote whose escapes or language bash would look at
    } else if (c == '\\') {
      backslash(fields, quoted);
    } else if (c == '\'' && !quoted) {
      single_quoted(fields);
    } else if (c == '"') {
      double_quoted(fields, splits);
    } else if (c == '$') {
      expand(fields, splits && !quoted);
    } else if (c == '`') {
      const int first_line = line_;
      unknown(fields, skip_brackets('`', '`'), first_line);
    } else {
      fields.add(ShellGlyph{c, line_, 0});
      skip();
    }
  }
}

void ShellExpansion::backslash(ShellFields& fields, bool quoted) {
  skip();
  if (peek() == '\n') return skip();
  if (starts("\r\n")) return skip(2);
  const bool escapes = !quoted || peek() == '$' || peek() == '`' || peek() == '"' || peek() == '\\';
  if (!escapes || at_end()) return fields.add(ShellGlyph{'\\', line_, 0});
  fields.add(ShellGlyph{peek(), line_, 0});
  skip();
}

void ShellExpansion::single_quoted(ShellFields& fields) {
  const int first_line = line_;
  fields.quote();
  for (skip(); peek() != '\''; skip()) {
    if (at_end()) fail(first_line, "this single quote is never closed");
    fields.add(ShellGlyph{peek(), line_, 0});
  }
  skip();
}

void ShellExpansion::double_quoted(ShellFields& fields, bool splits) {
  const int first_line = line_;
  fields.quote();
  skip();
  pieces(fields, Until::kQuote, splits);
  if (peek() != '"') fail(first_line, "this double quote is never closed");
  skip();
}

/// `source`: as it is written; it stays in the word, marked.
void ShellExpansion::unknown(ShellFields& fields, std::string source, int line) {
  const int why = reason(shown(source));
  charge(source.size());
  for (const char c : shown(source)) fields.add(ShellGlyph{c, line, why});
}

/// At a '$'.
void ShellExpansion::expand(ShellFields& fields, bool splits) {
  const int first_line = line_;
  skip();
  const char c = peek();
  if (c == '(') return unknown(fields, "$" + skip_brackets('(', ')'), first_line);
  if (c == '{') {
    const std::string braces = skip_brackets('{', '}');
    return parameter(fields, braces.substr(1, braces.size() - 2), splits);
  }
  const std::size_t length = shell_name_length(text_.substr(at_));
  if (length > 0) {
    const std::string name(text_.substr(at_, length));
    skip(length);
    return parameter(fields, name, splits);
  }
  constexpr std::string_view kSpecial = "@*#?$!-";
  if (is_digit(c) || (c != '\0' && kSpecial.find(c) != std::string_view::npos)) {
    skip();
    return unknown(fields, std::string("$") + c, first_line);
  }
  fields.add(ShellGlyph{'$', first_line, 0});
}

/// `inner`: NAME, NAME[@], NAME:-DEFAULT and what else braces hold.
void ShellExpansion::parameter(ShellFields& fields, const std::string& inner, bool splits) {
  std::size_t length = shell_name_length(inner);
  while (length < inner.size() && is_digit(inner[length])) ++length;  // ${1:-DEFAULT}
  std::string rest = inner.substr(length);
  const bool lists = rest.starts_with("[@]") || rest.starts_with("[*]");
  if (lists) rest.erase(0, 3);
  const auto found = variables_.find(inner.substr(0, length));
  const bool known = found != variables_.end();
  const bool colon = rest.starts_with(':');
  const char does = rest.size() > (colon ? 1U : 0U) ? rest[colon ? 1 : 0] : '\0';
  const bool plain = rest.empty();
  const bool has_default = does == '-' || does == '=';
  if (length == 0 || (!plain && !has_default && does != '?'))
    return unknown(fields, "${" + inner + "}", line_);
  const bool empty =
      known && std::ranges::all_of(found->second, [](const auto& text) { return text.empty(); });
  if (known && !(colon && empty && has_default)) return put(fields, found->second, lists, splits);
  if (!has_default) return unknown(fields, "$" + inner.substr(0, length), line_);
  default_of(fields, rest.substr(colon ? 2 : 1), splits);
}

/// The default is a text of the script inside the one that is read.
void ShellExpansion::default_of(ShellFields& fields, const std::string& text, bool splits) {
  if (++depth_ > kMostNested)
    fail(line_, fmt::format("defaults are nested more than {} deep", kMostNested));
  const auto outer = std::tuple(text_, at_, line_);
  text_ = text;
  at_ = 0;
  ShellFields inner;
  pieces(inner, Until::kEnd, false);
  std::tie(text_, at_, line_) = outer;
  --depth_;
  put(fields, inner.take(), false, splits);
}

void ShellExpansion::put(ShellFields& fields, const Variable& variable, bool lists, bool splits) {
  bool first = true;
  for (const ShellText& element : variable) {
    if (!first) fields.cut();
    if (!splits) fields.quote();
    charge(element.size() + 1);
    fields.add(element, splits);
    if (!lists) return;
    first = false;
  }
}

/// What the variable holds anyway stays known: X="$X --more" under a condition adds only "--more".
/// A condition that may empty it makes it doubtful.
void ShellExpansion::mark(std::vector<ShellText>& elements, const Variable& before, bool is_list,
                          int condition) {
  const auto same = [](const ShellGlyph& a, const ShellGlyph& b) {
    return a.c == b.c && (a.why == 0) == (b.why == 0);
  };
  const bool empties = std::ranges::all_of(elements, &ShellText::empty);
  if (empties) elements = before;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ShellText& element = elements[i];
    const std::size_t old = !empties && i < before.size() ? before[i].size() : 0;
    const bool keeps = old > 0 && old <= element.size() && (!is_list || old == element.size()) &&
                       std::ranges::equal(before[i], std::span(element).first(old), same);
    for (ShellGlyph& glyph : std::span(element).subspan(keeps ? old : 0))
      glyph.why = glyph.why != 0 ? glyph.why : condition;
  }
}

void ShellExpansion::assign(const std::string& name, std::vector<ShellText> elements, bool is_list,
                            bool appends, int condition) {
  const auto found = variables_.find(name);
  const Variable before =
      found == variables_.end() || appends ? Variable{} : std::move(found->second);
  if (condition != 0) mark(elements, before, is_list, condition);
  for (const ShellText& element : elements) charge(element.size() + 1);
  Variable& variable = variables_[name];
  if (!appends) {
    variable = std::move(elements);
  } else if (is_list || variable.empty()) {
    variable.insert(variable.end(), elements.begin(), elements.end());
  } else if (!elements.empty()) {
    variable[0].insert(variable[0].end(), elements[0].begin(), elements[0].end());
  }
}

}  // namespace trellis::analysis
