#pragma once

#include <string>

#include "trainer/files/data/tokenizers/bpe_model.h"

namespace trellis::trainer {

/// A file of tiktoken, such as Llama 3's tokenizer.model: a line "<token in base64> <rank>" for
/// each token. Two symbols are joined when both together are a token, that of the lowest rank
/// first; ranks are ids. Throws ConfigError that names the line, or a byte that has no token.
[[nodiscard]] BpeTables read_tiktoken_file(const std::string& file);

}  // namespace trellis::trainer
