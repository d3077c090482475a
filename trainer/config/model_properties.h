#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_config.h"

/// The properties that a model computes with: the one list by which a checkpoint of any format is
/// compared with a configuration.
namespace trellis::trainer {

struct ModelProperty {
  std::string key;    ///< as an hf model's YAML calls it: "model.rope_theta"
  std::string value;  ///< as YAML has it; "none": the model has no such part
  bool operator==(const ModelProperty&) const = default;
};

/// All of them, in a fixed order. Not the vocabulary, whose rows may be padded.
[[nodiscard]] std::vector<ModelProperty> model_properties(const ModelSection& model);

/// A property that two sides have otherwise.
struct ModelDifference {
  std::string key;
  std::string saved, wanted;  ///< of the checkpoint, and of the configuration
};
[[nodiscard]] std::vector<ModelDifference> model_differences(const ModelSection& saved,
                                                             const ModelSection& wanted);

/// True if two values are the same number or the same text. Numbers that differ only by a
/// conversion to float32 are the same.
[[nodiscard]] bool is_same_value(const std::string& a, const std::string& b);

/// Key of the rows of the vocabulary, of weights that the model does not have, and the first words
/// of what only another program's files say ("args.softmax_type").
inline constexpr const char* kVocabularyKey = "model.vocab_size";
inline constexpr const char* kUnusedWeightsKey = "weights";
inline constexpr const char* kArgumentsPrefix = "args.";

/// Why exp_manager.accept_differences cannot hold `key`; "": it can.
[[nodiscard]] std::string why_not_accepted(const std::string& key);
/// True if one of `accepted` names `key`. An entry may leave "model." out, and may name a key as
/// Megatron models do.
[[nodiscard]] bool is_accepted(const std::vector<std::string>& accepted, const std::string& key);
/// As the configuration calls it: "model.position_freq_base" where model_source is megatron.
[[nodiscard]] std::string key_of(const RunConfig& config, const std::string& key);

}  // namespace trellis::trainer
