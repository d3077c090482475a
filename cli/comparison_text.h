#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "trainer/checkpoint/conversion/compare.h"

namespace trellis::cli {

/// An array with an object for each difference, by key: `checkpoint diff --json` documents it.
[[nodiscard]] nlohmann::json differences_json(const checkpoint::Comparison& result);

/// A table of `top` rows at most: tensors that one side alone has, then those that differ most by
/// L2. "": nothing differs.
[[nodiscard]] std::string differences_table(const checkpoint::Comparison& result, std::int64_t top);

}  // namespace trellis::cli
