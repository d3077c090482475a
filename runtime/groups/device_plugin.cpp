#include "runtime/groups/device_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/util/StringUtil.h>
#include <torch/version.h>

#include "base/error.h"
#include "base/files/shared_files.h"

namespace trellis::runtime {
namespace {

constexpr const char* kSymbol = "trellis_device_plugin";
constexpr const char* kLibrary = "libtrellis_neuron.so";
constexpr const char* kVariable = "TRELLIS_DEVICE_PLUGIN";

[[noreturn]] void reject(const std::string& path, const std::string& what) {
  throw ConfigError(c10::str("device plugin ", path, ": ", what));
}

std::string text_or(const char* text, const char* otherwise) {
  return text == nullptr ? otherwise : text;
}

/// "2.13.0+cpu" → "2.13.0": builds of one version share their ABI.
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

void* open_library(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    reject(path, c10::str("the file does not exist: build the target that makes ",
                          std::filesystem::path(path).filename().string(),
                          ", or name the library of another provider (", kVariable,
                          ", --device-plugin)"));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reject(path, c10::str("the library does not load: ", text_or(dlerror(), "no reason given"),
                          ": build it against LibTorch ", TORCH_VERSION,
                          " and check that the libraries it needs are found"));
  }
  return library;
}

void check_built_for_us(const std::string& path, const trellis_device_plugin_t& api) {
  if (api.abi_version != TRELLIS_PLUGIN_ABI_VERSION) {
    reject(path,
           c10::str("plugin ABI mismatch: expected version ", TRELLIS_PLUGIN_ABI_VERSION, ", got ",
                    api.abi_version, ": rebuild the plugin with this program's device/plugin.h"));
  }
  if (api.struct_size < sizeof(trellis_device_plugin_t)) {
    reject(path, c10::str("plugin record too small: expected ", sizeof(trellis_device_plugin_t),
                          " bytes, got ", api.struct_size,
                          ": rebuild the plugin with this program's device/plugin.h"));
  }
  const std::string version = text_or(api.torch_version, "none");
  if (release_of(version) != release_of(TORCH_VERSION)) {
    reject(path, c10::str("LibTorch version mismatch: expected ", TORCH_VERSION, ", got ", version,
                          ": rebuild the plugin against the LibTorch of this program"));
  }
  for (const auto& [present, member] : {std::pair(api.last_error != nullptr, "last_error"),
                                        std::pair(api.configure != nullptr, "configure"),
                                        std::pair(api.bind_rank != nullptr, "bind_rank")}) {
    if (!present)
      reject(path, c10::str("required member ", member, " is NULL: the plugin must provide it"));
  }
}

/// A plugin of one device registers it with LibTorch when it is loaded.
void check_registered(const std::string& path, const trellis_device_plugin_t& api) {
  if (api.device_type == nullptr) return;
  const std::string type = api.device_type;
  const std::string registered = c10::get_privateuse1_backend();
  if (type != registered) {
    reject(path, c10::str("device type mismatch: the plugin serves \"", type,
                          "\", but the device registered with LibTorch is \"", registered,
                          "\": a plugin registers its device when it is loaded, and a process "
                          "holds one provider only"));
  }
}

const trellis_device_plugin_t& open_plugin(const std::string& path) {
  void* library = open_library(path);  // never closed: LibTorch keeps pointers into it
  const auto entry = reinterpret_cast<trellis_device_plugin_fn>(dlsym(library, kSymbol));
  if (entry == nullptr) {
    reject(path, c10::str("the library is no device plugin: expected an exported function ",
                          kSymbol, ", got none: give the path of a plugin"));
  }
  const trellis_device_plugin_t* api = entry(TRELLIS_PLUGIN_ABI_VERSION, TORCH_VERSION);
  if (api == nullptr) {
    reject(path, c10::str("the plugin cannot serve this host (plugin ABI version ",
                          TRELLIS_PLUGIN_ABI_VERSION, ", LibTorch ", TORCH_VERSION,
                          "): use a plugin built for these versions"));
  }
  check_built_for_us(path, *api);
  check_registered(path, *api);
  return *api;
}

}  // namespace

const DevicePlugin& DevicePlugin::load(const std::string& path) {
  // Registration with LibTorch is for the whole process, so the record of it is too.
  static std::mutex mutex;
  static std::unique_ptr<const DevicePlugin> loaded;
  static std::string loaded_path;
  const std::lock_guard lock(mutex);
  const std::string canonical = std::filesystem::weakly_canonical(path).string();
  if (loaded && loaded_path == canonical) return *loaded;
  if (loaded)
    reject(path, c10::str("the process already holds a device provider: ", loaded_path,
                          ": choose one before loading"));
  loaded.reset(new DevicePlugin(&open_plugin(canonical)));
  loaded_path = canonical;
  return *loaded;
}

std::string DevicePlugin::default_path() {
  if (const char* chosen = std::getenv(kVariable); chosen != nullptr && *chosen != '\0')
    return chosen;
  return installed_library(kLibrary).string();
}

std::string DevicePlugin::path_of(const std::string& provider) {
  if (provider.find('/') != std::string::npos || provider.ends_with(".so")) return provider;
  return installed_library("libtrellis_" + provider + ".so").string();
}

void DevicePlugin::check(std::int64_t result) const {
  if (result == 0) return;
  int code = static_cast<int>(ExitCode::kInternal);
  const std::string text =
      text_or(api_->last_error(&code), "the device plugin failed and gave no reason");
  throw Error(static_cast<ExitCode>(code), text);
}

}  // namespace trellis::runtime
