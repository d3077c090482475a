#include "analysis/import/shell_words.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/import/read_shell.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/data/chat/template_child.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using trainer::TemplateChild;

constexpr const char* kAdvice =
    "run scripts/setup, or pip install tree-sitter tree-sitter-bash (TRELLIS_PYTHON names another "
    "Python); or write the arguments into a text file, --num-layers 32 and so on, and import that";

/// Reads a text word by word up to the first character that means something to a shell.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : text_(text) {}

  bool read(std::vector<ShellCommand>& commands) {
    bool plain = true;
    while (plain && at_ < text_.size()) plain = step();
    end_command();
    for (const ShellCommand& command : commands_) plain = plain && is_plain(command);
    if (plain) commands = std::move(commands_);
    return plain;
  }

 private:
  [[nodiscard]] bool starts(std::string_view text) const {
    return text_.substr(at_).starts_with(text);
  }

  bool step() {
    if (starts("\\\n") || starts("\\\r\n")) {
      at_ = text_.find('\n', at_) + 1;
      ++line_;
    } else if (starts("\n")) {
      end_command();
      ++at_, ++line_;
    } else if (starts(" ") || starts("\t") || starts("\r\n")) {
      ++at_;
    } else if (starts("#")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      return word();
    }
    return true;
  }

  bool word() {
    constexpr std::string_view kMeansSomething = "$`;&|<>(){}*?[]~!\\\r";
    command_.push_back({"", line_});
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ' ' || c == '\t' || c == '\n' || starts("\r\n") || starts("\\\n") ||
          starts("\\\r\n"))
        return true;
      if (c == '\'' || c == '"') {
        if (!quoted(c)) return false;
      } else if (c == '\\' && at_ + 1 < text_.size()) {
        command_.back().text += text_[at_ + 1];
        at_ += 2;
      } else if (kMeansSomething.find(c) != std::string_view::npos) {
        return false;
      } else {
        command_.back().text += c;
        ++at_;
      }
    }
    return true;
  }

  bool quoted(char quote) {
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return false;
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    if (quote == '"' && inside.find_first_of("$`\\") != std::string_view::npos) return false;
    command_.back().text += inside;
    line_ += static_cast<int>(std::ranges::count(inside, '\n'));
    at_ = end + 1;
    return true;
  }

  void end_command() {
    if (!command_.empty()) commands_.push_back(std::move(command_));
    command_.clear();
  }

  /// True if a command means the same without a shell: it starts a program or sets variables for
  /// other programs, and no word is itself a script.
  static bool is_plain(const ShellCommand& command) {
    constexpr std::array<std::string_view, 3> kPrograms = {"torchrun", "python", "python3"};
    const std::string& first = command.front().text;
    const bool starts = first.starts_with("--") || first.ends_with(".py") ||
                        std::ranges::find(kPrograms, first) != kPrograms.end();
    const bool packed = std::ranges::any_of(command, [](const ShellWord& word) {
      return word.text.find(".py") != std::string::npos &&
             word.text.find_first_of(" \t\n") != std::string::npos;
    });
    return (starts || first == "export") && !packed;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  ShellCommand command_;
  std::vector<ShellCommand> commands_;
};

std::vector<ShellCommand> commands_of(const json& answer) {
  std::vector<ShellCommand> commands;
  for (const json& words : answer) {
    ShellCommand& command = commands.emplace_back();
    for (const json& word : words) command.push_back({word[0], word[1], word[2], word[3]});
  }
  return commands;
}

/// The parser's answer. Throws ConfigError when there is none.
json ask(TemplateChild& child, const std::string& text, const std::string& file) {
  constexpr std::chrono::seconds kLimit{60};
  std::string answer;
  const auto end = child.ask(json{{"text", text}}.dump() + "\n", kLimit, answer);
  if (end == TemplateChild::End::kTooLate)
    throw ConfigError(
        fmt::format("{}: this script was not read within {} s: write its arguments into a text "
                    "file, --num-layers 32 and so on, and import that",
                    file, kLimit.count()));
  try {
    if (end == TemplateChild::End::kAnswered) return json::parse(answer);
  } catch (const json::exception&) {
    answer.clear();  // of another program than Python
  }
  throw ConfigError(fmt::format("{}: this is a script of a shell, and {} did not read it: {}", file,
                                trainer::find_python(), kAdvice));
}

}  // namespace

bool read_plain_words(const std::string& text, std::vector<ShellCommand>& commands) {
  return PlainReader(text).read(commands);
}

ShellReader::ShellReader() = default;
ShellReader::~ShellReader() = default;

ShellScript ShellReader::read(const std::string& text, const std::string& file) {
  ShellScript script;
  if (read_plain_words(text, script.commands)) return script;
  if (!child_) child_ = std::make_unique<TemplateChild>(kReadShell);
  json answer;
  try {
    answer = ask(*child_, text, file);
  } catch (...) {
    child_.reset();  // it is no more
    throw;
  }
  if (answer.contains("commands"))
    return {commands_of(answer["commands"]), commands_of(answer["lists"])};
  const std::string why = terminal_line(answer.value("error", "no answer"));
  const int line = answer.value("line", 0);
  if (line == 0)
    throw ConfigError(
        fmt::format("{}: this is a script of a shell, and {}: {}", file, why, kAdvice));
  throw ConfigError(fmt::format("{}:{}: {}; correct it, or write the arguments into a text file",
                                file, line, why));
}

}  // namespace trellis::analysis
