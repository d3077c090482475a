// Rules of the systolic array: what fits, which modes and dtypes go together, where operands lie
// (NKI ISA nc_matmul, nc_matmul_mx).
#include <fmt/format.h>

#include "sim/isa/features.h"
#include "sim/isa/rules.h"

namespace trellis::sim::isa {
namespace {

using Violations = std::vector<std::string>;

constexpr int kTagsPerWord = 4;
constexpr int kSparseRatios[] = {2, 3, 4};  // 4:8, 4:12, 4:16

/// How many values of a partition belong to one column: the outermost dimension of [P, r, columns].
std::int64_t outer_count(const AccessPattern& a) { return a.num_dims == 0 ? 1 : a.dims[0].count; }

std::int64_t weight_columns(const Instruction& load) {
  return load.mode == MatmulMode::kDoubleRow ? load.src0.elements_per_partition() / 2
                                             : load.src0.elements_per_partition();
}

std::int64_t moving_columns(const Instruction& i) {
  const bool rows = i.mode == MatmulMode::kDoubleRow || i.mode == MatmulMode::kSparse;
  return i.src0.elements_per_partition() / (rows ? outer_count(i.src0) : 1);
}

void check_scales(const Instruction& i, Violations& out) {
  if (!is_mx(i.src0.dtype)) {
    if (i.src1.present() && i.mode != MatmulMode::kSparse)
      out.push_back("src1 is for the scales of MX data and the tags of sparse weights");
    return;
  }
  if (i.mode != MatmulMode::kDense)
    out.push_back(fmt::format("MX data cannot be used in {} mode", name(i.mode)));
  if (!i.src1.present()) {
    out.push_back("MX data have no scales in src1");
    return;
  }
  const int rows = (i.src0.num_partitions + kMxScaleRows - 1) / kMxScaleRows;
  if (i.src1.dtype != DType::kUInt8)
    out.push_back(fmt::format("src1 holds scales and must be uint8, is {}", name(i.src1.dtype)));
  if (i.src1.num_partitions != rows ||
      i.src1.elements_per_partition() != i.src0.elements_per_partition()) {
    out.push_back(fmt::format("src1 is {} × {}, the scales of src0 are {} × {}",
                              i.src1.num_partitions, i.src1.elements_per_partition(), rows,
                              i.src0.elements_per_partition()));
  }
}

void check_double_row(const Instruction& i, Violations& out) {
  if (!is_fp8(i.src0.dtype))
    out.push_back(fmt::format("double_row needs fp8, src0 is {}", name(i.src0.dtype)));
  if (i.src0.num_dims < 2 || outer_count(i.src0) != 2)
    out.push_back("double_row needs src0 as [partitions, 2, columns]");
}

void check_tags(const Instruction& load, Violations& out) {
  if (!load.src1.present()) {
    out.push_back("sparse weights have no tags in src1");
    return;
  }
  const std::int64_t words = (load.src0.elements_per_partition() + kTagsPerWord - 1) / kTagsPerWord;
  if (size_bytes(load.src1.dtype) != 2)
    out.push_back(fmt::format("src1 holds tags of 16 bits, is {}", name(load.src1.dtype)));
  if (load.src1.num_partitions != load.src0.num_partitions ||
      load.src1.elements_per_partition() != words) {
    out.push_back(fmt::format("src1 is {} × {}, the tags of src0 are {} × {}",
                              load.src1.num_partitions, load.src1.elements_per_partition(),
                              load.src0.num_partitions, words));
  }
}

void check_sparse_moving(const Instruction& i, Violations& out) {
  const std::int64_t ratio = outer_count(i.src0);
  for (const int legal : kSparseRatios) {
    if (ratio == legal && i.src0.num_dims >= 2) return;
  }
  out.push_back(fmt::format(
      "sparse needs src0 as [partitions, r, columns] with r of 2, 3 or 4, r is {}", ratio));
}

void check_halves(const Instruction& i, Violations& out) {
  if (i.src0.dtype != DType::kFp32)
    out.push_back(fmt::format("{} needs fp32, src0 is {}", name(i.mode), name(i.src0.dtype)));
}

bool is_half(MatmulMode mode) {
  return mode == MatmulMode::kFp32Low || mode == MatmulMode::kFp32High;
}

/// Values that pass through the array keep their type.
void check_through(const Instruction& i, const RuleContext& context, Violations& out) {
  if (i.accumulate) out.push_back("transpose mode does not accumulate");
  if (context.stationary != nullptr && i.dst.dtype != context.stationary->src0.dtype)
    out.push_back(fmt::format("transpose mode keeps the weights' {}, dst is {}",
                              name(context.stationary->src0.dtype), name(i.dst.dtype)));
}

void check_result(const Instruction& i, const RuleContext& context, Violations& out) {
  const bool bf16 = i.dst.dtype == DType::kBf16 && context.limits.core_version >= 4;
  if (i.mode == MatmulMode::kTranspose) {
    check_through(i, context, out);
  } else if (i.dst.dtype != DType::kFp32 && !bf16) {
    out.push_back(fmt::format("dst is {}, the array of NeuronCore-v{} writes fp32{}",
                              name(i.dst.dtype), context.limits.core_version,
                              context.limits.core_version >= 4 ? " or bf16" : ""));
  }
  const std::int64_t columns = i.dst.elements_per_partition();
  const std::int64_t most = static_cast<std::int64_t>(context.limits.max_moving) * (bf16 ? 2 : 1);
  if (columns > most)
    out.push_back(fmt::format("moving operand has {} columns, at most {} fit", columns, most));
  if (moving_columns(i) != columns)
    out.push_back(fmt::format("dst has {} columns, src0 {}", columns, moving_columns(i)));
}

/// Checks the moving operand and the result against the weights in the array.
void check_against_weights(const Instruction& i, const Instruction& load, const Limits& limits,
                           Violations& out) {
  const AccessPattern& weights = load.src0;
  if (load.mode != i.mode)
    out.push_back(fmt::format("runs in {} mode, its weights were loaded in {} mode", name(i.mode),
                              name(load.mode)));
  if (is_mx(weights.dtype) != is_mx(i.src0.dtype))
    out.push_back(fmt::format("src0 is {}, its weights are {}: both or neither are MX",
                              name(i.src0.dtype), name(weights.dtype)));
  if (weights.num_partitions != i.src0.num_partitions) {
    out.push_back(fmt::format("src0 has {} partitions, the stationary operand {}",
                              i.src0.num_partitions, weights.num_partitions));
  }
  if (weights.start_partition != i.src0.start_partition) {
    out.push_back(fmt::format(
        "src0 starts at partition {}, the stationary operand at {}: both feed the same rows",
        i.src0.start_partition, weights.start_partition));
  }
  if (weight_columns(load) != i.dst.num_partitions) {
    out.push_back(fmt::format("dst has {} partitions, the stationary operand {} columns",
                              i.dst.num_partitions, weight_columns(load)));
  }
  const bool tile_of_32 = weights.start_partition % 64 != 0 && i.dst.start_partition % 64 != 0;
  if (tile_of_32 && limits.core_version < 3)
    out.push_back("tiles both rows and columns of the array by 32, which needs NeuronCore-v3");
  if (i.mode == MatmulMode::kDoubleRow && i.dst.start_partition != 0)
    out.push_back("double_row allows no column tiling: dst must start at partition 0");
}

}  // namespace

void check_tensor_places(const Instruction& i, const RuleContext& context, Violations& out) {
  const auto& source = context.program.buffers[i.src0.buffer];
  if (source.space != MemorySpace::kSbuf)
    out.push_back(fmt::format("src0 must lie in SBUF, lies in {}", name(source.space)));
  if (!i.dst.present()) return;
  const auto& target = context.program.buffers[i.dst.buffer];
  if (target.space != MemorySpace::kPsum)
    out.push_back(fmt::format("dst must lie in PSUM, lies in {}", name(target.space)));
}

void check_load_stationary(const Instruction& i, const RuleContext& context, Violations& out) {
  check_tensor_places(i, context, out);
  const std::int64_t columns = weight_columns(i);
  if (columns > context.limits.max_stationary ||
      i.src0.num_partitions > context.limits.max_stationary) {
    out.push_back(fmt::format("stationary operand is {} × {}, at most {} × {} fit",
                              i.src0.num_partitions, columns, context.limits.max_stationary,
                              context.limits.max_stationary));
  }
  check_scales(i, out);
  if (i.mode == MatmulMode::kDoubleRow) check_double_row(i, out);
  if (i.mode == MatmulMode::kSparse) check_tags(i, out);
  if (is_half(i.mode)) check_halves(i, out);
}

void check_matmul(const Instruction& i, const RuleContext& context, Violations& out) {
  check_tensor_places(i, context, out);
  check_scales(i, out);
  if (i.mode == MatmulMode::kDoubleRow) check_double_row(i, out);
  if (i.mode == MatmulMode::kSparse) check_sparse_moving(i, out);
  if (is_half(i.mode)) check_halves(i, out);
  check_result(i, context, out);
  if (context.stationary == nullptr) {
    out.push_back("no load_stationary precedes it in its queue");
  } else {
    check_against_weights(i, *context.stationary, context.limits, out);
  }
}

}  // namespace trellis::sim::isa
