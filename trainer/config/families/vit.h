#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

inline constexpr ModelFamily kVitFamily{
    .type = "vit",
    .structure = {.normalization = Normalization::kLayerNorm,
                  .activation = Activation::kGelu,
                  .positions = PositionEmbedding::kLearnedAbsolute,
                  .has_bias = true},
    .tied_head = false,
    .read = "image_size patch_size num_channels num_labels qkv_bias",
};

}  // namespace trellis::trainer
