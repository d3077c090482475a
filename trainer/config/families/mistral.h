#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

inline constexpr ModelFamily kMistralFamily{
    .type = "mistral",
    .hub_class = "MistralForCausalLM",
    .windows = true,
    .defaults = {.sliding_window = 4096},
    .read = "sliding_window use_sliding_window",
};

}  // namespace trellis::trainer
