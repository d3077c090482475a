#include "analysis/import/schema_keys.h"

#include <algorithm>
#include <vector>

#include "base/nearest.h"

namespace trellis::analysis {
namespace {

using trainer::KeyUse;
using trainer::KnownKey;

std::string unknown_key(const std::string& section, const std::string& key,
                        const std::vector<KnownKey>& known) {
  std::vector<std::string> names;
  for (const KnownKey& each : known) names.push_back(each.key);
  const std::string nearest = nearest_name(key, names);
  const std::string place = section.empty() ? "the top level" : "section `" + section + "`";
  return place + " has no key `" + key + "`" +
         (nearest.empty() ? "" : "; did you mean `" + nearest + "`?");
}

}  // namespace

SchemaKey schema_key(const std::string& key) {
  std::string section, rest = key;
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string first = rest.substr(0, dot);
    const std::vector<KnownKey> known = trainer::known_keys_of(section);
    const auto found = std::ranges::find(known, first, &KnownKey::key);
    if (found == known.end()) return {nullptr, unknown_key(section, first, known)};
    if (dot == std::string::npos || found->group->use != KeyUse::kSection)
      return {found->group, ""};
    section += (section.empty() ? "" : ".") + first;
    rest.erase(0, dot + 1);
  }
}

bool is_schema_section(const std::string& key) {
  const SchemaKey known = schema_key(key);
  return known.group != nullptr && known.group->use == KeyUse::kSection;
}

}  // namespace trellis::analysis
