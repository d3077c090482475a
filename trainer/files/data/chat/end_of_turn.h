#pragma once

#include <cstdint>
#include <optional>

#include "trainer/files/data/chat/chat_template.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// The special token with which the template ends what the assistant says; none: it writes no such
/// token, or does not render a plain question and its answer.
[[nodiscard]] std::optional<std::int32_t> end_of_turn(const ChatTemplate& chat_template,
                                                      Tokenizer& tokenizer);

}  // namespace trellis::trainer
