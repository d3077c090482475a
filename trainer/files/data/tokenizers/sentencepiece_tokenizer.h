#pragma once

#include <memory>
#include <string>

#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// A SentencePiece model through its library. Special tokens written in a text are not looked for
/// (NeMo's behaviour with legacy false).
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    const std::string& model_file);

}  // namespace trellis::trainer
