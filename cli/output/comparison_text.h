#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "trainer/files/checkpoint/conversion/compare.h"

namespace trellis::cli {

/// An array with an object for each difference, by key: `checkpoint diff --json` documents it.
[[nodiscard]] nlohmann::json differences_json(const checkpoint::Comparison& result);

/// A table of `top` rows at most: tensors that one side alone has, then those that differ most by
/// L2. "": nothing differs.
[[nodiscard]] std::string differences_table(const checkpoint::Comparison& result, std::int64_t top);

/// Report on written data compared with `origin` (A), such as "the checkpoint": differences, and a
/// line that ends the report.
[[nodiscard]] std::string read_back_text(const checkpoint::Comparison& result,
                                         const std::string& origin);

}  // namespace trellis::cli
