#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"
#include "trainer/config/reader/section_reader.h"

namespace trellis::trainer {

/// Settings of a model from a Hugging Face config.json. A key that the file does not have stays
/// empty.
struct HfModelConfig {
  std::string model_type;  ///< "": llama
  std::optional<int> num_hidden_layers, hidden_size, intermediate_size, num_attention_heads,
      num_key_value_heads, head_dim;
  std::optional<int> max_position_embeddings, vocab_size, sliding_window;
  std::optional<double> rope_theta, rms_norm_eps, initializer_range, attention_dropout,
      hidden_dropout;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool bf16 = false;                                                    ///< torch_dtype
  std::optional<MoeSection> moe;                                        ///< of Mixtral
  std::optional<int> type_vocab_size;                                   ///< of BERT
  std::optional<int> image_size, patch_size, num_channels, num_labels;  ///< of ViT
  std::vector<std::string> warnings;  ///< what is computed otherwise than transformers does
};

/// Receives each problem, with file and key.
using HfProblem = std::function<void(const std::string& text)>;
/// Reads the text of a config.json; `file`: for texts. Problems also about what no model here has.
[[nodiscard]] HfModelConfig parse_hf_model_config(const std::string& text, const std::string& file,
                                                  const HfProblem& problem);
/// Reads the file that `key` of `reader` names. Problems, also about shapes that no model has, go
/// to the reader.
[[nodiscard]] HfModelConfig read_hf_model_config(const std::filesystem::path& file,
                                                 SectionReader& reader, const std::string& key);

/// The types of RoPE's scaling that are supported, and those that are only known.
[[nodiscard]] const std::vector<std::string>& rope_types();
[[nodiscard]] bool is_later_rope_type(const std::string& type);

}  // namespace trellis::trainer
