#pragma once

#include <filesystem>
#include <optional>

#include "trainer/config/section_reader.h"

namespace trellis::trainer {

/// What a Hugging Face config.json says about a Llama-shaped model. A key that the file lacks stays empty.
struct HfModelConfig {
  std::optional<int> num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, num_key_value_heads;
  std::optional<int> max_position_embeddings, vocab_size;
  std::optional<double> rope_theta, rms_norm_eps, initializer_range;
};

/// Reads the file that `key` of `reader` names. Problems, also about shapes that are not carried out, go to the reader.
[[nodiscard]] HfModelConfig read_hf_model_config(const std::filesystem::path& file, SectionReader& reader, const std::string& key);

}  // namespace trellis::trainer
