#include "tests/device/compiler/products.h"

namespace trellis::device::testing {

// Four rows at a time: each sum is loaded and stored once for them. The order of additions, and
// with it every bit, is that of one row after the other; no clone may fuse a product with its sum.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void add_rows(std::span<double> sums, Factors factors, const double* rows, std::int64_t count) {
  const std::size_t columns = sums.size();
  double* const out = sums.data();
  std::int64_t p = 0;
  for (; p + 4 <= count; p += 4, rows += 4 * columns) {
    const double* f = factors.first + p * factors.stride;
    const double f0 = f[0], f1 = f[factors.stride], f2 = f[2 * factors.stride],
                 f3 = f[3 * factors.stride];
    for (std::size_t n = 0; n < columns; ++n) {
      const double sum = out[n] + f0 * rows[n] + f1 * rows[columns + n];
      out[n] = sum + f2 * rows[2 * columns + n] + f3 * rows[3 * columns + n];
    }
  }
  for (; p < count; ++p, rows += columns) {
    const double factor = factors.first[p * factors.stride];
    for (std::size_t n = 0; n < columns; ++n) out[n] += factor * rows[n];
  }
}

}  // namespace trellis::device::testing
