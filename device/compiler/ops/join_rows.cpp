#include "device/compiler/ops/join_rows.h"

#include <algorithm>

#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/ops/index_tiles.h"

namespace trellis::device {
namespace {

using isa::Engine;

constexpr std::int64_t kTileBytes = 16 * 1024;

std::int64_t elements_of(const Dims& dims) {
  std::int64_t n = 1;
  for (const auto& d : dims) n *= d.count;
  return n;
}

class RowJoin {
 public:
  RowJoin(std::uint32_t kernel, const HbmView& out, std::int64_t length,
          const std::vector<RowPart>& parts, std::optional<double> fill)
      : phase_(kernel), out_(out), length_(length), parts_(parts), fill_(fill) {}

  /// Each partition holds as many rows as a tile takes, and no more than fill all partitions.
  Phase run() {
    const std::int64_t rows = out_.elements() / length_;
    const std::int64_t fit =
        std::max<std::int64_t>(kTileBytes / (length_ * isa::size_bytes(out_.dtype)), 1);
    const std::int64_t each = std::min(fit, (rows + kP - 1) / kP);
    phase_.tiles(rows / each, kP, [&](const Index& block, std::int64_t partitions) {
      tile(block * each, partitions, each);
    });
    if (const std::int64_t rest = rows % each; rest > 0)
      phase_.scope([&] { tile(rows - rest, 1, rest); });
    return std::move(phase_);
  }

 private:
  void tile(const Index& first, std::int64_t partitions, std::int64_t each) {
    const int lanes = static_cast<int>(partitions);
    const auto group = static_cast<std::int32_t>(each);
    const TileId joined = phase_.sbuf(each * length_ * isa::size_bytes(out_.dtype), 2);
    if (fill_)
      phase_.memset(phase_.at(joined, out_.dtype, lanes, row(each * length_)), *fill_);
    else
      phase_.scatter(joined);
    Engine engine = Engine::kVector;
    for (const RowPart& part : parts_) {
      const std::int64_t n = elements_of(part.place);
      const HbmView& source = part.source;
      const TileId loaded = phase_.sbuf(each * n * isa::size_bytes(source.dtype), 2);
      phase_.load(phase_.at(loaded, source.dtype, lanes, row(each * n)),
                  Phase::hbm(source.buffer, source.dtype, lanes, each * n, row(each * n),
                             first * n + Index(source.offset)));
      Dims to{{length_, group}}, from{{n, group}};
      std::int64_t dense = n;
      for (const auto& d : part.place) {
        dense /= d.count;
        to.push_back(d);
        from.push_back({dense, d.count});
      }
      phase_.copy(engine, phase_.at(joined, out_.dtype, lanes, to, part.offset),
                  phase_.at(loaded, source.dtype, lanes, from));
      engine = engine == Engine::kVector ? Engine::kScalar : Engine::kVector;
    }
    phase_.store(Phase::hbm(out_.buffer, out_.dtype, lanes, each * length_, row(each * length_),
                            first * length_ + Index(out_.offset)),
                 phase_.at(joined, out_.dtype, lanes, row(each * length_)));
  }

  Phase phase_;
  const HbmView& out_;
  std::int64_t length_;
  const std::vector<RowPart>& parts_;
  std::optional<double> fill_;
};

}  // namespace

void join_rows(Lowering& lowering, std::uint32_t kernel, const HbmView& out, std::int64_t length,
               const std::vector<RowPart>& parts, std::optional<double> fill) {
  std::vector<RowPart> dense = parts;
  for (RowPart& part : dense) {
    if (flat_stride(part.source) == 1) continue;
    HbmView copy = contiguous(0, part.source.dtype, part.source.sizes);
    copy.buffer = lowering.builder().scratch(copy.elements() * isa::size_bytes(copy.dtype));
    copy_view(lowering, kernel, copy, part.source);
    part.source = std::move(copy);
  }
  lowering.builder().append(RowJoin(kernel, out, length, dense, fill).run());
}

}  // namespace trellis::device
