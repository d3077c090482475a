#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "trainer/config/run_config.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// Tokens that end an answer.
struct StopTokens {
  std::set<std::int64_t> ids;
  std::string description;  ///< "2 (the tokenizer's), 7 (models/x/generation_config.json)"
};

/// The tokenizer's end-of-sequence token, eos_token_id of generation_config.json, or where there is
/// none of config.json, in the folder of the weights and in the tokenizer's, and `chat_end`, with
/// which the template ends the answers of chats. Throws ConfigError for an id that is none.
[[nodiscard]] StopTokens stop_tokens(const RunConfig& config, const Tokenizer& tokenizer,
                                     std::optional<std::int32_t> chat_end);

}  // namespace trellis::trainer
