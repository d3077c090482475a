#pragma once

#include <cstdint>

#include "sim/config/system_config.h"

namespace trellis::device {

/// The properties of a product c[m, n] = a[m, k] · b[k, n] that decide how it is cut.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  int a_bytes = 2, b_bytes = 2, c_bytes = 2;
  bool a_transposed = false,
       b_transposed = false;  ///< K is contiguous: the array transposes the operand on its way in
  int addend_bytes = 0;       ///< per element of c, 0: none
  int epilogue_bytes =
      0;  ///< per element of c: of what comes or goes with it, an activation or a factor
  double passes = 1;  ///< of the array per moving column
};

/// One operand stays on chip a block at a time, the other one streams past it in panels:
///
///   rows stay        columns stay
///   a ▇ b: ▇ ▇ ▇ ▇   b ▇ a: ▇ ▇ ▇ ▇
///     ▇                     (read once per block of b)
struct GemmPlan {
  bool rows_stay = false;  ///< a block of rows of a; else a block of columns of b
  std::int64_t block = 0;  ///< rows or columns that stay
  std::int64_t panel = 0;  ///< columns or rows that stream, two panels on chip
  int copies = 1;  ///< 2: the next block arrives while this one is used; one that is transposed
                   ///< waits as it came, and is transposed in time
};

/// Elements of K that one transfer of a transposed operand takes, `bytes` each: 4 KiB descriptors,
/// which use all of HBM's channels; equal ones where K allows it.
[[nodiscard]] std::int64_t gemm_chunk(std::int64_t k, int bytes);
/// How many of them may be on their way when they are not a whole block.
inline constexpr int kGemmStagingSlots = 4;

/// PSUM banks of the transposes.
inline constexpr int kTransposeBanks = 4;

/// The first panel of a block meets it in so many pieces of K, so that the array starts before
/// everything is there.
inline constexpr std::int64_t kHeadPieces = 4;
/// True if the plan starts in pieces: not with an addend, and not with a block that is transposed,
/// which arrives as a whole since pieces of its rows would be short.
[[nodiscard]] bool starts_in_pieces(const GemmShape& shape, const GemmPlan& plan);

/// Rows or columns of a block that are transposed together, and multiplied while the next ones are:
/// a tile of rows, or as many columns as move at a time.
[[nodiscard]] std::int64_t gemm_group(const GemmPlan& plan);

/// SBUF bytes per partition that a plan takes.
[[nodiscard]] std::int64_t gemm_sbuf_bytes(const GemmShape& shape, const GemmPlan& plan);

/// Seconds that a plan takes: the longer of the array's work and the DMA traffic, and what neither
/// hides.
[[nodiscard]] double estimated_seconds(const GemmShape& shape, const GemmPlan& plan,
                                       const sim::CoreConfig& core);

/// The plan with the shortest estimated time that fits in SBUF; block 0: none fits.
[[nodiscard]] GemmPlan choose_gemm_plan(const GemmShape& shape, const sim::CoreConfig& core,
                                        std::int64_t sbuf_bytes);

}  // namespace trellis::device
