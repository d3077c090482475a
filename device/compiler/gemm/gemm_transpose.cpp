#include "device/compiler/gemm/gemm_transpose.h"

#include <algorithm>

#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/gemm/gemm_plan.h"

namespace trellis::device {
namespace {

constexpr std::int64_t kTilesPerBank = 4;  // fp32: 128 columns each
constexpr int kMostTransposeSlots = 1024;

class OperandTransposer {
 public:
  OperandTransposer(Phase& phase, const TransposedLoad& what)
      : phase_(phase),
        w_(what),
        size_(isa::size_bytes(what.dtype)),
        step_(gemm_chunk(what.depth, size_)) {}

  void run() {
    const bool equal = w_.depth % step_ == 0;
    groups_ = (equal ? 0 : w_.depth / step_ * groups_of(step_)) +
              groups_of(equal ? step_ : w_.depth % step_);
    phase_.tiles(w_.rows, kP, [&](const Index& r0, std::int64_t rows) {
      groups_done_ = 0;
      if (equal) {
        phase_.loop(w_.depth / step_, [&](const Index& i) {
          chunk(r0, rows, i * step_, i * (step_ / kP), step_, w_.staging);
        });
      } else {
        unequal_chunks(r0, rows);
      }
    });
  }

 private:
  /// Each has a separate ring: rings of different slots in the same memory would wait for each
  /// other.
  void unequal_chunks(const Index& r0, std::int64_t rows) {
    const auto bytes = [&](std::int64_t depth) { return (depth * size_ + 63) / 64 * 64; };
    const std::int64_t all = w_.depth / step_ * bytes(step_) + bytes(w_.depth % step_);
    const std::int64_t slots = std::max<std::int64_t>(1, w_.staging.bytes / all);
    std::int64_t address = w_.staging.address;
    for (std::int64_t k = 0; k < w_.depth; k += step_) {
      const std::int64_t depth = std::min(step_, w_.depth - k);
      chunk(r0, rows, k, k / kP, depth, {address, slots * bytes(depth)});
      address += slots * bytes(depth);
    }
  }

  /// Elements [k0, k0 + depth) of a tile of rows, whose first K tile in dst is kt0.
  void chunk(const Index& r0, std::int64_t rows, const Index& k0, const Index& kt0,
             std::int64_t depth, const Phase::Region& staging) {
    const TileId raw = phase_.sbuf_in(staging, depth * size_, kMostTransposeSlots);
    phase_.load(phase_.at(raw, w_.dtype, static_cast<int>(rows), row(depth)),
                Phase::hbm(w_.buffer, w_.dtype, static_cast<int>(rows), w_.row_stride, row(depth),
                           w_.offset + r0 * w_.row_stride + k0));
    for (std::int64_t k = 0; k < depth;) {
      const std::int64_t tiles = std::min(kTilesPerBank, (depth - k) / kP);
      const std::int64_t partitions = tiles > 0 ? kP : depth - k;
      transpose(r0, rows, raw, k, kt0 + Index(k / kP), std::max<std::int64_t>(tiles, 1),
                partitions);
      k += tiles > 0 ? tiles * kP : partitions;
    }
  }

  /// `tiles` K tiles of `partitions` each, by way of one bank.
  void transpose(const Index& r0, std::int64_t rows, TileId raw, std::int64_t k, const Index& kt,
                 std::int64_t tiles, std::int64_t partitions) {
    const int p = static_cast<int>(partitions);
    const TileId bank = next_bank();
    for (std::int64_t t = 0; t < tiles; ++t) {
      phase_.transpose(
          phase_.at(bank, w_.transposed, p, row(rows), t * kP),
          phase_.at(raw, w_.dtype, static_cast<int>(rows), row(partitions), k + t * kP));
    }
    const auto n = static_cast<std::int32_t>(tiles);
    const isa::Dim columns{1, static_cast<std::int32_t>(rows)};
    phase_.copy(groups_done_ % 2 == 1 ? isa::Engine::kVector : isa::Engine::kScalar,
                phase_.at(w_.dst, w_.dtype, p, {{w_.width, n}, columns},
                          kt * w_.width + r0 + Index(w_.first)),
                phase_.at(bank, w_.transposed, p, {{kP, n}, columns}));
  }

  /// The transposes of a tile of rows go round the banks: where they need fewer banks than there
  /// are, each has a ring of several.
  TileId next_bank() {
    const std::int64_t rings = std::min<std::int64_t>(groups_, kTransposeBanks),
                       each = kTransposeBanks / rings;
    return phase_.psum_in(w_.banks, static_cast<int>(groups_done_++ % rings * each),
                          static_cast<int>(each));
  }

  [[nodiscard]] static std::int64_t groups_of(std::int64_t depth) {
    return (depth / kP + kTilesPerBank - 1) / kTilesPerBank + (depth % kP > 0 ? 1 : 0);
  }

  Phase& phase_;
  const TransposedLoad& w_;
  const std::int64_t size_, step_;
  std::int64_t groups_ = 1;       ///< of transposes that share a bank, in code without a loop
  std::int64_t groups_done_ = 0;  ///< groups so far
};

}  // namespace

void load_transposed(Phase& phase, const TransposedLoad& what) {
  OperandTransposer(phase, what).run();
}

}  // namespace trellis::device
