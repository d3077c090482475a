// MX products: 512 of the contraction in one pass of the array, four times the rate of bf16.
//
// A block of b's columns over the whole of K stays in SBUF while a streams past it; the next block
// arrives meanwhile. When K is so long that not even 512 columns fit twice, both operands stream.
// Either way the sums of a turn fill the 8 banks of PSUM, and K is the inner loop: its neighbouring
// products go to different banks, and weights are loaded once for all columns of the turn.
#include "device/compiler/gemm/gemm_mx.h"

#include <algorithm>

#include "base/integer_math.h"
#include "device/compiler/gemm/array_sizes.h"

namespace trellis::device {
namespace {

using isa::DType;
using isa::Engine;
using isa::Opcode;

constexpr std::int64_t kScaleRows = 8;  // packed rows that share a scale
constexpr std::int64_t kWidestBlock =
    1024;  // of b: wider ones move fewer bytes, but the first one is there later
constexpr std::int64_t kStreamedColumns =
    1024;  // of b per turn when b does not stay: with 512 of a, the most products per byte
constexpr std::int64_t kMostMxSlots = 16;  // K tiles on their way

/// Data and scales of some columns, in SBUF.
struct HeldMx {
  TileId data = 0, scales = 0;
  std::int64_t width = 0;  ///< columns
};

class MxProduct {
 public:
  MxProduct(const ProgramBuilder& builder, std::uint32_t kernel, const MxGemm& gemm)
      : gemm_(gemm),
        phase_(kernel),
        m_(gemm.c.sizes[0]),
        n_(gemm.c.sizes[1]),
        rows_(gemm.a.data.sizes[0]),
        full_(rows_ / kP),
        rest_(rows_ % kP),
        element_(isa::size_bytes(gemm.a.data.dtype) + 1) {
    choose_block(builder.sbuf_bytes());
  }

  Phase run() {
    if (!stays_) {
      phase_.tiles(n_, columns_,
                   [&](const Index& n0, std::int64_t columns) { turns({}, n0, columns); });
      return std::move(phase_);
    }
    phase_.double_buffered_tiles(n_, columns_, [&](const Index& n0, std::int64_t columns) {
      const HeldMx block = hold(columns, tiles(), 2);
      phase_.scatter(block.data);
      phase_.scatter(block.scales);
      const auto fetch = [&](const Index& k, std::int64_t rows) {
        load(gemm_.b, block, k * columns, k, rows, n0, columns);
      };
      phase_.loop(full_, [&](const Index& k) { fetch(k, kP); });
      if (rest_ > 0) fetch(full_, rest_);
      turns(block, n0, columns);
    });
    return std::move(phase_);
  }

 private:
  [[nodiscard]] std::int64_t tiles() const { return ceil_div(rows_, kP); }
  [[nodiscard]] std::int64_t across() const { return ceil_div(columns_, kMoving); }

  /// The widest block of b that leaves room for the next one, results and a ring of a's tiles; else
  /// how far ahead both can be fetched.
  void choose_block(std::int64_t sbuf) {
    const std::int64_t results = kBanks * 2 * kMoving * isa::size_bytes(gemm_.c.dtype),
                       room = sbuf - results - 8192;
    for (columns_ = kWidestBlock; columns_ >= kMoving; columns_ /= 2) {
      const std::int64_t width = std::min(columns_, ceil_div(n_, kMoving) * kMoving),
                         tall = kBanks / ceil_div(width, kMoving) * kP;
      const std::int64_t left = room - (n_ > width ? 2 : 1) * tiles() * width * element_;
      slots_ = std::min(kMostMxSlots,
                        left / ((tall + 128) * element_) - 1);  // one more is the rest of K
      if (slots_ < 4) continue;
      stays_ = true;
      columns_ = width;
      return;
    }
    columns_ = std::min(kStreamedColumns, ceil_div(n_, kMoving) * kMoving);
    slots_ = std::clamp<std::int64_t>(
        room / ((kBanks / across() * kP + columns_ + 128) * element_) - 1, 1, kMostMxSlots);
  }

  HeldMx hold(std::int64_t width, std::int64_t tiles, std::int64_t slots) {
    return {phase_.sbuf(tiles * width * (element_ - 1), static_cast<int>(slots)),
            phase_.sbuf(tiles * width, static_cast<int>(slots)), width};
  }

  /// K tile `k` of `columns` columns from `first` on, to element `at`.
  void load(const MxOperand& from, const HeldMx& into, const Index& at, const Index& k,
            std::int64_t rows, const Index& first, std::int64_t columns) {
    const std::int64_t stride = from.data.strides[0];
    phase_.load(phase_.at(into.data, from.data.dtype, static_cast<int>(rows), row(columns), at),
                Phase::hbm(from.data.buffer, from.data.dtype, static_cast<int>(rows), stride,
                           row(columns), Index(from.data.offset) + k * (kP * stride) + first));
    const auto groups = static_cast<int>(rows / kScaleRows);
    phase_.load(phase_.at(into.scales, DType::kUInt8, groups, row(columns), at),
                Phase::hbm(from.scales.buffer, DType::kUInt8, groups, stride, row(columns),
                           Index(from.scales.offset) + k * (kP / kScaleRows * stride) + first));
  }

