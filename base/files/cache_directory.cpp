#include "base/files/cache_directory.h"

#include <cstdlib>
#include <string>

namespace trellis {

std::optional<std::filesystem::path> cache_directory() {
  using std::filesystem::path;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string ours = variable("TRELLIS_CACHE"); !ours.empty())
    return ours == "off" ? std::nullopt : std::optional<path>(ours);
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty())
    return path(caches) / "trellis";
  if (const std::string home = variable("HOME"); !home.empty())
    return path(home) / ".cache" / "trellis";
  return std::nullopt;
}

}  // namespace trellis
