#pragma once

#include <string>

namespace trellis::cli {

/// A function of a library beside the program. The trainer and LibTorch, and what writes Parquet, are loaded only by the verbs that need them: the
/// others start in milliseconds. Throws ConfigError when the library is not there or of another version.
[[nodiscard]] void* library_symbol(const std::string& file, const std::string& name);

template <typename Function>
[[nodiscard]] Function load_trainer(const std::string& name) {
  return reinterpret_cast<Function>(library_symbol("libtrellis_trainer.so", name));
}

}  // namespace trellis::cli
