#include "analysis/import/shell_words.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "analysis/import/shell_expansion.h"

namespace trellis::analysis {
namespace {

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

constexpr std::array<std::string_view, 5> kOpens = {"if", "while", "until", "for", "select"};
constexpr std::array<std::string_view, 3> kCloses = {"fi", "done", "esac"};
/// After these a command begins.
constexpr std::array<std::string_view, 8> kBefore = {"then", "do", "else", "elif",
                                                     "{",    "}",  "!",    "time"};
constexpr std::array<std::string_view, 5> kDeclares = {"export", "local", "declare", "readonly",
                                                       "typeset"};
/// They give variables values that only bash knows.
constexpr std::array<std::string_view, 4> kChanges = {"unset", "read", "mapfile", "getopts"};

class Reader {
 public:
  Reader(const std::string& text, const std::string& file) : cursor_(text, file) {}

  std::vector<ShellCommand> read() {
    while (true) {
      cursor_.skip_blanks();
      if (cursor_.at_end()) break;
      step();
    }
    end_command();
    return std::move(commands_);
  }

 private:
  /// One operator, comment or word.
  void step() {
    switch (cursor_.peek()) {
      case '\n': return end_line();
      case '#': return cursor_.skip_line();
      case ';': return end_list(1);
      case '&':
      case '|': return connect();
      case '(': return open_bracket();
      case ')': return close_bracket();
      case '<':
      case '>': return redirect();
      default: return command_.empty() ? first_word() : next_word();
    }
  }

  void end_command() {
    if (!command_.empty()) commands_.push_back(std::move(command_));
    command_.clear();
    declares_ = changes_ = false;
  }

  void end_list(std::size_t characters) {
    end_command();
    chained_ = false;
    cursor_.skip(characters);
  }

  void end_line() {
    end_list(1);
    for (const std::string& end : here_documents_) skip_here_document(end);
    here_documents_.clear();
  }

  /// What follows && and || depends on what came before.
  void connect() {
    if (cursor_.starts("&>")) return cursor_.skip(1);
    const bool twice = cursor_.peek() == cursor_.peek(1);
    end_list(twice ? 2 : 1);
    chained_ = twice;
  }

  void open_bracket() {
    if (cursor_.starts("((") && command_.empty()) {
      cursor_.skip_brackets('(', ')');
      return;
    }
    command_.clear();  // the name of a function, or nothing: a subshell begins
    cursor_.skip();
  }

  /// Of a pattern of `case`, of a function's name or of a subshell.
  void close_bracket() {
    if (!conditions_.empty() && conditions_.back().is_case) command_.clear();
    end_list(1);
  }

  void redirect() {
    // "2>" : the number is no word of the command.
    if (!command_.empty() && is_descriptor_) command_.pop_back();
    is_descriptor_ = false;
    if (cursor_.starts("<(") || cursor_.starts(">(")) {
      cursor_.skip();
      const int line = cursor_.line();
      const std::string inner = cursor_.skip_brackets('(', ')');
      command_.push_back({inner, line, inner});
      return;
    }
    const bool here = cursor_.starts("<<") && !cursor_.starts("<<<");
    while (cursor_.peek() == '<' || cursor_.peek() == '>') cursor_.skip();
    if (cursor_.peek() == '&' || cursor_.peek() == '|' || (here && cursor_.peek() == '-'))
      cursor_.skip();
    cursor_.skip_blanks();
    const std::vector<ShellText> target = cursor_.word(false);
    if (!here || target.empty()) return;
    std::string end;
    for (const ShellGlyph& glyph : target.front()) end += glyph.c;
    here_documents_.push_back(end);
  }

  void skip_here_document(const std::string& end) {
    const int first_line = cursor_.line();
    while (!cursor_.at_end()) {
      while (cursor_.peek() == '\t') cursor_.skip();
      const bool last = cursor_.starts(end) &&
                        (cursor_.peek(end.size()) == '\n' || cursor_.peek(end.size()) == '\0');
      cursor_.skip_line();
      if (last) return;
      cursor_.skip();
    }
    cursor_.fail(first_line, "this here-document never ends: expected a line '" + end + "'");
  }

  void first_word() {
    if (assignment()) return;
    next_word();
    if (command_.size() != 1 || !command_.front().undetermined.empty()) return;
    const std::string word = command_.front().text;
    if (is_one_of(word, kOpens) || word == "case") {
      conditions_.push_back({cursor_.line(), word == "case"});
      command_.clear();
      if (word == "for" || word == "select") loop_variable();
      if (word == "case") pattern_word();
    } else if (is_one_of(word, kCloses)) {
      command_.clear();
      if (!conditions_.empty()) conditions_.pop_back();
    } else if (is_one_of(word, kBefore)) {
      command_.clear();
    } else if (word == "function") {
      command_.clear();
      cursor_.skip_blanks();
      (void)cursor_.word(false);
    }
    declares_ = is_one_of(word, kDeclares);
    changes_ = is_one_of(word, kChanges);
  }

