#include "analysis/export/exported_config.h"
#include "analysis/import/schema_keys.h"
#include "analysis/import/setting_yaml.h"
#include "analysis/import/yaml_keys.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

ExportedConfig export_nxdt(const std::string& file, const std::vector<std::string>& overrides) {
  (void)trainer::load_run_config(file, overrides, "");
  ExportedConfig exported;
  std::vector<Setting> settings;
  for (const SourceKey& key : yaml_keys(file, overrides, is_schema_section)) {
    if (schema_key(key.key).group->origin == trainer::kOwnKey) {
      exported.left_out.push_back({key.key, key.value, key.where, "NxDT has no such key"});
    } else {
      settings.push_back({key.key, key.value});
    }
  }
  exported.text = setting_yaml(settings);
  return exported;
}

}  // namespace trellis::analysis
