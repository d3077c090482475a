#include "analysis/import/megatron_args.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/key_words.h"
#include "base/error.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

using Rows = std::map<std::string, const MegatronRow*, std::less<>>;

void add_rows(Rows& rows, std::span<const MegatronRow> table) {
  for (const MegatronRow& row : table)
    for_each_word(row.names, [&](std::string_view name) { rows.emplace(name, &row); });
}

const Rows& script_rows() {
  static const Rows rows = [] {
    Rows all;
    add_rows(all, megatron_mapped_rows());
    add_rows(all, megatron_ignored_rows());
    add_rows(all, megatron_refused_rows());
    return all;
  }();
  return rows;
}

const Rows& torchrun_rows() {
  static const Rows rows = [] {
    Rows all;
    add_rows(all, launcher_rows());
    return all;
  }();
  return rows;
}

bool is_argument(const ShellWord& word) {
  return word.text.size() > 2 && word.text.starts_with("--");
}

/// "…/pretrain_gpt.py" and the like.
bool is_script(const ShellWord& word) {
  if (!word.text.ends_with(".py")) return false;
  const std::string name = word.text.substr(word.text.rfind('/') + 1);
  return name.find("train") != std::string::npos || name.find("finetune") != std::string::npos;
}

bool only_prints(const ShellCommand& command) {
  constexpr std::array<std::string_view, 7> kTools = {"echo", "printf", "test", "[",
                                                      "[[",   "cat",    "ls"};
  return std::ranges::find(kTools, command.front().text) != kTools.end();
}

/// A command and where its script is; its size: there is none.
struct Command {
  ShellCommand words;
  std::size_t script = 0;
};

Command find_command(const ShellScript& script, const std::string& file) {
  std::optional<Command> found;
  ShellCommand bare;
  for (const ShellCommand& words : script.commands) {
    if (words.empty() || only_prints(words)) continue;
    const auto name = std::ranges::find_if(words, is_script);
    if (is_argument(words.front())) bare.insert(bare.end(), words.begin(), words.end());
    if (name == words.end()) continue;
    if (found)
      throw ConfigError(fmt::format(
          "{}:{}: a second command that trains, after that in line {}: expected one; remove the "
          "others",
          file, name->line, found->words[found->script].line));
    found = Command{words, static_cast<std::size_t>(name - words.begin())};
  }
  if (found) return *found;
  if (bare.empty()) {
    for (const ShellCommand& list : script.lists) bare.insert(bare.end(), list.begin(), list.end());
  }
  if (!bare.empty()) {
    bare.insert(bare.begin(), ShellWord{});  // in place of the script
    return {bare, 0};
  }
  throw ConfigError(fmt::format(
      "{}: no command of Megatron-LM: expected one that runs a script such as pretrain_gpt.py, "
      "lines of arguments such as --num-layers 32, or a variable that holds them",
      file));
}

class Parser {
 public:
  Parser(Command command, std::string file)
      : command_(std::move(command)), file_(std::move(file)) {}

  std::vector<MegatronArgument> parse() {
    for (at_ = 0; at_ < command_.words.size();) {
      const ShellWord& word = command_.words[at_];
      if (is_argument(word)) {
        argument(word);
      } else {
        stray(word);
      }
    }
    return std::move(arguments_);
  }

 private:
  [[nodiscard]] bool in_front() const { return at_ < command_.script; }

  void argument(const ShellWord& word) {
    const std::size_t equals = word.text.find('=');
    MegatronArgument argument;
    argument.launches = in_front();
    argument.source = {word.text.substr(0, equals), "", fmt::format("{}:{}", file_, word.line)};
    argument.name = argument.source.key.substr(2);
    std::ranges::replace(argument.name, '_', '-');
    argument.undetermined = word.undetermined;
    argument.assumed = word.assumed;
    argument.row = megatron_row(argument.name, argument.launches);
    ++at_;
    if (equals != std::string::npos) {
      argument.values = {word.text.substr(equals + 1)};
    } else {
      take_values(argument);
    }
    argument.source.value = shown(argument);
    const auto [place, is_first] =
        places_.try_emplace({argument.name, argument.launches}, arguments_.size());
    if (!is_first) arguments_[place->second].replaced_in = word.line;
    place->second = arguments_.size();
    arguments_.push_back(std::move(argument));
  }

