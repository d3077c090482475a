#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trellis::device::testing {

/// A factor for each row: factors[p · stride].
struct Factors {
  const double* first;
  std::int64_t stride;
};

/// sums[n] += Σ_p factors[p] · rows[p][n] over `count` rows, in the order of p. Most of the time of
/// the references is here.
void add_rows(std::span<double> sums, Factors factors, const double* rows, std::int64_t count);

}  // namespace trellis::device::testing
