#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/config/model_section.h"

/// The words of the YAML for what the records hold as enumerators and numbers.
namespace trellis::trainer {

template <typename Enum>
using Names = std::vector<std::pair<std::string, Enum>>;

template <typename Enum>
[[nodiscard]] const Names<Enum>& names_of();
template <>
const Names<Normalization>& names_of();
template <>
const Names<Activation>& names_of();
template <>
const Names<TransformerBlock>& names_of();
template <>
const Names<PositionEmbedding>& names_of();
template <>
const Names<Recompute>& names_of();

template <typename Enum>
[[nodiscard]] std::string name_of(Enum value) {
  for (const auto& [name, candidate] : names_of<Enum>()) {
    if (candidate == value) return name;
  }
  return "";
}

/// The words of one argument of a schedule, in the order of their numbers; empty: the argument is a
/// number.
[[nodiscard]] std::vector<std::string> words_of(const std::string& schedule,
                                                const std::string& argument);

/// "a, b or c"
[[nodiscard]] std::string join_names(const std::vector<std::string>& names);

}  // namespace trellis::trainer
