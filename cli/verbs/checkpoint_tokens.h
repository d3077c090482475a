#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"

namespace trellis::cli {

/// The special tokens of an exported model: those of the tokenizer in `folder`, or where that is ""
/// of the training's `data`, unless its rows were tokenised before. Answers end with its
/// end-of-sequence token, with eos_token_id of the folder's generation_config.json, and with what
/// its chat template ends them with. One line says that there is none, and why.
[[nodiscard]] checkpoint::hugging_face::TokenIds exported_tokens(const std::string& folder,
                                                                 const trainer::DataSection& data);

}  // namespace trellis::cli
