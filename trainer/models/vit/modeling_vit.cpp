#include "trainer/models/vit/modeling_vit.h"

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/models/decoder/decoder.h"

namespace trellis::trainer {
namespace {

constexpr ModuleNames kVitNames{
    .embedding = "vit.embeddings.patch_embeddings.projection",
    .position_embedding = "vit.embeddings.position_embeddings",
    .layers = "vit.encoder.layer",
    .attention = "attention",
    .qkv = QkvLayout::kSeparate,
    .attention_output = "dense",
    .mlp_input = "intermediate",
    .mlp_output = "output",
    .final_norm = "vit.layernorm",
    .head = "classifier",
};

at::Tensor make_vit_weight(const ModuleContext& context, const std::string& name, std::int64_t rows,
                           const ModelSection& config) {
  return make_parameter(context, {name, {rows, config.hidden_size}, -1, 1, config.init_method_std})
      .tensor;
}

ColumnParallelLinear linear(const ModuleContext& context, const std::string& path,
                            std::int64_t inputs, std::int64_t outputs, const ModelSection& config) {
  return {context,
          path,
          inputs,
          {{"", outputs}},
          {.init = config.init_method_std, .gather_output = false}};
}

}  // namespace

const ModuleNames& ViTForImageClassification::names() { return kVitNames; }

ViTForImageClassification::ViTForImageClassification(const ModelSection& config,
                                                     const ModuleContext& context,
                                                     const StageSlot& slot)
    : entropy_{context.tp(), context.wide_dtype},
      image_(config.image.value()),
      dtype_(context.dtype),
      save_logits_(config.save_logits),
      class_token_(make_vit_weight(context, "vit.embeddings.cls_token", 1, config)),
      position_weight_(
          make_vit_weight(context, kVitNames.position_embedding, image_.patches() + 1, config)),
      projection_(linear(context, kVitNames.embedding, image_.values_per_patch(),
                         config.hidden_size, config)),
      embedding_dropout_(context, "vit.embeddings.dropout", config.hidden_dropout),
      final_norm_(context, kVitNames.final_norm, config),
      classifier_(linear(context, kVitNames.head, config.hidden_size, image_.labels, config)),
      embedding_scope_(context.scope("vit.embeddings")),
      head_scope_(context.scope(kVitNames.head)),
      loss_scope_(context.scope("loss")) {
  if (slot.count > 1 || context.tp().size > 1) {
    throw ConfigError(
        c10::str("model: ViT trains with data parallelism alone: expected 1 pipeline stage and 1 "
                 "tensor-parallel rank, got ",
                 slot.count, " and ", context.tp().size));
  }
  for (int layer = slot.layers.first; layer < slot.layers.end; ++layer)
    layers_.emplace_back(context, config, kVitNames, layer);
}

/// A convolution whose stride is its size is a product with the flattened patches: [b, c, H, W] →
/// [patches + 1, b, h].
at::Tensor ViTForImageClassification::embed(const at::Tensor& pixel_values) const {
  const Scope scope = embedding_scope_.enter();
  const std::int64_t batch = pixel_values.size(0), side = image_.size / image_.patch;
  const at::Tensor cut = pixel_values.to(dtype_).view(
      {batch, image_.channels, side, image_.patch, side, image_.patch});
  const at::Tensor patches =
      cut.permute({2, 4, 0, 1, 3, 5}).reshape({side * side, batch, image_.values_per_patch()});
  const at::Tensor tokens =
      at::cat({class_token_.unsqueeze(1).expand({1, batch, -1}), projection_.forward(patches)[0]});
  return embedding_scope_.leave(embedding_dropout_.forward(tokens + position_weight_.unsqueeze(1)));
}

at::Tensor ViTForImageClassification::forward(const at::Tensor&, const MicroBatch& batch) const {
  const at::Tensor& pixels = batch.pixel_values;
  const std::vector<std::int64_t> expected{pixels.defined() ? pixels.size(0) : 0, image_.channels,
                                           image_.size, image_.size};
  if (!pixels.defined() || pixels.sizes() != expected) {
    throw ConfigError(c10::str("data: a batch of images: expected the sizes [b, ", image_.channels,
                               ", ", image_.size, ", ", image_.size, "], got ",
                               pixels.defined() ? pixels.sizes() : at::IntArrayRef()));
  }
  at::Tensor hidden = embed(pixels);
  for (const TransformerLayer& layer : layers_) hidden = layer.forward(hidden, {});
  at::Tensor logits;
  {
    const Scope scope = head_scope_.enter();
    logits = head_scope_.leave(classifier_.forward(final_norm_.forward(hidden).narrow(0, 0, 1))[0]);
  }
  if (save_logits_) logits_ = logits.detach();
  const Scope scope = loss_scope_.enter();
  return loss_scope_.leave(masked_mean_loss(logits, batch, entropy_));
}

}  // namespace trellis::trainer