  /// All rows of c, for columns [n0, n0 + columns).
  void turns(const HeldMx& block, const Index& n0, std::int64_t columns) {
    const std::int64_t tall = kBanks / across() * kP;
    phase_.tiles(m_, tall,
                 [&](const Index& m0, std::int64_t rows) { turn(block, m0, rows, n0, columns); });
  }

  void turn(const HeldMx& block, const Index& m0, std::int64_t rows, const Index& n0,
            std::int64_t columns) {
    std::vector<TileId> outs, sums;  // before the loop over K, whose tiles are filled ahead and
                                     // must not share memory with them
    for (std::int64_t m = 0; m < rows; m += kP) {
      outs.push_back(phase_.sbuf(columns * isa::size_bytes(gemm_.c.dtype), 2));
      phase_.scatter(outs.back());
      for (std::int64_t n = 0; n < columns; n += kMoving) sums.push_back(phase_.psum());
    }
    const auto fetched = [&](std::int64_t slots) {
      return std::pair{hold(rows, 1, slots), stays_ ? block : hold(columns, 1, slots)};
    };
    const auto step = [&](const std::pair<HeldMx, HeldMx>& held, const Index& k, std::int64_t depth,
                          bool onto, bool overwrite_first) {
      load(gemm_.a, held.first, 0, k, depth, m0, rows);
      if (!stays_) load(gemm_.b, held.second, 0, k, depth, n0, columns);
      products(sums, held.first, held.second, stays_ ? k * columns : Index(0), depth, onto,
               overwrite_first);
    };
    const std::pair<HeldMx, HeldMx> last = rest_ > 0 ? fetched(2) : std::pair<HeldMx, HeldMx>{};
    phase_.loop(full_, [&](const Index& k) { step(fetched(slots_), k, kP, full_ > 1, full_ > 1); });
    if (rest_ > 0) step(last, full_, rest_, full_ > 0, false);
    finish(outs, sums, m0, rows, n0, columns);
  }

  void products(const std::vector<TileId>& sums, const HeldMx& a, const HeldMx& b,
                const Index& b_at, std::int64_t depth, bool onto, bool overwrite_first) {
    std::size_t sum = 0;
    const auto partitions = static_cast<int>(depth), groups = static_cast<int>(depth / kScaleRows);
    for (std::int64_t m = 0; m < a.width; m += kP) {
      const std::int64_t rows = std::min(kP, a.width - m);
      phase_.emit(Engine::kTensor, Opcode::kLoadStationary, {},
                  phase_.at(a.data, gemm_.a.data.dtype, partitions, row(rows), m),
                  phase_.at(a.scales, DType::kUInt8, groups, row(rows), m));
      for (std::int64_t n = 0; n < b.width; n += kMoving) {
        const std::int64_t columns = std::min(kMoving, b.width - n);
        auto& product = phase_.emit(
            Engine::kTensor, Opcode::kMatmul,
            phase_.at(sums[sum++], DType::kFp32, static_cast<int>(rows), row(columns)),
            phase_.at(b.data, gemm_.b.data.dtype, partitions, row(columns), b_at + Index(n)),
            phase_.at(b.scales, DType::kUInt8, groups, row(columns), b_at + Index(n)));
        product.accumulate = onto;
        product.overwrite_first = overwrite_first;
      }
    }
  }

  void finish(const std::vector<TileId>& outs, const std::vector<TileId>& sums, const Index& m0,
              std::int64_t rows, const Index& n0, std::int64_t columns) {
    const HbmView& c = gemm_.c;
    std::size_t sum = 0;
    for (std::int64_t m = 0; m < rows; m += kP) {
      const auto partitions = static_cast<int>(std::min(kP, rows - m));
      const TileId out = outs[static_cast<std::size_t>(m / kP)];
      for (std::int64_t n = 0; n < columns; n += kMoving, ++sum) {
        const Dims width = row(std::min(kMoving, columns - n));
        phase_.copy(sum % 2 == 0 ? Engine::kVector : Engine::kScalar,
                    phase_.at(out, c.dtype, partitions, width, n),
                    phase_.at(sums[sum], DType::kFp32, partitions, width));
      }
      phase_.store(Phase::hbm(c.buffer, c.dtype, partitions, c.strides[0], row(columns),
                              Index(c.offset) + (m0 + Index(m)) * c.strides[0] + n0),
                   phase_.at(out, c.dtype, partitions, row(columns)));
    }
  }

  const MxGemm& gemm_;
  Phase phase_;
  std::int64_t m_, n_;
  std::int64_t rows_;         ///< packed rows: K / 4
  std::int64_t full_, rest_;  ///< whole K tiles, and rows left over
  std::int64_t element_;      ///< bytes of a packed element, and one of room for its scale
  std::int64_t columns_ = 0;  ///< of b, at a time
  std::int64_t slots_ = 0;    ///< K tiles fetched ahead
  bool stays_ = false;        ///< b's columns stay in SBUF
};

}  // namespace

void lower_mx_gemm(ProgramBuilder& builder, std::uint32_t kernel, const MxGemm& gemm) {
  builder.append(MxProduct(builder, kernel, gemm).run());
}

}  // namespace trellis::device
