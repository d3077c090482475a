#include "analysis/import/setting_yaml.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "base/escape.h"

namespace trellis::analysis {
namespace {

using Comment = std::function<std::string(const std::string&)>;

struct Section {
  std::vector<std::string> order;
  std::map<std::string, std::string> values;
  std::map<std::string, std::unique_ptr<Section>> sections;
};

void put(Section& section, std::string_view key, const std::string& value) {
  const std::size_t dot = key.find('.');
  const std::string first(key.substr(0, dot));
  if (!section.values.contains(first) && !section.sections.contains(first))
    section.order.push_back(first);
  if (dot == std::string_view::npos) {
    section.values[first] = value;
    return;
  }
  auto& inner = section.sections[first];
  if (!inner) inner = std::make_unique<Section>();
  put(*inner, key.substr(dot + 1), value);
}

void write(const Section& section, const Comment& comment, const std::string& path,
           std::string& text) {
  const std::string indent(2 * static_cast<std::size_t>(std::ranges::count(path, '.')), ' ');
  for (const std::string& key : section.order) {
    if (const auto inner = section.sections.find(key); inner != section.sections.end()) {
      text += fmt::format("{}{}:\n", indent, key);
      write(*inner->second, comment, path + key + ".", text);
      continue;
    }
    const std::string said = comment ? comment(path + key) : "";
    text += fmt::format("{}{}: {}{}\n", indent, key, section.values.at(key),
                        said.empty() ? "" : "  # " + terminal_line(said));
  }
}

}  // namespace

std::string setting_yaml(const std::vector<Setting>& settings, const Comment& comment) {
  Section root;
  for (const Setting& setting : settings) put(root, setting.key, setting.value);
  std::string text;
  write(root, comment, "", text);
  return text;
}

}  // namespace trellis::analysis
