#pragma once

#include <optional>

#include "trainer/config/reader/section_reader.h"
#include "trainer/config/run_config.h"

/// Visitors of the parts of section `model`.
namespace trellis::trainer {

class Fields;

inline constexpr double kMostRopeTheta = 1e30;

struct VocabularySources {
  std::optional<int> from_json;  ///< vocab_size of config.json
  bool hf = false;
  int tensor_model_parallel_size = 1;
  const TokenizerSection* tokenizer = nullptr;  ///< none: the data is tokenized already
};
/// model.vocab_size, config.json's, or the tokenizer's; padded so that it divides into equal
/// shards.
void vocabulary_fields(Fields& fields, ModelSection& s, const VocabularySources& sources);

/// Fields in which Megatron's models differ from Llama: norms, activation, positions, biases,
/// dropouts. For an hf model, `s` already has them from its family and its own file.
void structure_fields(Fields& fields, ModelSection& s, bool hf);
/// NxDT has one class for every Megatron model; a Megatron model that is Llama in all its parts is
/// built like Llama.
[[nodiscard]] std::string architecture_of(const ModelSection& section);

/// activations_checkpoint_*.
void recompute_fields(Fields& fields, ModelSection& s, bool hf);
void pipeline_cuts_field(Fields& fields, ModelSection& s);

/// Positions of rotary embeddings. rope_theta and rope_scaling of `s` are what config.json says.
void rope_fields(Fields& fields, ModelSection& s, bool hf);

/// The class names that activations_checkpoint_recompute may hold.
[[nodiscard]] const std::vector<std::string>& recompute_module_names();
/// 18 of "model.layers.18"; none when the text names no layer.
[[nodiscard]] std::optional<int> layer_of(const std::string& name);

}  // namespace trellis::trainer
