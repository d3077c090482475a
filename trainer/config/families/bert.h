#pragma once

#include "trainer/config/families/model_family.h"

namespace trellis::trainer {

inline constexpr ModelFamily kBertFamily{
    .type = "bert",
    .structure = {.normalization = Normalization::kLayerNorm,
                  .activation = Activation::kGelu,
                  .block = TransformerBlock::kPostLn,
                  .positions = PositionEmbedding::kLearnedAbsolute,
                  .has_bias = true},
    .tied_head = true,
    .read = "type_vocab_size position_embedding_type",
};

}  // namespace trellis::trainer
