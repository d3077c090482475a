#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/verify/capture.h"

/// Effect of rounding alone on a run's numbers, and how far two correct runs may differ by it.
///
/// Two layouts evaluate the same formulas in another order of sums, so that each rounds in its own
/// way: the effect of one run's rounding on a number is one sample of a random error, not its size.
/// A sample may be small by luck, above all for a number that is a single value (a loss, a norm).
/// The size is measured: one rank trains kRoundingRuns times, each time with its first weights
/// changed by up to one rounding, and the root of the mean square of the errors against fp64 is the
/// noise of a number.
namespace trellis::trainer {

/// Runs of one rank that measure the noise; the first with the weights as they are.
inline constexpr int kRoundingRuns = 8;
/// The probability that a layout is found to differ though it does not, by the bound below.
inline constexpr double kFalseAlarms = 1e-3;

/// One rounding to nearest, relative, of the configured precision.
[[nodiscard]] double unit_roundoff(const PrecisionSection& precision);

/// The changes of run number `run`: run 0 has none, any other rounds each weight of the built model
/// in another way. Same run, same weights.
[[nodiscard]] RunChanges rounded_otherwise(int run, double unit_roundoff);

/// Relative errors by what they are of, see errors_of().
using Errors = std::map<std::string, double>;

/// The noise of each number: over the runs, and no less than that of the median number of its kind
/// (gradients of one step, weights), whose errors have passed through the same layers.
[[nodiscard]] Errors noise_of(const std::vector<Errors>& runs);

/// How many times the noise an error may be. An error is a sum of independent roundings, and
/// exceeds λ times its size with a probability of 2·exp(−λ²/2) at most (Higham and Mary, "A new
/// approach to probabilistic rounding error analysis", 2019): λ for `numbers` of them. Where one
/// rank rounds a sum once, a layout rounds its parts too: the moved weights have added such a
/// rounding already.
[[nodiscard]] double times_the_noise(std::int64_t numbers);

}  // namespace trellis::trainer
