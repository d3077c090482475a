#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "base/files/shared_files.h"
#include "sim/config/number_files.h"
#include "sim/config/overlay.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

namespace fs = std::filesystem;

fs::path config_directory() {
  std::error_code ignored;
  if (const char* chosen = std::getenv("TRELLIS_CONFIG_DIR");
      chosen != nullptr && *chosen != '\0') {
    if (!fs::is_directory(chosen, ignored))
      throw ConfigError(std::string("TRELLIS_CONFIG_DIR: ") + chosen + " is not a directory");
    return chosen;
  }
  if (fs::path place = shared_directory("configs", TRELLIS_SOURCE_CONFIG_DIR); !place.empty())
    return place;
  throw ConfigError(
      "hardware configurations not found: set TRELLIS_CONFIG_DIR to the folder with trn1.yaml, "
      "trn2.yaml, …");
}

fs::path calibration_directory() {
  std::error_code ignored;
  const fs::path configs = config_directory();
  for (const fs::path& place :
       {configs / "calibration", configs == fs::path(TRELLIS_SOURCE_CONFIG_DIR)
                                     ? configs.parent_path() / "config/calibration"
                                     : fs::path()}) {
    if (!place.empty() && fs::is_directory(place, ignored)) return place;
  }
  return {};
}

std::vector<fs::path> number_files() {
  std::vector<fs::path> files;
  for (const fs::path& folder : {config_directory(), calibration_directory()}) {
    if (folder.empty()) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".yaml") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace trellis::sim
