#include <dlfcn.h>

#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "sim/config/overlay.h"
#include "sim/config/system_config.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

/// <directory of the file>/../share/trellis/configs, or "" when there is none.
fs::path shared_beside(const fs::path& file) {
  std::error_code ignored;
  fs::path place = fs::weakly_canonical(file, ignored).parent_path().parent_path() / "share/trellis/configs";
  return fs::is_directory(place, ignored) ? place : fs::path();
}

/// The library or program that holds this code.
fs::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

}  // namespace

fs::path config_directory() {
  std::error_code ignored;
  if (const char* chosen = std::getenv("TRELLIS_CONFIG_DIR"); chosen != nullptr && *chosen != '\0') {
    if (!fs::is_directory(chosen, ignored)) throw ConfigError(std::string("TRELLIS_CONFIG_DIR: ") + chosen + " is not a directory");
    return chosen;
  }
  for (const fs::path& file : {own_file(), fs::path("/proc/self/exe")}) {
    if (file.empty()) continue;
    if (fs::path place = shared_beside(file); !place.empty()) return place;
  }
  if (fs::is_directory(TRELLIS_SOURCE_CONFIG_DIR, ignored)) return TRELLIS_SOURCE_CONFIG_DIR;
  throw ConfigError("hardware configurations not found: set TRELLIS_CONFIG_DIR to the folder with trn1.yaml, trn2.yaml, …");
}

fs::path calibration_directory() {
  std::error_code ignored;
  const fs::path configs = config_directory();
  for (const fs::path& place : {configs / "calibration", configs == fs::path(TRELLIS_SOURCE_CONFIG_DIR) ? configs.parent_path() / "config/calibration" : fs::path()}) {
    if (!place.empty() && fs::is_directory(place, ignored)) return place;
  }
  return {};
}

}  // namespace trellis::sim
