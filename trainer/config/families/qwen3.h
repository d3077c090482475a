#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

/// Its windows are those of layers from max_window_layers on; no published model has them on.
inline constexpr ModelFamily kQwen3Family{
    .type = "qwen3",
    .hub_class = "Qwen3ForCausalLM",
    .structure = {.qk_layernorm = true},
    .in_megatron = true,
    .defaults = {.head_dim = 128},
    .read = "use_sliding_window",
    .off = "use_sliding_window",
    .needs_off = "sliding_window max_window_layers",
};

}  // namespace trellis::trainer
