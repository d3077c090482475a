#include <utility>

#include "analysis/import/schema_keys.h"
#include "analysis/import/sources.h"
#include "analysis/import/yaml_keys.h"

namespace trellis::analysis {
ImportedConfig import_nxdt(const std::string& file, const std::vector<std::string>& overrides) {
  ComposedKeys all = composed_yaml_keys(file, overrides, is_schema_section);
  ImportedConfig imported{.from = "nxdt", .keys = std::move(all.defaults)};
  for (SourceKey& key : all.keys) {
    const Setting setting{key.key, key.value};
    ImportedKey result = classify(std::move(key), setting);
    // The file still runs with NxDT: what has no effect here may have one there.
    if (result.status == ImportStatus::kIgnored || result.status == ImportStatus::kDefault)
      result.settings.push_back(setting);
    imported.keys.push_back(std::move(result));
  }
  return imported;
}

}  // namespace trellis::analysis
