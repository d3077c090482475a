#include <algorithm>

#include "sim/functional/tiles.h"

namespace trellis::sim::functional {

namespace {
constexpr std::int64_t kRows = 4, kColumns = 8;  // sums that stay in registers

/// One block of kRows × kColumns sums, with compile-time sizes so that it is held in registers.
void block(const float* weights, std::int64_t weight_columns, const float* moving,
           std::int64_t contraction, std::int64_t columns, float* sums) {
  float sum[kRows][kColumns];
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kColumns; ++n) sum[m][n] = sums[m * columns + n];
  }
  for (std::int64_t p = 0; p < contraction; ++p) {
    const float* weight = weights + p * weight_columns;
    const float* row = moving + p * columns;
    for (std::int64_t m = 0; m < kRows; ++m) {
      for (std::int64_t n = 0; n < kColumns; ++n) sum[m][n] += weight[m] * row[n];
    }
  }
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kColumns; ++n) sums[m * columns + n] = sum[m][n];
  }
}

void border(const float* weights, std::int64_t weight_columns, const float* moving,
            std::int64_t contraction, std::int64_t columns, std::int64_t n, float* sum) {
  for (std::int64_t p = 0; p < contraction; ++p)
    *sum += weights[p * weight_columns] * moving[p * columns + n];
}
}  // namespace

void multiply_add(const float* weights, std::int64_t weight_columns, const float* moving,
                  std::int64_t contraction, std::int64_t rows, std::int64_t columns, float* sums) {
  for (std::int64_t m = 0; m < rows; m += kRows) {
    for (std::int64_t n = 0; n < columns; n += kColumns) {
      if (m + kRows <= rows && n + kColumns <= columns) {
        block(weights + m, weight_columns, moving + n, contraction, columns,
              sums + m * columns + n);
        continue;
      }
      for (std::int64_t i = m; i < std::min(m + kRows, rows); ++i) {
        for (std::int64_t j = n; j < std::min(n + kColumns, columns); ++j)
          border(weights + i, weight_columns, moving, contraction, columns, j,
                 sums + i * columns + j);
      }
    }
  }
}

}  // namespace trellis::sim::functional
