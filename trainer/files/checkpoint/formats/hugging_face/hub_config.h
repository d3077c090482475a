#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trainer/config/model_section.h"
#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint::hugging_face {

/// The part of a config.json that decides the names and shapes of weights.
struct HubConfig {
  std::string model_type;  ///< that of a ModelFamily, or gpt2
  std::int64_t layers = 0, hidden = 0, ffn = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;    ///< learned ones, of gpt2
  std::int64_t experts = 0;      ///< of mixtral
  bool tied_embeddings = false;  ///< lm_head is the embedding
  bool operator==(const HubConfig&) const = default;
};

/// Reads the text of a config.json. Throws ConfigError with every problem, each with `where`: no
/// JSON, a family without a mapping, sizes that are missing or cannot be.
[[nodiscard]] HubConfig read_hub_config(const std::string& text, const std::string& where);

/// The config.json of a model of this program, with `vocabulary` tokens and weights of `dtype`.
/// Throws ConfigError that names each choice which no family of the hub has.
[[nodiscard]] std::string hub_config_text(const trainer::ModelSection& model,
                                          std::int64_t vocabulary, DType dtype);

/// Special tokens of a model's tokenizer.
struct TokenIds {
  std::optional<std::int64_t> bos, pad;
  std::vector<std::int64_t> eos;  ///< each ends an answer
};
/// The config.json with them; null where there is none.
[[nodiscard]] std::string with_token_ids(const std::string& config_text, const TokenIds& ids);

/// Text of the generation_config.json that transformers writes next to a config.json without keys
/// of generation.
[[nodiscard]] std::string generation_config_text(const std::string& config_text);

}  // namespace trellis::checkpoint::hugging_face
