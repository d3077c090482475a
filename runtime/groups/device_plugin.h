#pragma once

#include <string>

#include "device/plugin.h"

namespace trellis::runtime {

/// A loaded device plugin. Loading is for the whole process: LibTorch keeps pointers into the
/// library, so it is never unloaded, and a process holds at most one provider of a device type.
class DevicePlugin {
 public:
  /// `path`: the library. Throws ConfigError when it is missing, exports no plugin, or was built
  /// for another ABI or LibTorch version (expected, got, what to do).
  static const DevicePlugin& load(const std::string& path);
  /// `provider`: the path of a library, or of libtrellis_<provider>.so next to this one.
  static std::string path_of(const std::string& provider);
  /// $TRELLIS_DEVICE_PLUGIN, else libtrellis_neuron.so next to this library or program, or in the
  /// lib/ next to its bin/.
  static std::string default_path();

  [[nodiscard]] const trellis_device_plugin_t& api() const { return *api_; }
  /// True if it may be set up for a device of this type.
  [[nodiscard]] bool serves(const std::string& device_type) const {
    return api_->device_type == nullptr || device_type == api_->device_type;
  }
  /// Throws Error with the plugin's text and exit code when `result` is non-zero (or, for handles,
  /// negative).
  void check(std::int64_t result) const;

 private:
  explicit DevicePlugin(const trellis_device_plugin_t* api) : api_(api) {}
  const trellis_device_plugin_t* api_;
};

}  // namespace trellis::runtime
