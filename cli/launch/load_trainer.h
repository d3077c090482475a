#pragma once

#include <string>

#include "base/activity.h"

namespace trellis::cli {

/// A function of a library next to the program. The trainer and LibTorch, and what writes Parquet,
/// are loaded only by the verbs that need them: the others start in milliseconds. Throws
/// ConfigError when the library is not there or of another version.
[[nodiscard]] void* library_symbol(const std::string& file, const std::string& name);

/// Calls a function of the trainer's library, which says itself what it is doing.
template <typename Function, typename... Arguments>
auto call_trainer(const std::string& name, Arguments... arguments) {
  const auto function = reinterpret_cast<Function>(library_symbol("libtrellis_trainer.so", name));
  const Activity silent("");
  return function(arguments...);
}

}  // namespace trellis::cli
