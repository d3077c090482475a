#include "trainer/parallel_layers/qkv_lora.h"

namespace trellis::trainer {

GqaQkvLora::GqaQkvLora(const ModuleContext& context, const LoraSection& lora,
                       const std::string& path, const AttentionShape& shape,
                       const QkvLinearOptions& options)
    : scale_(lora.scale()),
      position_(context.position),
      dropout_(context, path + ".lora_dropout", lora.dropout),
      a_(make_adapter(
             context,
             {path + ".lora_A.weight", {lora.rank, shape.hidden_size}, -1, 1, adapter_init(lora)})
             .tensor),
      sequence_parallel_(context.sequence_parallel),
      tp_(context.tp()) {
  AttentionShape inner = shape;
  inner.hidden_size = lora.rank;
  QkvLinearOptions of_b = options;
  of_b.init = WeightInit::zeros();
  of_b.bias = false;
  const std::size_t before = context.parameters->size();
  b_.emplace(context, path + ".lora_B", inner, of_b);
  for (std::size_t i = before; i < context.parameters->size(); ++i)
    (*context.parameters)[i].adapter = true;
}

void GqaQkvLora::add_to(GQAQKVColumnParallelLinear::Output& output, const at::Tensor& input) const {
  if (!position_->adapters) return;
  const at::Tensor dropped = dropout_.forward(input, mask_place(input, 0, sequence_parallel_, tp_));
  const auto [query, key, value] = b_->forward(at::linear(dropped, a_).mul(scale_));
  output = {output.query + query, output.key + key, output.value + value};
}

}  // namespace trellis::trainer
