#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/verify/compare.h"
#include "trainer/verify/layout.h"
#include "trainer/requests/verify_request.h"

namespace trellis::trainer {

/// What was found out about one layout.
struct LayoutResult {
  Layout layout;
  std::string precision;                 ///< fp64, or the configured one
  std::optional<Comparison> comparison;  ///< none: the configuration does not allow the layout
  std::string why_illegal;               ///< first rule that it breaks
  [[nodiscard]] bool passed() const { return !comparison || comparison->num_bad == 0; }
};

/// What an error may be in the configured precision.
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

/// Called after each layout, in their order, by one thread at a time: done so far, of how many.
using VerifyProgress = std::function<void(const LayoutResult& result, int done, int of)>;

/// Where the ranks of a layout live.
struct VerifyMachine {
  runtime::WorldOptions world;  ///< of each layout
  int layouts_at_once = 1;      ///< that may run side by side
  std::string hardware;         ///< generation, see RunConfig::hardware
};
/// Given the configuration on one rank: the place to load the ranks' device.
using VerifyWorld = std::function<VerifyMachine(const RunConfig& one_rank)>;

inline constexpr double kLargestTolerance = 0.5;

/// Trains the configuration on one CPU rank and in every chosen layout, in fp64, and compares every
/// number; then the layouts without recompute once more in the configured precision, except for a
/// mixture of experts, in which a rounding may send a token to another expert. There a number
/// may differ from fp64 by as many times the noise of rounding (measured on one rank, with ZeRO-1
/// or without, as the layout) as tolerance.h derives; at least by one rounding of the precision, at
/// most by kLargestTolerance. A tensor that nearly vanishes is measured against its share of the
/// norm (see compare()): in fp64 when it is less than a millionth of it, otherwise when it is less
/// than it. Throws ConfigError when the configuration is wrong, or no chosen layout is legal.
[[nodiscard]] VerifyResult verify(const VerifyRequest& request, const VerifyWorld& world,
                                  const VerifyProgress& progress);

}  // namespace trellis::trainer
