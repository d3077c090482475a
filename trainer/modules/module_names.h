#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// How the weights of queries, keys and values lie, unless the model asks for
/// GQAQKVColumnParallelLinear (model.qkv_linear): qkv_proj.
enum class QkvLayout : std::uint8_t {
  kSeparate,  ///< q_proj, k_proj, v_proj
  kMegatron,  ///< query_key_value with q|k|v per head; with grouped queries query, and key_value
              ///< with k|v per head
};

/// Names of the modules of a family of models: data, so that one implementation serves each family.
struct ModuleNames {
  const char* embedding;           ///< path of the word embedding
  const char* position_embedding;  ///< path of the learned positions; "" for a family without
  const char* layers;              ///< path in front of a layer's index
  const char* attention;           ///< below the layer
  QkvLayout qkv;
  const char* query_norm = "";  ///< below attention, with model.qk_layernorm
  const char* key_norm = "";
  const char* attention_output;  ///< below attention
  const char* mlp_input;         ///< below mlp; of a gated activation gate | up
  const char* mlp_gate =
      "";  ///< the same, separate (model.fuse_gate_up false); "" for a family without gates
  const char* mlp_up = "";
  const char* mlp_output;
  const char* final_norm;  ///< path
  const char* head;        ///< path
};

/// Size of one attention head.
[[nodiscard]] inline std::int64_t head_dim(const ModelSection& config) {
  return config.head_dim > 0 ? config.head_dim : config.hidden_size / config.num_attention_heads;
}

/// Type of the residual stream, which crosses the borders between pipeline stages, in a run of
/// `dtype`.
[[nodiscard]] inline at::ScalarType residual_dtype(const ModelSection& config,
                                                   at::ScalarType dtype) {
  return config.fp32_residual_connection && dtype != at::kDouble ? at::kFloat : dtype;
}

/// Standard deviation of the two weights of a layer that write to the residual stream.
[[nodiscard]] double output_init_std(const ModelSection& config);

}  // namespace trellis::trainer
