#include "trainer/modules/embedding.h"

#include <ATen/ops/embedding.h>

#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

/// Replicated over TP. With sequence parallelism a rank looks up its own tokens only: its gradient
/// is a part of the whole.
at::Tensor make_positions(const ModuleContext& context, const ModelSection& config,
                          const ModuleNames& names) {
  if (config.position_embedding != PositionEmbedding::kLearnedAbsolute) return {};
  Parameter& parameter =
      make_parameter(context, {std::string(names.position_embedding) + ".weight",
                               {config.max_position_embeddings, config.hidden_size},
                               -1,
                               1,
                               config.init_method_std});
  parameter.sequence_parallel_enabled = context.sequence_parallel;
  return parameter.tensor;
}

}  // namespace

LanguageModelEmbedding::LanguageModelEmbedding(const ModuleContext& context,
                                               const ModelSection& config, const ModuleNames& names)
    : words_(context, names.embedding, config.vocab_size, config.hidden_size,
             config.init_method_std),
      position_weight_(make_positions(context, config, names)),
      dropout_(context, std::string(names.embedding) + ".dropout", config.hidden_dropout),
      residual_dtype_(residual_dtype(config, context.dtype)),
      sequence_(context.sequence(config.encoder_seq_length)),
      tp_(context.tp()),
      sequence_parallel_(context.sequence_parallel) {
  if (config.lora && config.lora->targets_module(names.embedding))
    lora_.emplace(context, *config.lora, names.embedding, config.vocab_size, config.hidden_size);
}

at::Tensor LanguageModelEmbedding::forward(const MicroBatch& batch) const {
  at::Tensor hidden = words_.forward(batch.input_ids);
  if (lora_) hidden = lora_->add_to(hidden, batch.input_ids);
  if (position_weight_.defined()) hidden = hidden + positions(batch.position_ids);
  return dropout_.forward(hidden.to(residual_dtype_));
}

/// [s, 1 or b, h], this rank's part of the sequence; ids are those of the context-parallel part.
at::Tensor LanguageModelEmbedding::positions(const at::Tensor& position_ids) const {
  const auto own = [this](const at::Tensor& whole) {
    return sequence_parallel_ ? split(whole, 0, tp_) : whole;
  };
  if (position_ids.defined()) return at::embedding(position_weight_, own(position_ids.t()));
  const at::Tensor whole = position_weight_.narrow(0, 0, sequence_.length);
  return own(sequence_.take(whole, 0)).unsqueeze(1);
}

}  // namespace trellis::trainer
