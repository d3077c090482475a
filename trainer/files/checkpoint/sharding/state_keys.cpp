#include "trainer/files/checkpoint/sharding/state_keys.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace trellis::checkpoint {

std::string state_prefix(const std::string& state) { return kStatePrefix + state + "."; }

std::string StateKey::text() const { return state.empty() ? weight : state_prefix(state) + weight; }

StateKey parse_state_key(const std::string& key) {
  constexpr std::string_view kPrefix = kStatePrefix;
  if (!key.starts_with(kPrefix)) return {"", key};
  const std::size_t end = key.find('.', kPrefix.size());
  if (end == std::string::npos) return {key.substr(kPrefix.size()), ""};
  return {key.substr(kPrefix.size(), end - kPrefix.size()), key.substr(end + 1)};
}

std::string source_key(const std::string& key, DType dtype, const StoredType& stored) {
  const StateKey wanted = parse_state_key(key);
  const auto has = [&](const std::string& other) { return stored(other).has_value(); };
  const bool is_average = wanted.state == kEmaState;
  if (!wanted.state.empty()) {
    if (has(key)) return key;
    if (wanted.state == kMasterState) return has(wanted.weight) ? wanted.weight : "";
    if (!is_average) return "";
  }
  const std::string master = state_prefix(kMasterState) + wanted.weight;
  const std::optional<DType> weight = stored(wanted.weight);
  if (!weight) return has(master) ? master : "";
  const bool is_narrower = element_bytes(*weight) < element_bytes(dtype);
  return is_narrower && has(master) ? master : wanted.weight;
}

bool is_derived_name(const std::string& name) {
  constexpr const char* kEnds[] = {".attn.bias", ".attn.masked_bias"};
  return name.find("rotary_emb.") != std::string::npos ||
         std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](const char* end) { return name.ends_with(end); });
}

bool is_vocabulary_weight(const std::string& name) {
  constexpr const char* kEnds[] = {"embed_tokens.weight", "word_embeddings.weight",
                                   "lm_head.weight", "output_layer.weight", "cls.predictions.bias",
                                   // their adapters
                                   "embed_tokens.lora_A.weight", "word_embeddings.lora_A.weight",
                                   "lm_head.lora_B.weight", "output_layer.lora_B.weight"};
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](const char* end) { return name.ends_with(end); });
}

}  // namespace trellis::checkpoint
