#pragma once

#include <string>

#include "device/plugin.h"

namespace trellis::device {

/// Names of the c10d backends of this LibTorch, for messages: "gloo, nccl".
[[nodiscard]] std::string known_backends();

/// Makes c10d backends by name: LibTorch's, and those of the device's library.
class Backends {
 public:
  /// `library`: handle of dlopen; null: none. Throws ConfigError when neither has `name`.
  Backends(std::string name, void* library);
  /// See trellis_device_plugin_t::new_backend, which is not asked for Gloo.
  void make(const trellis_backend_request& request, void** backend,
            std::int32_t& takes_device) const;

 private:
  std::string name_;
  decltype(trellis_device_plugin_t::new_backend) of_library_ = nullptr;
};

}  // namespace trellis::device
