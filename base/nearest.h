#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trellis {

/// The candidate with the smallest edit distance to `name`, or "" when none is near (distance > 1 +
/// length / 3).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace trellis
