// topk and sort along rows that lie contiguously: the Vector engine's search for the largest eight,
// repeated on what is left.
#include <algorithm>
#include <limits>
#include <optional>

#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/lowering.h"

namespace trellis::device {
namespace {

using isa::DType;
using isa::Engine;
using isa::Opcode;

constexpr std::int64_t kEight = 8, kWidest = 16384;
constexpr std::int64_t kWidestSorted = 2048;  ///< as many eighths are searched for
constexpr std::int64_t kMostSortedPerPartition =
    32;  // rows of a block that follow each other on a partition
constexpr std::int64_t kBlockBytes =
    32 * 1024;  // of a partition: enough to hide the next block's load

/// SortedRows of one length, at a distance of `stride`; elements of a row are neighbours.
struct SortedRows {
  HbmView view;
  std::int64_t count = 1, length = 1, stride = 0;
};

std::optional<SortedRows> rows_of(const HbmView& v) {
  if (v.rank() == 0 || (v.strides.back() != 1 && v.sizes.back() > 1)) return std::nullopt;
  std::vector<std::int64_t> sizes(v.sizes.begin(), v.sizes.end() - 1);
  std::vector<std::vector<std::int64_t>> strides{{v.strides.begin(), v.strides.end() - 1}};
  if (sizes.empty()) return SortedRows{v, 1, v.sizes.back(), v.sizes.back()};
  collapse(sizes, strides);
  if (sizes.size() != 1) return std::nullopt;
  return SortedRows{v, sizes[0], v.sizes.back(), strides[0][0]};
}

bool is_float(DType d) { return d == DType::kFp32 || d == DType::kBf16 || d == DType::kFp16; }

class TopK {
 public:
  /// `ascending`: the least ones, found as the largest of the negated numbers.
  TopK(std::uint32_t kernel, const SortedRows& in, const SortedRows& values,
       const SortedRows& indices, bool ascending)
      : in_(in),
        values_(values),
        indices_(indices),
        ascending_(ascending),
        width_(std::max(in.length, kEight)),
        phase_(kernel),
        rounds_((values.length + kEight - 1) / kEight) {}

  Phase run() {
    const std::int64_t most =
        std::max<std::int64_t>(kBlockBytes / (width_ * isa::size_bytes(in_.view.dtype)), 1);
    const std::int64_t per = std::clamp<std::int64_t>(in_.count / kP / 2, 1,
                                                      std::min(most, kMostSortedPerPartition)),
                       block = per * kP;
    phase_.double_buffered_loop(in_.count / block,
                                [&](const Index& i) { search(i * block, kP, per); });
    std::int64_t done = in_.count / block * block;
    const std::int64_t rest = (in_.count - done) / kP;
    if (rest > 0) phase_.scope([&] { search(done, kP, rest); });
    done += rest * kP;
    if (done < in_.count) phase_.scope([&] { search(done, in_.count - done, 1); });
    return std::move(phase_);
  }

 private:
  /// SortedRows [first, first + partitions · per): those of a partition follow each other.
  void search(const Index& first, std::int64_t partitions, std::int64_t per) {
    const std::int64_t found = rounds_ * kEight;
    const TileId data = tile(in_, per * width_), values = tile(values_, per * found),
                 places = tile(indices_, per * found);
    const auto whole = [&](TileId t, const SortedRows& rows, std::int64_t width) {
      return phase_.at(t, rows.view.dtype, static_cast<int>(partitions), row(per * width));
    };
    const Ref numbers = kept(data, in_, partitions, per, width_);
    if (width_ > in_.length)
      phase_.memset(whole(data, in_, width_), -std::numeric_limits<double>::infinity());
    phase_.load(numbers, in_hbm(in_, first, partitions, per));
    if (ascending_) phase_.tensor_scalar(numbers, numbers, isa::AluOp::kMultiply, -1);
    phase_.loop(per, [&](const Index& r) {
      const Ref row_data =
          phase_.at(data, in_.view.dtype, static_cast<int>(partitions), row(width_), r * width_);
      for (std::int64_t round = 0; round < rounds_; ++round) {
        const auto eight = [&](TileId t, DType dtype) {
          return phase_.at(t, dtype, static_cast<int>(partitions), row(kEight),
                           r * found + Index(round * kEight));
        };
        const Ref largest = eight(values, values_.view.dtype);
        phase_.emit(Engine::kVector, Opcode::kMax8, largest, row_data);
        phase_.emit(Engine::kVector, Opcode::kFindIndex8, eight(places, DType::kInt32), row_data,
                    largest);
        if (round + 1 == rounds_) continue;
        phase_.emit(Engine::kVector, Opcode::kMatchReplace8, row_data, row_data, largest).imm0 =
            -std::numeric_limits<double>::infinity();
      }
    });
    if (ascending_) {
      const Ref all = whole(values, values_, found);
      phase_.tensor_scalar(all, all, isa::AluOp::kMultiply, -1);
    }
    store(values_, values, first, partitions, per, Engine::kScalar);
    store(indices_, places, first, partitions, per, Engine::kGpSimd);
  }

