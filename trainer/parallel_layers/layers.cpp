#include "trainer/parallel_layers/layers.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/lora.h"  // pair: adapters are layers
#include "trainer/parallel_layers/mappings.h"
#include "trainer/parallel_layers/sequence_parallel.h"

namespace trellis::trainer {
namespace {

/// Sum of the ranks' parts of an activation: in full, or this rank's part of the sequence.
at::Tensor reduce_activation(const at::Tensor& partial, const ParallelGroup& tp,
                             bool sequence_parallel, at::ScalarType dtype) {
  return sequence_parallel ? reduce_scatter_to_sequence_parallel_region(partial, tp, dtype)
                           : reduce_from_tensor_model_parallel_region(partial, tp, dtype);
}

}  // namespace

ParallelEmbedding::ParallelEmbedding(const ModuleContext& context, const std::string& path,
                                     std::int64_t num_embeddings, std::int64_t embedding_dim,
                                     const ParallelEmbeddingOptions& options)
    : weight_(make_parameter(context, {path + ".weight",
                                       {num_embeddings, embedding_dim},
                                       options.shard_across_embedding ? 1 : 0,
                                       1,
                                       options.init})
                  .tensor),
      tp_(context.tp()),
      reduce_dtype_(options.reduce_dtype.value_or(context.reduce_dtype)),
      sequence_parallel_(options.sequence_parallel_enabled.value_or(context.sequence_parallel)),
      shard_across_embedding_(options.shard_across_embedding),
      scope_(context.scope(path)) {
  if (is_adapted(context, path)) {
    if (shard_across_embedding_)
      throw ConfigError(path +
                        ": takes no adapter: the rows of A are sharded as those of the weight: "
                        "expected shard_across_embedding false, got true");
    lora_ =
        std::make_shared<const EmbeddingLora>(context_of_adapter(context, sequence_parallel_),
                                              *context.lora, path, num_embeddings, embedding_dim);
  }
  if (!options.padding_idx) return;
  if (*options.padding_idx < 0 || *options.padding_idx >= num_embeddings) {
    throw ConfigError(c10::str(path, ": padding_idx must be a token: expected 0 … ",
                               num_embeddings - 1, ", got ", *options.padding_idx));
  }
  const std::int64_t row =
      *options.padding_idx - (shard_across_embedding_ ? 0 : tp_.rank * weight_.size(0));
  if (row >= 0 && row < weight_.size(0)) padding_row_ = row;
}

at::Tensor ParallelEmbedding::forward(const at::Tensor& input_ids) const {
  const Scope scope = scope_.enter();
  const at::Tensor output = own_output(input_ids.t());
  return scope_.leave(lora_ ? lora_->add_to(output, input_ids) : output);
}

at::Tensor ParallelEmbedding::own_output(const at::Tensor& ids) const {
  if (tp_.size == 1) return look_up(ids);
  if (shard_across_embedding_) return look_up_own_columns(ids);
  return reduce_activation(look_up_own_rows(ids), tp_, sequence_parallel_, reduce_dtype_);
}

at::Tensor ParallelEmbedding::look_up(const at::Tensor& ids) const {
  return at::embedding(weight_, ids, padding_row_);
}

/// Rows of other ranks' tokens are zero: the sum over TP completes them.
at::Tensor ParallelEmbedding::look_up_own_rows(const at::Tensor& ids) const {
  const std::int64_t count = weight_.size(0);
  const at::Tensor local = ids - tp_.rank * count;
  const at::Tensor foreign = local.lt(0).logical_or_(local.ge(count));
  return look_up(local.masked_fill(foreign, 0)).masked_fill_(foreign.unsqueeze(-1), 0);
}

at::Tensor ParallelEmbedding::look_up_own_columns(const at::Tensor& ids) const {
  const at::Tensor whole = gather_from_tensor_model_parallel_region(look_up(ids), tp_);
  return sequence_parallel_ ? scatter_to_sequence_parallel_region(whole, tp_) : whole;
}

ColumnParallelLinear::ColumnParallelLinear(const ModuleContext& context, const std::string& path,
                                           std::int64_t input_size,
                                           const std::vector<Output>& outputs,
                                           const ColumnParallelLinearOptions& options)
    : gather_output_(options.gather_output) {
  shards_.tp = context.tp();
  shards_.sequence_parallel = options.sequence_parallel_enabled.value_or(context.sequence_parallel);
  shards_.reduce_dtype = options.reduce_dtype.value_or(context.reduce_dtype);
  if (gather_output_ && shards_.sequence_parallel) {
    throw ConfigError(c10::str(path,
                               ": gather_output and sequence_parallel_enabled exclude each other: "
                               "expected one of them, got both "
                               "(tensor_model_parallel_size ",
                               shards_.tp.size, "); set gather_output to false"));
  }
  std::vector<at::Tensor>& biases = options.skip_bias_add ? skipped_biases_ : shards_.biases;
  for (const Output& output : outputs) {
    const std::string name = output.name.empty() ? path : path + "." + output.name;
    WeightSpec weight{name + ".weight", {output.size, input_size}, 0, options.stride, options.init};
    shards_.weights.push_back(make_parameter(context, weight).tensor);
    if (options.keep_master_weight && !context.shape_only)
      master_weights_.push_back(draw_full_weight(context, weight));
    if (options.bias) {
      Parameter& bias = make_parameter(
          context, {name + ".bias", {output.size}, 0, options.stride, WeightInit::zeros()});
      bias.weight_decay = context.decay_biases;
      biases.push_back(bias.tensor);
    }
  }
  if (context.lora != nullptr)
    lora_ = std::make_shared<const ColumnParallelLora>(
        context_of_adapter(context, shards_.sequence_parallel), *context.lora, path, input_size,
        outputs, /*alias=*/"", options.stride);
}

std::vector<at::Tensor> ColumnParallelLinear::forward_with(const at::Tensor& input,
                                                           const ColumnShards& shards) const {
  std::vector<at::Tensor> outputs = linear_with_async_communication(input, shards);
  if (lora_) lora_->add_to(outputs, input);
  if (gather_output_) {
    for (at::Tensor& output : outputs)
      output = gather_from_tensor_model_parallel_region(output, shards.tp);
  }
  return outputs;
}

std::vector<at::Tensor> ColumnParallelLinear::forward(const at::Tensor& input) const {
  return forward_with(input, shards_);
}

std::vector<at::Tensor> ColumnParallelLinear::forward(const at::Tensor& input,
                                                      const at::Tensor& weight) const {
  ColumnShards shards = shards_;
  shards.weights = {weight};
  return forward_with(input, shards);
}

at::Tensor ColumnParallelLinear::bias(std::size_t output) const {
  if (skipped_biases_.empty()) return {};
  const at::Tensor& own = skipped_biases_[output];
  return gather_output_ ? gather_from_tensor_model_parallel_region(own, shards_.tp) : own;
}

RowParallelLinear::RowParallelLinear(const ModuleContext& context, const std::string& path,
                                     std::int64_t input_size, std::int64_t output_size,
                                     const RowParallelLinearOptions& options)
    : tp_(context.tp()),
      reduce_dtype_(options.reduce_dtype.value_or(context.reduce_dtype)),
      sequence_parallel_(options.sequence_parallel_enabled.value_or(context.sequence_parallel)),
      input_is_parallel_(options.input_is_parallel),
      skip_bias_add_(options.skip_bias_add),
      reduce_output_(options.reduce_output),
      fully_sharded_(context.fully_sharded != nullptr) {
  if (sequence_parallel_ && !input_is_parallel_) {
    throw ConfigError(
        c10::str(path, ": sequence_parallel_enabled needs input_is_parallel: expected an input of ",
                 input_size / tp_.size, " columns per rank, got input_is_parallel false (",
                 input_size, " columns); set input_is_parallel"));
  }
  if (options.bias && !reduce_output_ && !skip_bias_add_) {
    throw ConfigError(c10::str(path, ": reduce_output false leaves ", tp_.size,
                               " parts of a sum and the bias would be added to each: "
                               "expected bias false or skip_bias_add, got bias true"));
  }
  const WeightSpec weight{path + ".weight", {output_size, input_size}, 1, options.stride,
                          options.init,     options.partition};
  weight_ = make_parameter(context, weight).tensor;
  if (options.keep_master_weight && !context.shape_only)
    master_weight_ = draw_full_weight(context, weight);
  if (options.bias) {
    Parameter& parameter =
        make_parameter(context, {path + ".bias", {output_size}, -1, 1, WeightInit::zeros()});
    parameter.sequence_parallel_enabled = sequence_parallel_;
    parameter.weight_decay = context.decay_biases;
    bias_ = parameter.tensor;
  }
  if (!is_adapted(context, path)) return;
  if (!reduce_output_ || options.stride > 1)
    throw ConfigError(c10::str(path,
                               ": takes no adapter, which is added once and sharded in one block: "
                               "expected reduce_output true and stride 1, got ",
                               reduce_output_ ? "true" : "false", " and ", options.stride));
  lora_ = std::make_shared<const RowParallelLora>(context_of_adapter(context, sequence_parallel_),
                                                  *context.lora, path, input_size, output_size,
                                                  options.partition);
}

at::Tensor RowParallelLinear::forward(const at::Tensor& input) const {
  const at::Tensor part =
      input_is_parallel_ ? input : scatter_to_tensor_model_parallel_region(input, tp_);
  at::Tensor output =
      fully_sharded_ ? linear_with_async_communication(
                           part, {{weight_}, {}, ParallelGroup{}, false, part.scalar_type()})[0]
                     : at::linear(part, weight_);
  if (reduce_output_) output = reduce_activation(output, tp_, sequence_parallel_, reduce_dtype_);
  if (bias_.defined() && !skip_bias_add_) output = output.add(bias_);
  return lora_ ? lora_->add_to(output, part) : output;
}

}  // namespace trellis::trainer
