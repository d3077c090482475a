#include "cli/options/suggestion.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "base/nearest.h"

namespace trellis::cli {
namespace {

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_fnames())
      names.push_back("--" + name.substr(0, name.find('{')));
  }
  return names;
}

/// The nearest known name of a word that is none; "" when it is one, or none is near.
std::string correction(const std::string& word, const std::vector<std::string>& known) {
  return std::ranges::find(known, word) != known.end() ? "" : nearest_name(word, known);
}

}  // namespace

std::string suggestion(const CLI::App& app, const std::vector<std::string>& command_line) {
  const CLI::App* verb = &app;
  for (std::size_t i = 1; i < command_line.size(); ++i) {
    const std::string word = command_line[i].substr(0, command_line[i].find('='));
    const std::vector<std::string> verbs = verbs_of(*verb);
    const bool option = word.starts_with("--");
    if (!option && std::ranges::find(verbs, word) != verbs.end()) {
      verb = verb->get_subcommand(word);
      continue;
    }
    const std::string near = correction(word, option ? options_of(*verb) : verbs);
    if (!near.empty()) return "Did you mean `" + near + "`?";
    if (!option && !verbs.empty()) return "";
  }
  return "";
}

}  // namespace trellis::cli
