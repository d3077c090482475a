#pragma once

#include <optional>

#include "trainer/config/run_config.h"
#include "trainer/config/section_reader.h"

/// The parts of section `model`.
namespace trellis::trainer {

inline constexpr double kMostRopeTheta = 1e30;

struct VocabularySources {
  std::optional<int> from_json;  ///< vocab_size of config.json
  bool hf = false;
  int tensor_model_parallel_size = 1;
  const TokenizerSection* tokenizer = nullptr;  ///< none: the data is tokenized already
};
/// model.vocab_size, config.json's, or the tokenizer's; padded so that it divides into equal
/// shards.
void read_vocabulary(SectionReader& reader, const VocabularySources& sources,
                     ModelSection& section);

/// What distinguishes Megatron's models from Llama: norms, activation, positions, biases, dropouts;
/// and `architecture`. Dropouts and architecture of `section` are what an hf model's own file says.
void read_structure(SectionReader& reader, bool hf, ModelSection& section);

/// activations_checkpoint_*.
void read_recompute(SectionReader& reader, bool hf, ModelSection& section);
void read_pipeline_cuts(SectionReader& reader, ModelSection& section);

/// The class names that activations_checkpoint_recompute may hold.
[[nodiscard]] const std::vector<std::string>& recompute_module_names();
/// 18 of "model.layers.18"; none when the text names no layer.
[[nodiscard]] std::optional<int> layer_of(const std::string& name);

}  // namespace trellis::trainer
