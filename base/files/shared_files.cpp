#include "base/files/shared_files.h"

#include <dlfcn.h>

#include <system_error>

namespace trellis {
namespace {

namespace fs = std::filesystem;

/// The library or program that holds this code.
fs::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr)
    return {};
  return info.dli_fname;
}

}  // namespace

fs::path shared_directory(const std::string& name, const fs::path& source) {
  std::error_code ignored;
  for (const fs::path& file : {own_file(), fs::path("/proc/self/exe")}) {
    if (file.empty()) continue;
    fs::path place =
        fs::weakly_canonical(file, ignored).parent_path().parent_path() / "share/trellis" / name;
    if (fs::is_directory(place, ignored)) return place;
  }
  return fs::is_directory(source, ignored) ? source : fs::path();
}

fs::path installed_library(const std::string& file) {
  std::error_code ignored;
  fs::path place;
  for (const fs::path& asking : {own_file(), fs::path("/proc/self/exe")}) {
    if (asking.empty()) continue;
    const fs::path folder = fs::weakly_canonical(asking, ignored).parent_path();
    for (const fs::path& candidate : {folder / file, folder.parent_path() / "lib" / file}) {
      place = candidate;
      if (fs::exists(place, ignored)) return place;
    }
  }
  return place;
}

}  // namespace trellis
