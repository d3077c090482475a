#pragma once

#include <string>

namespace trellis::cli {

/// A function of libtrellis_trainer.so. The trainer and LibTorch are loaded only by the verbs that need them: the others start in
/// milliseconds. Throws ConfigError when the library is not there or of another version.
[[nodiscard]] void* trainer_symbol(const std::string& name);

template <typename Function>
[[nodiscard]] Function load_trainer(const std::string& name) {
  return reinterpret_cast<Function>(trainer_symbol(name));
}

}  // namespace trellis::cli
