#include "cli/verbs/describe_keys.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "trainer/config/load/key_docs.h"

namespace trellis::cli {
namespace {

using trainer::KeyDoc;
using trainer::KeyUse;

constexpr const char* kTopLevel = "top";

std::string name_of_section(const std::string& path) { return path.empty() ? kTopLevel : path; }

std::vector<std::string> section_names(const std::vector<KeyDoc>& docs) {
  std::vector<std::string> names;
  for (const KeyDoc& doc : docs) {
    std::string name = name_of_section(doc.section);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<KeyDoc> keys_of(const std::string& section) {
  std::vector<KeyDoc> docs = trainer::document_keys();
  if (section.empty()) return docs;
  const std::vector<std::string> names = section_names(docs);
  if (std::ranges::find(names, section) == names.end()) {
    const std::string nearest = nearest_name(section, names);
    throw ConfigError(fmt::format("unknown section `{}`{}; expected {}", section,
                                  nearest.empty() ? "" : ", did you mean `" + nearest + "`?",
                                  fmt::join(names, ", ")));
  }
  std::erase_if(docs, [&](const KeyDoc& doc) { return name_of_section(doc.section) != section; });
  return docs;
}

nlohmann::json as_json(const KeyDoc& doc) {
  nlohmann::json fields = {{"section", doc.section},
                           {"key", doc.key},
                           {"use", trainer::name_of(doc.use)},
                           {"origin", doc.origin}};
  if (doc.use == KeyUse::kSupported) {
    fields["type"] = doc.type;
    fields["default"] = doc.default_value;
  }
  if (!doc.neutral.empty()) fields["accepted"] = doc.neutral;
  if (!doc.why.empty()) fields["why"] = doc.why;
  return fields;
}

std::string line_of(const KeyDoc& doc) {
  const std::string own = doc.origin == trainer::kOwnKey ? "  [key of Trellis]" : "";
  if (doc.use == KeyUse::kSection) return fmt::format("  {}: a section{}\n", doc.key, own);
  if (doc.use == KeyUse::kSupported)
    return fmt::format("  {}: {}; default {}{}\n", doc.key, doc.type, doc.default_value, own);
  const std::string accepted = doc.neutral.empty() ? "" : fmt::format(", accepted {}", doc.neutral);
  return fmt::format("  {}: {}{}: {}{}\n", doc.key, trainer::name_of(doc.use), accepted, doc.why,
                     own);
}

}  // namespace

std::string describe_keys(const std::string& section, bool json_output) {
  const std::vector<KeyDoc> docs = keys_of(section);
  if (json_output) {
    nlohmann::json document = {{"schema", "trellis.keys/1"}, {"keys", nlohmann::json::array()}};
    for (const KeyDoc& doc : docs) document["keys"].push_back(as_json(doc));
    return document.dump(1) + "\n";
  }
  std::string text;
  const KeyDoc* before = nullptr;
  for (const KeyDoc& doc : docs) {
    if (before == nullptr || before->section != doc.section)
      text += (text.empty() ? "" : "\n") + name_of_section(doc.section) + "\n";
    text += line_of(doc);
    before = &doc;
  }
  return text;
}

}  // namespace trellis::cli
