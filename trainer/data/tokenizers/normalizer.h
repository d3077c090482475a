#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizers/json_reader.h"

namespace trellis::trainer {

/// `normalizer` of a tokenizer.json: Prepend and Replace, or a Sequence of them. Throws ConfigError
/// for others.
class Normalizer {
 public:
  explicit Normalizer(const JsonReader& json);
  [[nodiscard]] bool changes_nothing() const { return steps_.empty(); }
  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  void add(const JsonReader& json);
  struct Step {
    std::string from, to;  ///< from "": `to` is put before a text that is not empty
  };
  std::vector<Step> steps_;
};

/// Every `from` in `text` becomes `to`.
[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from,
                                      std::string_view to);

}  // namespace trellis::trainer
