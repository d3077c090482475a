#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace trellis::trainer {

/// A token that is found in the text as it is written, before anything else is done with it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;             ///< only where no letter, digit or _ touches it
  bool lstrip = false, rstrip = false;  ///< spaces at its left or right belong to it
  bool normalized = false;              ///< looked for after the normalizer
  bool special = false;
  bool operator==(const AddedToken&) const = default;
};

/// The special tokens of a tokenizer's folder by name, {"eos_token": "</s>" or {"content": "</s>",
/// …}, …}: every member of tokenizer_config.json whose name ends in _token and that is a text or an
/// object; where that file has no added_tokens_decoder, special_tokens_map.json goes before it.
/// Empty when there are no such files. Throws ConfigError: one of them is no JSON object.
[[nodiscard]] nlohmann::ordered_json named_special_tokens(const std::filesystem::path& folder);

struct HubTokens {
  std::vector<AddedToken> added;
  std::vector<std::string> notes;  ///< lines on ids that are not those that the files state
};

/// The added tokens of a Hugging Face tokenizer, and their ids, as transformers 5 has them. Tokens
/// of tokenizer.json come first, in the order of the file; then those of tokenizer_config.json
/// (added_tokens_decoder) or, where it has none, of added_tokens.json, by their ids; then special
/// tokens by name, and additional ones. A token that the model or an earlier token has keeps that
/// id; every other one gets the next free id, whatever the files state. The flags of the last one
/// count. `id_in_model`: of a token of the model; `model_tokens`: their number. Throws ConfigError
/// for what is no token.
[[nodiscard]] HubTokens read_hub_tokens(
    const nlohmann::json& tokenizer, const std::filesystem::path& file,
    const std::function<std::optional<std::int32_t>(const std::string&)>& id_in_model,
    std::int32_t model_tokens);

}  // namespace trellis::trainer
