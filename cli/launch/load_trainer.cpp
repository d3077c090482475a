#include "cli/launch/load_trainer.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/shared_files.h"

namespace trellis::cli {

void* library_symbol(const std::string& file, const std::string& name) {
  const std::filesystem::path library = installed_library(file);
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    throw ConfigError("cannot load a part of the program: " + std::string(dlerror()) +
                      "; expected " + library.string() +
                      ": build it with `scripts/quickstart` or `cmake --build build/release`");
  }
  void* symbol = dlsym(handle, name.c_str());
  if (symbol == nullptr)
    throw ConfigError(library.string() + " exports no " + name +
                      ": it is of another version; rebuild it");
  return symbol;
}

const trainer::TrainerLibrary& trainer_library() {
  return *reinterpret_cast<trellis_trainer_library_fn>(
      library_symbol("libtrellis_trainer.so", "trellis_trainer_library"))();
}

}  // namespace trellis::cli
