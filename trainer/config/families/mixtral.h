#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

/// The sizes of its experts are in config.json, or in the YAML's section `moe`.
inline constexpr ModelFamily kMixtralFamily{
    .type = "mixtral",
    .hub_class = "MixtralForCausalLM",
    .in_yaml = false,
    .experts = true,
    .windows = true,
    .defaults = {.rms_norm_eps = 1e-5, .rope_theta = 1e6},
    .read =
        "sliding_window use_sliding_window num_local_experts num_experts_per_tok "
        "router_aux_loss_coef output_router_logits",
};

}  // namespace trellis::trainer
