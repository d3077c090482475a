#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

inline constexpr ModelFamily kLlamaFamily{.type = "llama", .hub_class = "LlamaForCausalLM"};

}  // namespace trellis::trainer
