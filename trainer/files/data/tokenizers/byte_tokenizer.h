#pragma once

#include <memory>

#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace trellis::trainer
