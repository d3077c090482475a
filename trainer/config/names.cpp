#include "trainer/config/names.h"

namespace trellis::trainer {

template <>
const Names<Normalization>& names_of() {
  static const Names<Normalization> names = {{"layernorm", Normalization::kLayerNorm},
                                             {"layernorm1p", Normalization::kLayerNorm1P},
                                             {"rmsnorm", Normalization::kRmsNorm}};
  return names;
}

template <>
const Names<Activation>& names_of() {
  static const Names<Activation> names = {{"gelu", Activation::kGelu},
                                          {"openai-gelu", Activation::kOpenAiGelu},
                                          {"geglu", Activation::kGeglu},
                                          {"reglu", Activation::kReglu},
                                          {"swiglu", Activation::kSwiglu}};
  return names;
}

template <>
const Names<TransformerBlock>& names_of() {
  static const Names<TransformerBlock> names = {
      {"pre_ln", TransformerBlock::kPreLn},
      {"post_ln", TransformerBlock::kPostLn},
      {"normformer", TransformerBlock::kNormformer},
      {"gpt_j", TransformerBlock::kGptJ},
      {"reordered_norm", TransformerBlock::kReorderedNorm}};
  return names;
}

template <>
const Names<PositionEmbedding>& names_of() {
  static const Names<PositionEmbedding> names = {
      {"learned_absolute", PositionEmbedding::kLearnedAbsolute},
      {"rope", PositionEmbedding::kRope}};
  return names;
}

template <>
const Names<Recompute>& names_of() {
  static const Names<Recompute> names = {
      {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}};
  return names;
}

std::vector<std::string> words_of(const std::string& schedule, const std::string& argument) {
  if (schedule == "CyclicLR" && argument == "mode")
    return {"triangular", "triangular2", "exp_range"};
  if (schedule == "CyclicLR" && argument == "scale_mode") return {"cycle", "iterations"};
  if (schedule == "ReduceLROnPlateau" && argument == "mode") return {"min", "max"};
  if (schedule == "ReduceLROnPlateau" && argument == "threshold_mode") return {"rel", "abs"};
  return {};
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace trellis::trainer
