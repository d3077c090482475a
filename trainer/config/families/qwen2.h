#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

/// Its windows are those of layers from max_window_layers on; no published model has them on.
inline constexpr ModelFamily kQwen2Family{
    .type = "qwen2",
    .hub_class = "Qwen2ForCausalLM",
    .structure = {.qkv_bias = true},
    .in_megatron = true,
    .read = "use_sliding_window",
    .off = "use_sliding_window",
    .needs_off = "sliding_window max_window_layers",
};

}  // namespace trellis::trainer