  /// Its values are those of a loop, which does not run.
  void loop_variable() {
    cursor_.skip_blanks();
    for (const ShellText& text : cursor_.word(false)) {
      std::string name;
      for (const ShellGlyph& glyph : text) name += glyph.c;
      cursor_.forget(name);
    }
    while (!cursor_.at_end() && cursor_.peek() != '\n' && cursor_.peek() != ';') skip_any();
  }

  /// case WORD in
  void pattern_word() {
    for (int words = 0; words < 2 && !cursor_.at_end(); ++words) {
      cursor_.skip_blanks();
      if (cursor_.peek() == '\n') cursor_.skip();
      (void)cursor_.word(false);
    }
  }

  void skip_any() {
    cursor_.skip_blanks();
    if (cursor_.peek() == '(') {
      cursor_.skip_brackets('(', ')');
    } else if (cursor_.peek() != '\n' && cursor_.peek() != ';' && cursor_.word(false).empty()) {
      cursor_.skip();
    }
  }

  void next_word() {
    if (declares_ && assignment()) return;
    const int line = cursor_.line();
    is_descriptor_ = false;
    const std::vector<ShellText> texts = cursor_.word(true);
    for (const ShellText& text : texts) command_.push_back(word_of(text, line));
    if (texts.empty()) return;
    const std::string& last = command_.back().text;
    const bool number = last.find_first_not_of("0123456789") == std::string::npos;
    is_descriptor_ = number && (cursor_.peek() == '<' || cursor_.peek() == '>');
    if (changes_) cursor_.forget(last);
  }

  ShellWord word_of(const ShellText& text, int line) const {
    ShellWord word{"", text.empty() ? line : text.front().line};
    for (const ShellGlyph& glyph : text) {
      word.text += glyph.c;
      if (word.undetermined.empty()) word.undetermined = cursor_.reason(glyph.why);
    }
    return word;
  }

  /// NAME=…, NAME+=… and NAME=( … ) at the cursor.
  bool assignment() {
    std::string name;
    while (shell_name_length(name + cursor_.peek(name.size())) == name.size() + 1)
      name += cursor_.peek(name.size());
    if (name.empty()) return false;
    const bool appends = cursor_.peek(name.size()) == '+';
    const std::size_t equals = name.size() + (appends ? 1 : 0);
    if (cursor_.peek(equals) != '=') return false;
    const int line = cursor_.line();
    cursor_.skip(equals + 1);
    const bool is_list = cursor_.peek() == '(';
    std::vector<ShellText> elements = is_list ? list(line) : cursor_.word(false);
    if (elements.empty() && !is_list) elements.emplace_back();
    cursor_.assign(name, std::move(elements), is_list, appends, condition(line));
    return true;
  }

  std::vector<ShellText> list(int first_line) {
    std::vector<ShellText> elements;
    for (cursor_.skip();;) {
      cursor_.skip_blanks();
      if (cursor_.at_end()) cursor_.fail(first_line, "this list is never closed: expected ')'");
      const char c = cursor_.peek();
      if (c == ')') break;
      if (c == '#') {
        cursor_.skip_line();
      } else if (std::string_view("\n;&|<>(").find(c) != std::string_view::npos) {
        cursor_.skip();
      } else {
        for (ShellText& text : cursor_.word(true)) elements.push_back(std::move(text));
      }
    }
    cursor_.skip();
    return elements;
  }

  /// 0: the assignment in `line` is executed for certain.
  int condition(int line) {
    if (conditions_.empty() && !chained_) return 0;
    return cursor_.reason(
        fmt::format("the condition in line {}", chained_ ? line : conditions_.back().line));
  }

  struct Condition {
    int line;
    bool is_case;
  };

  ShellExpansion cursor_;
  std::vector<ShellCommand> commands_;
  ShellCommand command_;
  std::vector<Condition> conditions_;  ///< around the cursor, outermost first
  std::vector<std::string> here_documents_;
  bool chained_ = false, declares_ = false, changes_ = false, is_descriptor_ = false;
};

}  // namespace

std::vector<ShellCommand> read_shell_commands(const std::string& text, const std::string& file) {
  return Reader(text, file).read();
}

}  // namespace trellis::analysis
