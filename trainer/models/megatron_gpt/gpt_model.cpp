#include "trainer/models/megatron_gpt/gpt_model.h"

namespace trellis::trainer {
namespace {

constexpr ModuleNames kGptNames{
    .embedding = "language_model.embedding.word_embeddings",
    .position_embedding = "language_model.embedding.position_embeddings",
    .layers = "language_model.encoder.layers",
    .attention = "self_attention",
    .qkv = QkvLayout::kMegatron,
    .query_norm = "q_layernorm",
    .key_norm = "k_layernorm",
    .attention_output = "dense",
    .mlp_input = "dense_h_to_4h",
    .mlp_gate = "dense_h_to_4h",
    .mlp_up = "dense_h_to_4h_2",
    .mlp_output = "dense_4h_to_h",
    .final_norm = "language_model.encoder.final_layernorm",
    .head = "language_model.output_layer",
};

}  // namespace

GPTModel::GPTModel(const ModelSection& config, const ModuleContext& context, const StageSlot& slot)
    : Decoder(config, kGptNames, context, slot) {}

const ModuleNames& GPTModel::names() { return kGptNames; }

}  // namespace trellis::trainer
