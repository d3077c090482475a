#pragma once

#include <string>

#include "trainer/files/checkpoint/containers/value.h"

namespace trellis::checkpoint {

/// A text that two keys of a dict share exactly when they are equal. Throws ConfigError for what
/// Python cannot hash, and for keys nested deeper than 100 or longer than 1 MB.
[[nodiscard]] std::string key_text(const Value& key);

}  // namespace trellis::checkpoint