  /// Takes the words up to the next argument as values, even where they are too many: the problem
  /// of the argument names the wrong ones. A word that the shell decides may be anything, so it is
  /// a value only where one is missing. An unknown argument of a launcher gets no values: the next
  /// word may be one, or the program.
  void take_values(MegatronArgument& argument) {
    using enum MegatronRow::Values;
    const auto values = argument.row != nullptr ? argument.row->values : kList;
    const std::size_t expected = values == kNone ? 0 : values == kOne ? 1 : command_.words.size();
    const bool exact = argument.launches;
    const std::size_t end = exact ? command_.script : command_.words.size();
    if (exact && argument.row == nullptr) return;
    for (; at_ < end; ++at_) {
      const ShellWord& word = command_.words[at_];
      const bool expects = argument.values.size() < expected;
      if (is_argument(word) || word.text == "--") break;
      if (!expects && (exact || !word.undetermined.empty())) break;
      argument.values.push_back(word.text);
      if (argument.undetermined.empty()) argument.undetermined = word.undetermined;
      if (argument.assumed.empty()) argument.assumed = word.assumed;
    }
    if (values == kOne && argument.values.empty())
      throw ConfigError(
          fmt::format("{}: {}: expected a value", argument.source.where, argument.source.key));
  }

  /// A word that is no argument and no value.
  void stray(const ShellWord& word) {
    const bool belongs = at_ <= command_.script || word.text == "--" || word.text.empty();
    ++at_;
    if (belongs) return;
    if (word.undetermined.empty())
      throw ConfigError(fmt::format("{}:{}: '{}' belongs to no argument: expected --NAME", file_,
                                    word.line, word.text));
    MegatronArgument argument{word.text, {word.text, "", fmt::format("{}:{}", file_, word.line)}};
    argument.undetermined = word.undetermined;
    // It may end in an argument, whose values are here.
    for (; at_ < command_.words.size() && !is_argument(command_.words[at_]); ++at_)
      argument.values.push_back(command_.words[at_].text);
    argument.source.value = argument.values.empty() ? "\"\"" : shown(argument);
    arguments_.push_back(std::move(argument));
  }

  static std::string shown(const MegatronArgument& argument) {
    if (argument.values.empty()) return "true";
    if (argument.values.size() == 1) return yaml_scalar(argument.values.front());
    std::string list;
    for (const std::string& value : argument.values)
      list += (list.empty() ? "" : ", ") + yaml_scalar(value);
    return "[" + list + "]";
  }

  Command command_;
  std::string file_;
  std::size_t at_ = 0;
  std::vector<MegatronArgument> arguments_;
  /// By name, and whether it launches: the place of the last one.
  std::map<std::pair<std::string, bool>, std::size_t> places_;
};

template <typename Number>
std::optional<Number> parsed(const std::string& text) {
  Number value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last) return std::nullopt;
  return value;
}

}  // namespace

MegatronArguments::MegatronArguments(std::vector<MegatronArgument> arguments)
    : arguments_(std::move(arguments)) {
  for (std::size_t i = 0; i < arguments_.size(); ++i) last_[arguments_[i].name] = i;
}

const MegatronArgument* MegatronArguments::find(std::string_view name) const {
  const auto found = last_.find(name);
  return found == last_.end() ? nullptr : &arguments_[found->second];
}

std::string MegatronArguments::text(std::string_view name) const {
  const MegatronArgument* argument = find(name);
  const bool known = argument != nullptr && argument->undetermined.empty() &&
                     !argument->values.empty() && !has_wrong_count(*argument);
  return known ? argument->values.front() : "";
}

std::optional<std::int64_t> MegatronArguments::integer(std::string_view name) const {
  return parsed<std::int64_t>(text(name));
}

std::optional<double> MegatronArguments::number(std::string_view name) const {
  const auto value = parsed<double>(text(name));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> MegatronArguments::integer(std::string_view name,
                                                       std::int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}

bool has_wrong_count(const MegatronArgument& argument) {
  using enum MegatronRow::Values;
  if (argument.row == nullptr || argument.row->values == kList) return false;
  return argument.values.size() != (argument.row->values == kOne ? 1U : 0U);
}

MegatronArguments megatron_arguments(const ShellScript& script, const std::string& file) {
  return MegatronArguments(Parser(find_command(script, file), file).parse());
}

const MegatronRow* megatron_row(std::string_view name, bool launches) {
  const Rows& rows = launches ? torchrun_rows() : script_rows();
  const auto found = rows.find(name);
  return found == rows.end() ? nullptr : found->second;
}

const std::vector<std::string>& megatron_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, row] : script_rows()) all.push_back(name);
    return all;
  }();
  return names;
}

std::string yaml_scalar(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
                     (text.front() != '-' || text.size() > 1) && !text.starts_with("--");
  return plain ? text : trainer::YamlWriter::quoted(text);
}

}  // namespace trellis::analysis
