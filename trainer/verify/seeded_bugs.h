#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/verify/capture.h"
#include "trainer/verify/layout.h"

namespace trellis::trainer {

/// A known kind of mistake, put into a run from outside: wrong groups, attributes or data. It shows
/// that the comparison notices it.
struct SeededBug {
  std::string name;
  std::string description;
  /// Layouts in which the mistake can make a difference.
  bool (*can_show)(const Layout& layout, const RunConfig& config) = nullptr;
  RunChanges changes;
};

[[nodiscard]] const std::vector<SeededBug>& seeded_bugs();
/// Throws ConfigError with all names when there is none of this name.
[[nodiscard]] const SeededBug& find_seeded_bug(std::string_view name);

}  // namespace trellis::trainer
