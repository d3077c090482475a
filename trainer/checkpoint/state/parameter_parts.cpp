#include "trainer/checkpoint/state/parameter_parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

using trainer::Parameter;
using trainer::PartitionBlock;
using trainer::RowRange;
using trainer::StateExtent;

/// Modules that hold several weights in one tensor, and what those are called when they are
/// separate.
struct FusedName {
  const char* end;  ///< of the parameter's name
  std::array<const char*, 3> parts;
  std::size_t count;
};
constexpr FusedName kFusedNames[] = {
    {".qkv_proj.weight_qkv", {".q_proj.weight", ".k_proj.weight", ".v_proj.weight"}, 3},
    {".qkv_proj.bias_qkv", {".q_proj.bias", ".k_proj.bias", ".v_proj.bias"}, 3},
    {".qkv_proj.weight_q", {".q_proj.weight"}, 1},
    {".qkv_proj.weight_k", {".k_proj.weight"}, 1},
    {".qkv_proj.weight_v", {".v_proj.weight"}, 1},
    {".qkv_proj.bias_q", {".q_proj.bias"}, 1},
    {".qkv_proj.bias_k", {".k_proj.bias"}, 1},
    {".qkv_proj.bias_v", {".v_proj.bias"}, 1},
    {".gate_up_proj.weight", {".gate_proj.weight", ".up_proj.weight"}, 2},
    {".gate_up_proj.bias", {".gate_proj.bias", ".up_proj.bias"}, 2},
};

/// A run of consecutive indices along one dimension of the local tensor.
struct AxisRun {
  std::string key;
  std::int64_t local_first = 0, count = 0;
  std::int64_t global_first = 0, global_size = 0;
  int copy = 0;  ///< among the TP ranks that hold it
};

/// The block's first un-sharded index; padding has none.
std::int64_t first_of(const PartitionBlock& block) {
  std::int64_t first = block.end();
  for (const RowRange& range : block.rows) {
    if (!range.is_padding()) first = std::min(first, range.first);
  }
  return first;
}

/// Key of each block and where the block begins in that key's tensor.
struct BlockKey {
  std::string key;
  std::int64_t base = 0, size = 0;
};

/// Dimension 0 of a parameter that other ranks have other experts of.
struct ExpertRows {
  std::int64_t first = 0, total = 0;  ///< un-sharded: where this rank's begin, and all
};

ExpertRows expert_rows(const Parameter& parameter) {
  const std::int64_t own = parameter.partition.dim == 0
                               ? trainer::unsharded_size(parameter.partition)
                               : parameter.tensor.size(0);
  if (!parameter.experts.is_stacked()) return {0, own};
  const std::int64_t of_one = own / parameter.experts.count;
  return {parameter.experts.first * of_one, parameter.experts.total * of_one};
}

std::vector<BlockKey> block_keys(const Parameter& parameter) {
  const std::vector<PartitionBlock>& blocks = parameter.partition.blocks;
  if (parameter.experts.is_stacked() && parameter.partition.dim == 0) {
    const ExpertRows rows = expert_rows(parameter);
    return std::vector<BlockKey>(blocks.size(), {parameter.name, -rows.first, rows.total});
  }
  for (const FusedName& fused : kFusedNames) {
    if (!parameter.name.ends_with(fused.end) || fused.count != blocks.size()) continue;
    const std::string path =
        parameter.name.substr(0, parameter.name.size() - std::string_view(fused.end).size());
    std::vector<BlockKey> keys;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::int64_t base = first_of(blocks[i]);
      keys.push_back({path + fused.parts[i], base, blocks[i].end() - base});
    }
    return keys;
  }
  return std::vector<BlockKey>(blocks.size(),
                               {parameter.name, 0, trainer::unsharded_size(parameter.partition)});
}

/// Lower TP ranks that hold the same row.
int copy_of(const PartitionBlock& block, std::int64_t row, const RankPlace& place) {
  if (block.copies == 1) return 0;
  int copy = 0;
  for (int rank = 0; rank < place.tp_rank; ++rank) {
    const std::vector<RowRange> held = trainer::rows_of(block, rank, place.tp_size);
    copy += std::any_of(held.begin(), held.end(), [row](const RowRange& range) {
      return !range.is_padding() && row >= range.first && row < range.end();
    });
  }
  return copy;
}

