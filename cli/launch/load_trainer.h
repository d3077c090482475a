#pragma once

#include <string>
#include <utility>

#include "base/activity.h"
#include "trainer/requests/trainer_library.h"

namespace trellis::cli {

/// A function of a library next to the program. The trainer and LibTorch, and what writes Parquet,
/// are loaded only by the verbs that need them: the others start in milliseconds. Throws
/// ConfigError when the library is not there or of another version.
[[nodiscard]] void* library_symbol(const std::string& file, const std::string& name);

/// The trainer's library. Throws as library_symbol.
[[nodiscard]] const trainer::TrainerLibrary& trainer_library();

/// `call` of the trainer's library, which says itself what it is doing.
template <typename Call, typename... Arguments>
auto call_trainer(Call trainer::TrainerLibrary::* call, Arguments&&... arguments) {
  const auto function = trainer_library().*call;
  const Activity silent("");
  return function(std::forward<Arguments>(arguments)...);
}

}  // namespace trellis::cli
