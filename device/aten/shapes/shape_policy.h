#pragma once

#include <cstdint>
#include <string_view>

namespace trellis::device {

/// Behaviour of shape-only mode when the sizes of a result depend on data.
enum class ShapePolicy : std::uint8_t {
  kRefuse,     ///< an error that names the operator, its place and what to do instead
  kUpperBound  ///< everything is selected, nothing occurs twice: the largest result there can be,
               ///< in memory and in time
};

/// One policy for the process; kRefuse until it is set.
[[nodiscard]] ShapePolicy shape_policy() noexcept;
void set_shape_policy(ShapePolicy policy) noexcept;

/// "refuse", "upper_bound"; throws on another word, naming the valid ones.
[[nodiscard]] ShapePolicy shape_policy_named(std::string_view name);
[[nodiscard]] const char* name_of(ShapePolicy policy) noexcept;

/// Throws DataDependent with `hint` unless an upper bound will do.
void accept_upper_bound(const char* hint);

}  // namespace trellis::device