  /// Numbers beyond k are left out on the way: transfers like long runs.
  void store(const SortedRows& rows, TileId found, const Index& first, std::int64_t partitions,
             std::int64_t per, Engine engine) {
    Ref out = kept(found, rows, partitions, per, rounds_ * kEight);
    if (rows.length % kEight != 0 && per > 1) {
      const Ref dense = kept(tile(rows, per * rows.length), rows, partitions, per, rows.length);
      phase_.copy(engine, dense, out);
      out = dense;
    }
    phase_.store(in_hbm(rows, first, partitions, per), out);
  }

  TileId tile(const SortedRows& rows, std::int64_t elements) {
    return phase_.sbuf(elements * isa::size_bytes(rows.view.dtype), 2);
  }

  /// The first `length` elements of each of the `per` rows, which are at a distance of `width`.
  Ref kept(TileId t, const SortedRows& rows, std::int64_t partitions, std::int64_t per,
           std::int64_t width) const {
    return phase_.at(
        t, rows.view.dtype, static_cast<int>(partitions),
        {{width, static_cast<std::int32_t>(per)}, {1, static_cast<std::int32_t>(rows.length)}});
  }
  static Ref in_hbm(const SortedRows& rows, const Index& first, std::int64_t partitions,
                    std::int64_t per) {
    return Phase::hbm(rows.view.buffer, rows.view.dtype, static_cast<int>(partitions),
                      per * rows.stride,
                      {{rows.stride, static_cast<std::int32_t>(per)},
                       {1, static_cast<std::int32_t>(rows.length)}},
                      Index(rows.view.offset) + first * rows.stride);
  }

  SortedRows in_, values_, indices_;
  bool ascending_;
  std::int64_t width_;  ///< of a row on chip: a search needs eight numbers at least
  Phase phase_;
  std::int64_t rounds_;
};

/// The first `length` numbers of each row in order; estimated where the search cannot do that.
void lower_search(Lowering& lowering, const Node& node, std::uint32_t index, bool ascending,
                  std::int64_t widest, double passes) {
  const HbmView in = lowering.input(node, 0), values = lowering.output(node, 0),
                indices = lowering.output(node, 1);
  const std::int64_t dim = Scalars(node.scalars).integer("dim", -1);
  const auto rows = rows_of(in), found = rows_of(values), places = rows_of(indices);
  const bool searched = rows && found && places &&
                        (dim == -1 || dim + 1 == static_cast<std::int64_t>(in.rank())) &&
                        rows->length <= widest && is_float(in.dtype) && values.dtype == in.dtype &&
                        indices.dtype == DType::kInt32;
  if (!searched) return lower_estimate(lowering, node, index, passes);
  const auto kernel =
      lowering.kernel(plain_name(node.op), index, node_flops(lowering.graph(), node));
  lowering.builder().append(TopK(kernel, *rows, *found, *places, ascending).run());
}

}  // namespace

void lower_top_k(Lowering& lowering, const Node& node, std::uint32_t index) {
  const bool ascending = !Scalars(node.scalars).flag("largest", true);
  lower_search(lowering, node, index, ascending, kWidest,
               lowering.builder().core().costs.top_k_passes);
}

void lower_sort(Lowering& lowering, const Node& node, std::uint32_t index) {
  const bool ascending = !Scalars(node.scalars).flag("descending", false);
  lower_search(lowering, node, index, ascending, kWidestSorted,
               lowering.builder().core().passes.sort);
}

}  // namespace trellis::device
