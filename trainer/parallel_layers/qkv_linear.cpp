#include "trainer/parallel_layers/qkv_linear.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/lora.h"
#include "trainer/parallel_layers/mappings.h"
#include "trainer/parallel_layers/qkv_lora.h"  // pair: adapters are layers

namespace trellis::trainer {
namespace {

/// Where a rank is: which set of key/value heads it holds, and which copy of it.
struct KvPlace {
  std::int64_t set, copy;
};

KvPlace kv_place(int rank, int tp, int multiplier, ReplicaOrder order) {
  const int sets = tp / multiplier;
  return order == ReplicaOrder::kAdjacent ? KvPlace{rank / multiplier, rank % multiplier}
                                          : KvPlace{rank % sets, rank / sets};
}

[[noreturn]] void refuse(const std::string& path, const std::string& rule,
                         const std::string& expected, std::int64_t got) {
  throw ConfigError(c10::str(path, ": ", rule, ": expected ", expected, ", got ", got));
}

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

void check_heads(const AttentionShape& shape, int tp, int multiplier, const std::string& path) {
  const std::int64_t heads = shape.num_heads, kv_heads = shape.num_kv_heads;
  if (multiplier < 1 || tp % multiplier != 0) {
    refuse(path, "kv_size_multiplier must divide tensor_model_parallel_size",
           c10::str("a divisor of ", tp), multiplier);
  }
  if (kv_heads < 1 || heads % kv_heads != 0)
    refuse(path, "num_kv_heads must divide the attention heads", c10::str("a divisor of ", heads),
           kv_heads);
}

/// Every rank must get as many heads as the others.
void check_unpadded(const AttentionShape& shape, int tp, int multiplier, const std::string& path) {
  const std::int64_t heads = shape.num_heads, kv_heads = shape.num_kv_heads;
  if (heads % tp != 0) {
    refuse(path, "tensor_model_parallel_size must divide the attention heads",
           c10::str("a divisor of ", heads), tp);
  }
  if (kv_heads * multiplier % tp != 0) {
    refuse(path,
           c10::str("tensor_model_parallel_size must divide num_kv_heads · kv_size_multiplier = ",
                    kv_heads, " · ", multiplier),
           c10::str("a divisor of ", kv_heads * multiplier), tp);
  }
  if (heads % (kv_heads * multiplier) != 0) {
    refuse(path, "each copy of a key/value head must serve as many query heads as the others",
           c10::str("attention heads in a multiple of num_kv_heads · kv_size_multiplier = ",
                    kv_heads * multiplier),
           heads);
  }
}

/// Neighbouring ranges become one.
void append(std::vector<RowRange>& rows, RowRange range) {
  if (range.count == 0) return;
  if (!rows.empty() && !range.is_padding() && rows.back().end() == range.first) {
    rows.back().count += range.count;
  } else {
    rows.push_back(range);
  }
}

Partition shifted(Partition partition, std::int64_t by) {
  for (PartitionBlock& block : partition.blocks) {
    for (RowRange& range : block.rows) range.first += range.is_padding() ? 0 : by;
  }
  return partition;
}

}  // namespace

QkvPartition partition_qkv(const AttentionShape& shape, int tp, int multiplier, ReplicaOrder order,
                           const std::string& path, bool pad_heads) {
  check_heads(shape, tp, multiplier, path);
  if (!pad_heads) check_unpadded(shape, tp, multiplier, path);
  const std::int64_t d = shape.head_dim(), group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t heads_per_set =
      round_up(shape.num_kv_heads, tp / multiplier) * multiplier / tp;
  const std::int64_t queries_per_copy = round_up(group, multiplier) / multiplier;
  PartitionBlock query, key_value{{}, multiplier};
  for (int rank = 0; rank < tp; ++rank) {
    const KvPlace place = kv_place(rank, tp, multiplier, order);
    for (std::int64_t head = place.set * heads_per_set; head < (place.set + 1) * heads_per_set;
         ++head) {
      const bool is_real = head < shape.num_kv_heads;
      const std::int64_t first = place.copy * queries_per_copy;
      const std::int64_t real_queries =
          is_real ? std::clamp<std::int64_t>(group - first, 0, queries_per_copy) : 0;
      key_value.rows.push_back(is_real ? RowRange{head * d, d} : RowRange::padding(d));
      append(query.rows, {(head * group + first) * d, real_queries * d});
      append(query.rows, RowRange::padding((queries_per_copy - real_queries) * d));
    }
  }
  return {{0, {query}}, {0, {key_value}}, {1, {query}}};
}

std::vector<bool> real_query_heads(const QkvPartition& partition, std::int64_t head_dim, int rank,
                                   int tp) {
  std::vector<bool> real;
  for (const RowRange& range : rows_of(partition.query.blocks[0], rank, tp)) {
    real.insert(real.end(), static_cast<std::size_t>(range.count / head_dim), !range.is_padding());
  }
  return real;
}

namespace {

/// Undefined when every head is the model's.
at::Tensor make_head_mask(const ModuleContext& context, const std::vector<bool>& real) {
  if (std::find(real.begin(), real.end(), false) == real.end()) return {};
  at::Tensor mask = at::empty({static_cast<std::int64_t>(real.size()), 1}, at::kDouble);
  for (std::size_t i = 0; i < real.size(); ++i) mask.data_ptr<double>()[i] = real[i] ? 1 : 0;
  return mask.to(context.dtype).to(context.device);
}

}  // namespace

GQAQKVColumnParallelLinear::GQAQKVColumnParallelLinear(const ModuleContext& context,
                                                       const std::string& path,
                                                       const AttentionShape& shape,
                                                       const QkvLinearOptions& options)
    : shape_(shape),
      partition_(partition_qkv(
          shape, context.tp().size,
          options.kv_size_multiplier.value_or(context.parallel->get_kv_shared_group().size),
          context.parallel->kv_replica_order(), path,
          options.pad_heads.value_or(context.pad_model))),
      head_mask_(make_head_mask(context, real_query_heads(partition_, shape.head_dim(),
                                                          context.tp().rank, context.tp().size))),
      gather_output_(options.gather_output) {
  shards_.tp = context.tp();
  shards_.sequence_parallel = options.sequence_parallel_enabled.value_or(context.sequence_parallel);
  shards_.reduce_dtype = options.reduce_dtype.value_or(context.reduce_dtype);
  shards_.kv_shared = context.parallel->get_kv_shared_group();
  if (const auto asked = options.kv_size_multiplier; asked && *asked != shards_.kv_shared.size) {
    refuse(path, "kv_size_multiplier must be the one that the parallel state was initialised with",
           c10::str(shards_.kv_shared.size), *asked);
  }
  if (gather_output_ && shards_.sequence_parallel) {
    throw ConfigError(c10::str(path,
                               ": gather_output and sequence_parallel_enabled exclude each other: "
                               "expected one of them, got both "
                               "(tensor_model_parallel_size ",
                               shards_.tp.size, "); set gather_output to false"));
  }
  options.fuse_qkv ? make_fused(context, path, options) : make_separate(context, path, options);
  if (is_adapted(context, path))
    lora_ =
        std::make_shared<const GqaQkvLora>(context_of_adapter(context, shards_.sequence_parallel),
                                           *context.lora, path, shape, options);
}

void GQAQKVColumnParallelLinear::make_one(const ModuleContext& context, WeightSpec spec,
                                          bool replicated, std::vector<at::Tensor>& list) {
  Parameter& parameter = make_parameter(context, spec);
  if (replicated) parameter.kv_shared_group = shards_.kv_shared;
  if (parameter.tensor.dim() == 1) parameter.weight_decay = context.decay_biases;
  list.push_back(parameter.tensor);
}

void GQAQKVColumnParallelLinear::make_fused(const ModuleContext& context, const std::string& path,
                                            const QkvLinearOptions& options) {
  const std::int64_t q = shape_.num_heads * shape_.head_dim(),
                     kv = shape_.num_kv_heads * shape_.head_dim();
  Partition fused = partition_.query;
  fused.blocks.push_back(shifted(partition_.key_value, q).blocks[0]);
  fused.blocks.push_back(shifted(partition_.key_value, q + kv).blocks[0]);
  const auto parts = [&](const std::string& kind) {
    return std::vector<WeightPart>{
        {path + kind + "_q", q}, {path + kind + "_k", kv}, {path + kind + "_v", kv}};
  };
  make_one(context,
           {path + ".weight_qkv",
            {q + 2 * kv, shape_.hidden_size},
            0,
            3,
            options.init,
            fused,
            parts(".weight")},
           true, shards_.weights);
  if (options.bias)
    make_one(context, {path + ".bias_qkv", {q + 2 * kv}, 0, 3, WeightInit::zeros(), fused}, true,
             shards_.biases);
  shards_.replicated_rows = {2 * partition_.key_value.blocks[0].laid_out() / shards_.tp.size};
}

void GQAQKVColumnParallelLinear::make_separate(const ModuleContext& context,
                                               const std::string& path,
                                               const QkvLinearOptions& options) {
  for (const char* which : {"q", "k", "v"}) {
    const bool is_query = *which == 'q';
    const std::int64_t rows =
        (is_query ? shape_.num_heads : shape_.num_kv_heads) * shape_.head_dim();
    const Partition& partition = is_query ? partition_.query : partition_.key_value;
    make_one(context,
             {path + ".weight_" + which, {rows, shape_.hidden_size}, 0, 1, options.init, partition},
             !is_query, shards_.weights);
    if (options.bias)
      make_one(context, {path + ".bias_" + which, {rows}, 0, 1, WeightInit::zeros(), partition},
               !is_query, shards_.biases);
    shards_.replicated_rows.push_back(is_query ? 0
                                               : partition.blocks[0].laid_out() / shards_.tp.size);
  }
}

/// The ranks' parts in their natural order, each row once.
at::Tensor GQAQKVColumnParallelLinear::gathered(const at::Tensor& own,
                                                const Partition& partition) const {
  const at::Tensor all = gather_from_tensor_model_parallel_region(own, shards_.tp);
  const PartitionBlock& block = partition.blocks[0];
  std::vector<at::Tensor> heads;
  const std::int64_t d = shape_.head_dim(), count = block.end() / d;
  for (std::int64_t head = 0; head < count; ++head) {
    std::int64_t position = 0;
    for (const RowRange& range : block.rows) {
      if (!range.is_padding() && range.first <= head * d && head * d < range.end()) {
        heads.push_back(all.narrow(-1, position + head * d - range.first, d));
        break;
      }
      position += range.count;
    }
  }
  return at::cat(heads, -1);
}

at::Tensor GQAQKVColumnParallelLinear::mask_padded_heads(const at::Tensor& attended) const {
  return head_mask_.defined() ? attended.mul(head_mask_) : attended;
}

GQAQKVColumnParallelLinear::Output GQAQKVColumnParallelLinear::forward(
    const at::Tensor& input) const {
  std::vector<at::Tensor> parts = linear_with_async_communication(input, shards_);
  if (parts.size() == 1) {
    const std::int64_t kv = shards_.replicated_rows[0] / 2;
    parts = parts[0].split_with_sizes({parts[0].size(-1) - 2 * kv, kv, kv}, -1);
  }
  if (gather_output_ && shards_.tp.size > 1) {
    parts = {gathered(parts[0], partition_.query), gathered(parts[1], partition_.key_value),
             gathered(parts[2], partition_.key_value)};
  }
  const auto by_head = [d = shape_.head_dim()](const at::Tensor& projected) {
    return projected.unflatten(-1, {-1, d});
  };
  Output output{by_head(parts[0]), by_head(parts[1]), by_head(parts[2])};
  if (lora_) lora_->add_to(output, input);
  return output;
}

}  // namespace trellis::trainer
