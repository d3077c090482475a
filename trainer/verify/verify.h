#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/requests/verify_request.h"
#include "trainer/verify/compare.h"
#include "trainer/verify/layout.h"
#include "trainer/verify/verify_result.h"

namespace trellis::trainer {

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
