#include "trainer/parallel_layers/lora.h"

#include <ATen/ops/linear.h>

namespace trellis::trainer {
namespace {

/// Columns of a row-parallel layer's input on this rank; its heads need not be consecutive.
ShardPlace columns_of(std::int64_t size, const std::optional<Partition>& partition,
                      const ParallelGroup& tp) {
  if (!partition) return ShardPlace::part(2, size / tp.size, tp);
  ShardPlace place{2, size, rows_of(partition->blocks[0], tp.rank, tp.size)};
  for (RowRange& range : place.rows) {
    if (range.is_padding()) range.first = 0;  // zeros, whatever drops them
  }
  return place;
}

}  // namespace

WeightInit adapter_init(const LoraSection& lora) {
  return lora.gaussian ? WeightInit(1.0 / lora.rank) : WeightInit{};
}

Parameter& make_adapter(const ModuleContext& context, const WeightSpec& spec) {
  Parameter& parameter = make_parameter(context, spec);
  parameter.adapter = true;
  // On every TP rank: with sequence parallelism each sees a part of the sequence.
  parameter.sequence_parallel_enabled = spec.partition_dim < 0 && context.sequence_parallel;
  return parameter;
}

ShardPlace mask_place(const at::Tensor& input, int dim, bool is_part, const ParallelGroup& tp) {
  return is_part ? ShardPlace::part(dim, input.size(dim), tp)
                 : ShardPlace{dim, input.size(dim), {{0, input.size(dim)}}};
}

bool is_adapted(const ModuleContext& context, const std::string& path) {
  return context.lora != nullptr && context.lora->targets_module(path);
}

ModuleContext context_of_adapter(const ModuleContext& context, bool sequence_parallel) {
  ModuleContext inner = context;
  inner.lora = nullptr;
  inner.sequence_parallel = sequence_parallel;
  return inner;
}

bool is_trained(const LoraSection& lora, const Parameter& parameter, const std::string& alias) {
  if (parameter.adapter) return true;
  const std::size_t dot = parameter.name.rfind('.');
  const std::string module = parameter.name.substr(0, dot);
  if (lora.saves_module(module)) return true;
  if (lora.bias == "none" || parameter.name.compare(dot + 1, 4, "bias") != 0) return false;
  return lora.bias == "all" || lora.targets_module(module, alias);
}

ColumnParallelLora::ColumnParallelLora(const ModuleContext& context, const LoraSection& lora,
                                       const std::string& path, std::int64_t input_size,
                                       const std::vector<ColumnParallelLinear::Output>& outputs,
                                       const std::string& alias, int stride)
    : scale_(lora.scale()),
      position_(context.position),
      dropout_(context, path + ".lora_dropout", lora.dropout) {
  for (std::size_t place = 0; place < outputs.size(); ++place) {
    const ColumnParallelLinear::Output& output = outputs[place];
    const std::string name = output.name.empty() ? path : path + "." + output.name;
    if (!lora.targets_module(name, alias)) continue;
    places_.push_back(place);
    a_.push_back(
        make_adapter(context,
                     {name + ".lora_A.weight", {lora.rank, input_size}, -1, 1, adapter_init(lora)})
            .tensor);
    const at::Tensor b =
        make_adapter(
            context,
            {name + ".lora_B.weight", {output.size, lora.rank}, 0, stride, WeightInit::zeros()})
            .tensor;
    b_.push_back({{b}, {}, context.tp(), context.sequence_parallel, context.reduce_dtype});
  }
}

void ColumnParallelLora::add_to(std::vector<at::Tensor>& outputs, const at::Tensor& input) const {
  if (!position_->adapters || places_.empty()) return;
  const at::Tensor dropped =
      dropout_.forward(input, mask_place(input, 0, b_.front().sequence_parallel, b_.front().tp));
  for (std::size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& output = outputs[places_[i]];
    output =
        output + linear_with_async_communication(at::linear(dropped, a_[i]).mul(scale_), b_[i])[0];
  }
}

RowParallelLora::RowParallelLora(const ModuleContext& context, const LoraSection& lora,
                                 const std::string& path, std::int64_t input_size,
                                 std::int64_t output_size,
                                 const std::optional<Partition>& partition)
    : scale_(lora.scale()),
      position_(context.position),
      dropout_(context, path + ".lora_dropout", lora.dropout),
      a_(context, path + ".lora_A", input_size, lora.rank,
         {.init = adapter_init(lora),
          .bias = false,
          .input_is_parallel = true,
          .partition = partition}),
      columns_(columns_of(input_size, partition, context.tp())) {
  context.parameters->back().adapter = true;
  b_ = make_adapter(context,
                    {path + ".lora_B.weight", {output_size, lora.rank}, -1, 1, WeightInit::zeros()})
           .tensor;
}

at::Tensor RowParallelLora::add_to(const at::Tensor& output, const at::Tensor& input) const {
  if (!position_->adapters) return output;
  const at::Tensor dropped = dropout_.forward(input, columns_);
  return output + at::linear(a_.forward(dropped).mul(scale_), b_);
}

EmbeddingLora::EmbeddingLora(const ModuleContext& context, const LoraSection& lora,
                             const std::string& path, std::int64_t num_embeddings,
                             std::int64_t embedding_dim)
    : scale_(lora.scale()),
      position_(context.position),
      a_(context, path + ".lora_A", num_embeddings, lora.rank, WeightInit::zeros()) {
  context.parameters->back().adapter = true;
  b_ = make_adapter(context,
                    {path + ".lora_B.weight", {embedding_dim, lora.rank}, -1, 1, WeightInit(1.0)})
           .tensor;
}

at::Tensor EmbeddingLora::add_to(const at::Tensor& output, const at::Tensor& input_ids) const {
  if (!position_->adapters) return output;
  return output + at::linear(a_.forward(input_ids), b_).mul(scale_);
}

}  // namespace trellis::trainer
