#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

/// Norms lie behind attention and MLP, inside the residual, and queries and keys are normalised
/// before they are cut into heads (arXiv:2501.00656, section 3.2).
inline constexpr ModelFamily kOlmo2Family{
    .type = "olmo2",
    .hub_class = "Olmo2ForCausalLM",
    .structure = {.block = TransformerBlock::kReorderedNorm,
                  .qk_layernorm = true,
                  .qk_layernorm_across_heads = true},
    .defaults = {.rms_norm_eps = 1e-5},
};

}  // namespace trellis::trainer
