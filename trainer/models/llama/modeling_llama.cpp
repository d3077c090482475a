#include "trainer/models/llama/modeling_llama.h"

namespace trellis::trainer {
namespace {

constexpr ModuleNames kLlamaNames{
    .embedding = "model.embed_tokens",
    .position_embedding = "",
    .layers = "model.layers",
    .attention = "self_attn",
    .qkv = QkvLayout::kSeparate,
    .query_norm = "q_norm",
    .key_norm = "k_norm",
    .attention_output = "o_proj",
    .mlp_input = "gate_up_proj",
    .mlp_gate = "gate_proj",
    .mlp_up = "up_proj",
    .mlp_output = "down_proj",
    .final_norm = "model.norm",
    .head = "lm_head",
};

}  // namespace

LlamaForCausalLM::LlamaForCausalLM(const ModelSection& config, const ModuleContext& context,
                                   const StageSlot& slot)
    : Decoder(config, kLlamaNames, context, slot) {}

const ModuleNames& LlamaForCausalLM::names() { return kLlamaNames; }

}  // namespace trellis::trainer
