#include "device/compiler/gemm/gemm_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/integer_math.h"
#include "device/compiler/gemm/array_sizes.h"

namespace trellis::device {
namespace {

constexpr std::array<std::int64_t, 9> kBlocks{4096, 2048, 1536, 1024, 768, 512, 256, 128, 64};
constexpr std::array<std::int64_t, 5> kPanels{1024, 512, 256, 128, 64};

std::int64_t rounded(std::int64_t a, std::int64_t to) { return ceil_div(a, to) * to; }

/// Equal parts of `size`, as many as parts of `most` would be: a small rest would cost as much time
/// between two parts as a large one.
std::int64_t equal_part(std::int64_t size, std::int64_t most) {
  const std::int64_t parts = ceil_div(size, most);
  return parts == 1 ? rounded(size, 64) : std::min(most, rounded(ceil_div(size, parts), kP));
}

/// One operand as the plan sees it: `rows` of it lie side by side on chip, each with its K on the
/// partitions.
struct PlannedSide {
  std::int64_t rows = 0;
  int bytes = 2;
  bool transposed = false;
};
PlannedSide staying(const GemmShape& s, const GemmPlan& p) {
  return p.rows_stay ? PlannedSide{s.m, s.a_bytes, s.a_transposed}
                     : PlannedSide{s.n, s.b_bytes, s.b_transposed};
}
PlannedSide streaming(const GemmShape& s, const GemmPlan& p) {
  return p.rows_stay ? PlannedSide{s.n, s.b_bytes, s.b_transposed}
                     : PlannedSide{s.m, s.a_bytes, s.a_transposed};
}

/// Seconds to move `bytes` in runs of `run` bytes that lie at a distance: the engines or HBM,
/// whichever is slower.
double move_seconds(double bytes, double run, const sim::DmaConfig& dma) {
  const double piece = std::min(run, 65536.0);
  const double each = std::max(to_seconds(dma.descriptor_floor), piece / dma.engine_rate.value);
  return std::max(bytes / piece * each / dma.engines,
                  bytes / (dma.hbm_rate.value * dma.hbm_part(run)));
}

/// How a side comes on chip: rows of K when it is transposed, else rows of `width`.
double load_seconds(const GemmShape& s, const PlannedSide& side, std::int64_t rows,
                    std::int64_t width, const sim::CoreConfig& core) {
  const double run = static_cast<double>(side.transposed ? gemm_chunk(s.k, side.bytes)
                                                         : std::min(width, side.rows)) *
                     side.bytes;
  return move_seconds(static_cast<double>(rows * s.k * side.bytes), run, core.dma);
}

/// The array's time to transpose rows, and what it waits for their copies out of PSUM: alone, or
/// between products.
enum class Transposing : std::uint8_t { kAlone, kBetween };
double transpose_seconds(const GemmShape& s, const PlannedSide& side, std::int64_t rows,
                         Transposing how, const sim::CoreConfig& core) {
  if (!side.transposed) return 0;
  const double tiles =
      static_cast<double>(ceil_div(std::min(rows, side.rows), kP) * ceil_div(s.k, kP));
  return tiles * kP * (how == Transposing::kAlone ? 2.0 : 1.5) / core.tensor.clock.value;
}

double product_seconds(const GemmShape& s, const GemmPlan& p, const sim::CoreConfig& core) {
  const std::int64_t columns =
      std::max<std::int64_t>(1, std::min(p.rows_stay ? p.panel : p.block, s.n));
  const auto width = static_cast<double>(moving_width(columns));
  const double moving = static_cast<double>(s.n) *
                        (std::max(width, core.tensor.min_cycles) + core.tensor.overhead_cycles) /
                        width;
  const std::int64_t rows =
      p.rows_stay ? p.block : p.panel;  // a part of a tile of rows costs as much as a whole one
  const std::int64_t row_tiles = s.m / rows * ceil_div(rows, kP) + ceil_div(s.m % rows, kP);
  return static_cast<double>(row_tiles) * static_cast<double>(ceil_div(s.k, kP)) * moving *
         s.passes / core.tensor.clock.value;
}

/// Share of a panel's products whose sums PSUM holds while its operands arrive piece by piece.
double first_share(const GemmShape& s, const GemmPlan& p) {
  const std::int64_t banks = s.a_transposed || s.b_transposed ? kBanks - kTransposeBanks : kBanks;
  const std::int64_t columns = p.rows_stay ? p.panel : p.block,
                     rows = p.rows_stay ? p.block : p.panel;
  const std::int64_t tall = std::min(banks / ceil_div(columns, kMoving), rows / kP);
  return rows < kP ? 0 : static_cast<double>(tall * kP) / static_cast<double>(rows);
}

/// Seconds that the array waits when its first products begin with a piece of the block: until the
/// last piece is there and multiplied, less those products. A panel that is transposed comes first.
double start_in_pieces(double load_block, double load_panel, bool transposed, double transpose,
                       double products) {
  const double piece = 1.0 / kHeadPieces;
  const double first = transposed ? load_panel + std::max(transpose, load_block * piece)
                                  : (load_block + load_panel) * piece;
  return std::max(load_block + load_panel + products * piece, first + products) - products;
}

/// The same of a block that is transposed group by group, of which the first one must be there.
double start_in_groups(const GemmShape& s, const GemmPlan& p, double load_block, double transpose,
                       double products) {
  const std::int64_t group = gemm_group(p);
  const double share = std::min(
      1.0, static_cast<double>(group) / static_cast<double>(std::min(p.block, staying(s, p).rows)));
  return load_block * share + transpose +
         std::max(0.0, load_block * (1 - share) - transpose - products);
}

}  // namespace

std::int64_t gemm_group(const GemmPlan& p) {
  return std::min(p.block, p.rows_stay ? kP : moving_width(p.block));
}

bool starts_in_pieces(const GemmShape& s, const GemmPlan& p) {
  return s.addend_bytes == 0 && !(p.rows_stay ? s.a_transposed : s.b_transposed) && s.k % kP == 0 &&
         s.k >= kHeadPieces * kP * (s.passes < 1 ? 2 : 1);
}

double estimated_seconds(const GemmShape& s, const GemmPlan& p, const sim::CoreConfig& core) {
  const sim::PlanningConfig& plan = core.planning;
  const PlannedSide stay = staying(s, p), stream = streaming(s, p);
  const auto blocks = static_cast<double>(ceil_div(stay.rows, p.block)),
             panels = blocks * static_cast<double>(ceil_div(stream.rows, p.panel));
  const double load_block = load_seconds(s, stay, std::min(p.block, stay.rows), p.block, core);
  const double load_panel = load_seconds(s, stream, std::min(p.panel, stream.rows), p.panel, core);
  const auto columns = static_cast<double>(std::min(p.rows_stay ? p.panel : p.block, s.n));
  const double results =
      move_seconds(static_cast<double>(s.m * s.n * (s.c_bytes + s.addend_bytes + s.epilogue_bytes)),
                   columns * s.c_bytes, core.dma) /
      panels;
  const double array = product_seconds(s, p, core) / panels +
                       transpose_seconds(s, stream, p.panel, Transposing::kBetween, core);
  const double transpose_block = transpose_seconds(s, stay, p.block, Transposing::kBetween, core);
  const double transpose_panel = transpose_seconds(s, stream, p.panel, Transposing::kAlone, core);
  // The time that the array waits before a block whose operands were not loaded ahead.
  const double start =
      starts_in_pieces(s, p) ? start_in_pieces(load_block, load_panel, stream.transposed,
                                               transpose_panel, array * first_share(s, p))
      : stay.transposed
          ? load_panel + transpose_panel + start_in_groups(s, p, load_block, transpose_block, array)
          : load_panel + transpose_panel + load_block;
  // The next block and its first panels come while the last panels of this one are multiplied.
  const double next = p.copies == 1
                          ? start
                          : transpose_block + std::max(0.0, load_block + 2 * load_panel -
                                                                plan.product_panels_ahead * array);
  return start + (blocks - 1) * next +
         panels * std::max(array, plan.product_transfer_share * (load_panel + results)) +
         to_seconds(plan.product_time) + to_seconds(plan.product_block_time) * blocks +
         to_seconds(plan.product_panel_time) * panels;
}

std::int64_t gemm_chunk(std::int64_t k, int bytes) {
  const std::int64_t most = 4096 / bytes;
  if (k <= most) return k;
  constexpr std::int64_t kBankful = 512;  // four transposes share a bank of PSUM
  for (std::int64_t chunk = most; chunk >= most / 2; chunk -= kBankful) {
    if (k % chunk == 0) return chunk;
  }
  return most;
}

std::int64_t gemm_sbuf_bytes(const GemmShape& s, const GemmPlan& p) {
  const PlannedSide stay = staying(s, p), stream = streaming(s, p);
  const std::int64_t tiles = ceil_div(s.k, kP), columns = p.rows_stay ? p.panel : p.block;
  const auto staging = [&](const PlannedSide& side, std::int64_t slots) {
    return side.transposed ? slots * gemm_chunk(s.k, side.bytes) * side.bytes : 0;
  };
  // The next block of a transposed operand waits as it came.
  const std::int64_t raw = p.copies == 2
                               ? ceil_div(p.block, kP) * ceil_div(s.k, gemm_chunk(s.k, stay.bytes))
                               : kGemmStagingSlots;
  const std::int64_t group = stay.transposed ? gemm_group(p) : p.block;
  const std::int64_t blocks =
      tiles * rounded(p.block, group) * stay.bytes * (stay.transposed ? 1 : p.copies) +
      staging(stay, raw);
  const std::int64_t panels =
      2 * tiles * p.panel * stream.bytes + staging(stream, kGemmStagingSlots);
  // Results wait for their store, two per row of tiles that is in PSUM; with an addend also what it
  // is made of.
  const bool head = !stay.transposed && !stream.transposed && s.addend_bytes == 0;
  const std::int64_t rows = std::max<std::int64_t>(1, (head ? 8 : 4) / ceil_div(columns, 512));
  const std::int64_t results = 2 * rows * columns * (s.c_bytes + s.epilogue_bytes) +
                               (s.epilogue_bytes > 0 ? 2 * 512 * 4 : 0);
  const std::int64_t addend =
      s.addend_bytes == 0 ? 0 : (2 * rows + 1) * columns * s.addend_bytes + 4 * 2 * 512 * 4;
  return blocks + panels + results + addend + 4096;
}

GemmPlan choose_gemm_plan(const GemmShape& s, const sim::CoreConfig& core,
                          std::int64_t sbuf_bytes) {
  GemmPlan best;
  double least = std::numeric_limits<double>::max();
  for (const bool rows_stay : {false, true}) {
    for (const std::int64_t block : kBlocks) {
      for (const std::int64_t panel : kPanels) {
        for (const int copies : {2, 1}) {
          GemmPlan p{rows_stay, block, panel, copies};
          const PlannedSide stay = staying(s, p), stream = streaming(s, p);
          p.block = equal_part(stay.rows, block);
          p.panel = equal_part(stream.rows, panel);
          if (p.block >= stay.rows && copies == 2) continue;
          if (rows_stay ? p.panel > 1024 : p.block > 2048) continue;
          if (gemm_sbuf_bytes(s, p) > sbuf_bytes) continue;
          const double seconds = estimated_seconds(s, p, core);
          if (seconds >= least) continue;
          least = seconds;
          best = p;
        }
      }
    }
  }
  return best;
}

}  // namespace trellis::device