/// Runs along the sharded dimension. Ranges that continue each other are one run: separate heads
/// mostly lie side by side.
std::vector<AxisRun> sharded_runs(const Parameter& parameter, const RankPlace& place) {
  const std::vector<BlockKey> keys = block_keys(parameter);
  std::vector<AxisRun> runs;
  std::int64_t local = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const PartitionBlock& block = parameter.partition.blocks[i];
    for (const RowRange& range : trainer::rows_of(block, place.tp_rank, place.tp_size)) {
      if (!range.is_padding()) {
        const AxisRun run{keys[i].key,  local,
                          range.count,  range.first - keys[i].base,
                          keys[i].size, copy_of(block, range.first, place)};
        AxisRun* last = runs.empty() ? nullptr : &runs.back();
        const bool continues = last != nullptr && last->key == run.key && last->copy == run.copy &&
                               last->local_first + last->count == run.local_first &&
                               last->global_first + last->count == run.global_first;
        continues ? static_cast<void>(last->count += run.count) : runs.push_back(run);
      }
      local += range.count;
    }
  }
  return runs;
}

/// The whole dimension, of which every TP rank has a copy.
AxisRun whole_run(const std::string& key, std::int64_t size, const RankPlace& place) {
  return {key, 0, size, 0, size, place.tp_rank};
}

/// Dimension 0 when TP does not split it.
AxisRun row_run(const std::string& key, const Parameter& parameter, const RankPlace& place) {
  const ExpertRows rows = expert_rows(parameter);
  return {key, 0, parameter.tensor.size(0), rows.first, rows.total, place.tp_rank};
}

/// Takes a run along `axis` of a tensor of `local_shape`, and of its first axis the rows of `span`.
class PartMaker {
 public:
  PartMaker(const Parameter& parameter, const ParameterSpan& span, int dp_copy, DType dtype,
            const std::string& prefix)
      : parameter_(parameter), span_(span), dp_copy_(dp_copy), dtype_(dtype), prefix_(prefix) {}

  void add(const AxisRun& run, std::size_t axis, const Shape& local_shape, bool split_rows) {
    Box local{Shape(local_shape.size(), 0), local_shape};
    ShardedTensor tensor;
    if (!local_shape.empty()) {
      local.offset[axis] = run.local_first;
      local.shape[axis] = run.count;
    }
    tensor.global_shape = local_shape;
    if (!local_shape.empty()) tensor.global_shape[axis] = run.global_size;
    if (split_rows) {
      Box rows{Shape(local_shape.size(), 0), local_shape};
      rows.offset[0] = span_.first_row;
      rows.shape[0] = span_.rows;
      local = intersection(local, rows);
    }
    if (local.elements() == 0) return;
    tensor.global_offset = local.offset;
    if (!local_shape.empty()) tensor.global_offset[axis] += run.global_first - run.local_first;
    if (split_rows && axis > 0) {
      const ExpertRows rows = expert_rows(parameter_);
      tensor.global_shape[0] = rows.total;
      tensor.global_offset[0] += rows.first;
    }
    if (split_rows) local.offset[0] -= span_.first_row;
    tensor.key = prefix_ + run.key;
    tensor.dtype = dtype_;
    tensor.local_shape = local.shape;
    tensor.replica_id = {parameter_.shared ? 1 : 0, run.copy, dp_copy_};
    tensor.allow_shape_mismatch = is_vocabulary_weight(run.key);
    parts_.push_back({std::move(tensor), std::move(local)});
  }
  [[nodiscard]] std::vector<ShardedPart> take() { return std::move(parts_); }

 private:
  const Parameter& parameter_;
  const ParameterSpan& span_;
  int dp_copy_;
  DType dtype_;
  const std::string& prefix_;
  std::vector<ShardedPart> parts_;
};

}  // namespace

std::vector<ShardedPart> parts_of(const Parameter& parameter, const ParameterSpan& span,
                                  const RankPlace& place, int dp_copy, DType dtype,
                                  const std::string& prefix) {
  PartMaker maker(parameter, span, dp_copy, dtype, prefix);
  const Shape shape = parameter.tensor.sizes().vec();
  const int dim = parameter.partition.dim;
  const auto axis = static_cast<std::size_t>(std::max(dim, 0));
  const std::vector<AxisRun> runs =
      dim >= 0 ? sharded_runs(parameter, place)
               : std::vector<AxisRun>{row_run(parameter.name, parameter, place)};
  switch (span.extent) {
    case StateExtent::kElements:
      for (const AxisRun& run : runs) maker.add(run, axis, shape, true);
      break;
    case StateExtent::kRows:
      if (dim <= 0) {
        for (const AxisRun& run : runs) maker.add(run, 0, {shape[0]}, true);
      } else {
        maker.add(row_run(block_keys(parameter).front().key, parameter, place), 0, {shape[0]},
                  true);
      }
      break;
    case StateExtent::kColumns:
      if (dim == 1) {
        for (const AxisRun& run : runs) maker.add(run, 0, {shape[1]}, false);
      } else {
        maker.add(whole_run(parameter.name, shape[1], place), 0, {shape[1]}, false);
      }
      break;
    case StateExtent::kTensor: maker.add(whole_run(parameter.name, 1, place), 0, {}, false); break;
  }
  return maker.take();
}

}  // namespace trellis::checkpoint
