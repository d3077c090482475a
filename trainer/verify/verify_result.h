#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/requests/verify_request.h"
#include "trainer/verify/compare.h"
#include "trainer/verify/layout.h"

namespace trellis::trainer {

/// Result of the verification of one layout.
struct LayoutResult {
  Layout layout;
  std::string precision;                 ///< fp64, or the configured one
  std::optional<Comparison> comparison;  ///< none: the configuration does not allow the layout
  std::string why_illegal;               ///< first rule that it breaks
  [[nodiscard]] bool passed() const { return !comparison || comparison->num_bad == 0; }
};

/// Error limits in the configured precision.
struct DerivedTolerances {
  double smallest = 0, largest = 0;
  double times_the_noise = 0;  ///< see tolerance.h
  int num_capped = 0;  ///< kinds of numbers that one rank itself knows so badly that the cap holds
};

struct VerifyResult {
  int vocab_size = 0;         ///< one for all layouts: a multiple of what the largest TP needs
  DerivedTolerances derived;  ///< all 0 when nothing ran in the configured precision
  std::string precision;      ///< the configured one
  std::string why_fp64_only;  ///< "" when layouts ran in the configured precision, too
  std::vector<LayoutResult> layouts;
  [[nodiscard]] int num_failed() const;
  [[nodiscard]] int num_run() const;
};

}  // namespace trellis::trainer
