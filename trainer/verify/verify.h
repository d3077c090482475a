#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/verify/compare.h"
#include "trainer/verify/layout.h"
#include "trainer/verify/verify_request.h"

namespace trellis::trainer {

/// What was found out about one layout.
struct LayoutResult {
  Layout layout;
  std::string precision;                 ///< fp64, or the configured one
  std::optional<Comparison> comparison;  ///< none: the configuration does not allow the layout
  std::string why_illegal;               ///< first rule that it breaks
  [[nodiscard]] bool passed() const { return !comparison || comparison->num_bad == 0; }
};

struct VerifyResult {
  int vocab_size = 0;                    ///< one for all layouts: a multiple of what the largest TP needs
  std::string precision;                 ///< the configured one
  std::vector<LayoutResult> layouts;
  [[nodiscard]] int num_failed() const;
  [[nodiscard]] int num_run() const;
};

/// Called after each layout: done so far, of how many.
using VerifyProgress = std::function<void(const LayoutResult& result, int done, int of)>;

/// Trains the configuration on one rank and in every chosen layout, in fp64, and compares every number; then the layouts without recompute
/// once more in the configured precision. There an error may be four times what one rank has against fp64, tensor by tensor, but at least
/// four roundings of the precision: both run the same formulas, in another order of sums. Throws ConfigError when the configuration is
/// wrong, or no chosen layout is legal.
[[nodiscard]] VerifyResult verify(const VerifyRequest& request, const VerifyProgress& progress);

}  // namespace trellis::trainer
