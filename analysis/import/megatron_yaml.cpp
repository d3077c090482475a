#include "analysis/import/megatron_yaml.h"

#include <sstream>

#include "base/error.h"
#include "base/escape.h"
#include "base/problem.h"
#include "base/yaml/yaml.h"

namespace trellis::analysis {
namespace {

constexpr std::string_view kArguments = "MODEL_ARGS";

/// "${DATA_PATH}" is the shell's that runs the test, and no reference of YAML.
std::string without_references(std::string text) {
  for (std::size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at)) {
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) break;
    text.erase(end, 1);
    text.erase(at + 1, 1);
  }
  return text;
}

/// A scalar's text is cut into words, as the shell cuts it; true: the argument is a flag.
ShellCommand words_of(const YamlMap& arguments, const std::string& name) {
  const int line = parse_problem(arguments.where(name) + ": ").line;
  ShellCommand words = {{name, line}};
  const std::string value = arguments.raw(name);
  if (value.empty() && arguments.flow_text(name) != "~" && arguments.flow_text(name) != "\"\"")
    arguments.problem(name, "expected one value, got " + arguments.flow_text(name));
  if (value == "true" || value == "True") return words;
  std::istringstream texts(value);
  for (std::string text; texts >> text;) {
    ShellWord word{text, line};
    if (text.find('$') != std::string::npos) word.undetermined = text;
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

std::optional<MegatronYaml> read_megatron_yaml(const std::string& text, const std::string& file) {
  if (("\n" + text).find("\n" + std::string(kArguments) + ":") == std::string::npos)
    return std::nullopt;
  const std::string yaml = without_references(text);
  const YamlDocument document = YamlDocument::parse(yaml, file);
  const YamlMap root = document.root();
  const YamlMap arguments = root.map(std::string(kArguments));
  MegatronYaml result;
  ShellCommand& command = result.script.commands.emplace_back();
  for (const std::string& name : arguments.keys()) {
    const ShellCommand words = words_of(arguments, name);
    command.insert(command.end(), words.begin(), words.end());
  }
  document.problems().throw_if_any();
  for (const std::string& key : root.keys()) {
    if (key == kArguments) continue;
    const int line = parse_problem(root.where(key) + ": ").line;
    const std::string value = root.raw(key).empty() ? "{…}" : terminal_line(root.raw(key));
    result.others.push_back(
        ignored({terminal_line(key), value, file + ":" + std::to_string(line)},
                "it is about how Megatron-LM's test starts and what it checks"));
  }
  return result;
}

}  // namespace trellis::analysis
