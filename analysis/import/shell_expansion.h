#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::analysis {

/// A character, where it is written, and why it is not known (0: it is known; else a reason).
struct ShellGlyph {
  char c = 0;
  int line = 0;
  int why = 0;
};
using ShellText = std::vector<ShellGlyph>;

/// A word while it is read: unquoted expansions cut it into several.
class ShellFields {
 public:
  void add(const ShellGlyph& glyph) { current_.push_back(glyph), open_ = true; }
  void add(const ShellText& text, bool splits);
  /// A quote begins here: the word exists even when it stays empty.
  void quote() { open_ = true; }
  void cut();
  /// All of them; one text when nothing was cut.
  [[nodiscard]] std::vector<ShellText> take();

 private:
  std::vector<ShellText> done_;
  ShellText current_;
  bool open_ = false;
};

/// Reads words of a script at a cursor and keeps its variables.
class ShellExpansion {
 public:
  ShellExpansion(std::string_view text, std::string file);

  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const;
  [[nodiscard]] bool starts(std::string_view text) const;
  [[nodiscard]] int line() const { return line_; }
  void skip(std::size_t count = 1);  ///< counts the lines
  void skip_blanks();                ///< and line continuations
  void skip_line();                  ///< up to its end
  /// From an opening bracket past the one that closes it; quotes are respected.
  std::string skip_brackets(char open, char close);

  /// The word at the cursor, `splits`: cut where unquoted expansions have blanks.
  [[nodiscard]] std::vector<ShellText> word(bool splits);
  /// `name` gets `elements`, after those it has (`appends`); `condition`: why it may not; 0: it
  /// does.
  void assign(const std::string& name, std::vector<ShellText> elements, bool is_list, bool appends,
              int condition);
  void forget(const std::string& name) { variables_.erase(name); }
  [[nodiscard]] int reason(std::string text);
  [[nodiscard]] const std::string& reason(int why) const {
    return reasons_[static_cast<std::size_t>(why)];
  }
  [[noreturn]] void fail(int line, const std::string& text) const;

 private:
  enum class Until { kWordEnd, kQuote, kEnd };
  using Variable = std::vector<ShellText>;

  void pieces(ShellFields& fields, Until until, bool splits);
  void single_quoted(ShellFields& fields);
  void double_quoted(ShellFields& fields, bool splits);
  void backslash(ShellFields& fields, bool quoted);
  void expand(ShellFields& fields, bool splits);
  void parameter(ShellFields& fields, const std::string& inner, bool splits);
  void default_of(ShellFields& fields, const std::string& text, bool splits);
  void unknown(ShellFields& fields, std::string source, int line);
  void put(ShellFields& fields, const Variable& variable, bool lists, bool splits);
  static void mark(std::vector<ShellText>& elements, const Variable& before, bool is_list,
                   int condition);
  void charge(std::size_t characters);

  std::string_view text_;
  std::string file_;
  std::size_t at_ = 0;
  int line_ = 1, depth_ = 0;
  std::size_t characters_ = 0;  ///< that expansions have made
  std::map<std::string, Variable> variables_;
  std::vector<std::string> reasons_ = {""};
};

/// "[A-Za-z_][A-Za-z0-9_]*" at the beginning of `text`: its length.
[[nodiscard]] std::size_t shell_name_length(std::string_view text);

}  // namespace trellis::analysis
