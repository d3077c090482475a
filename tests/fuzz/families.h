#pragma once

#include <string_view>
#include <vector>

#include "tests/fuzz/chooser.h"

namespace trellis::fuzz {

/// Operators whose arguments are drawn alike. A name represents all its overloads, `out=` ones
/// included, and its in-place twin.
struct Family {
  std::int64_t weight;  ///< how often, relative to the others
  std::vector<std::string_view> names;
  Hints (*hints)(Chooser&);
};

[[nodiscard]] const std::vector<Family>& families();

}  // namespace trellis::fuzz
