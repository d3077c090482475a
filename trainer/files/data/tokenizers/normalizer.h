#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/files/data/tokenizers/json_reader.h"

namespace trellis::trainer {

/// `normalizer` of a tokenizer.json: Prepend, Replace, Lowercase, Strip, StripAccents, Nmt, NFC,
/// NFD, NFKC, NFKD and BertNormalizer, or a Sequence of them. Throws ConfigError for others.
class Normalizer {
 public:
  explicit Normalizer(const JsonReader& json);
  [[nodiscard]] bool changes_nothing() const { return steps_.empty(); }
  [[nodiscard]] std::string apply(std::string_view text) const;
  /// Where `place` of `text` is in what apply() makes of it, of `size` bytes.
  [[nodiscard]] std::size_t place_after(std::string_view text, std::size_t place,
                                        std::size_t size) const {
    return std::min(apply(text.substr(0, place)).size(), size);
  }

 private:
  void add(const JsonReader& json);
  void add_replace(const JsonReader& json);
  void add_bert(const JsonReader& json);
  using Step = std::function<std::string(std::string text)>;
  std::vector<Step> steps_;
};

/// Every `from` in `text` becomes `to`.
[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from,
                                      std::string_view to);

}  // namespace trellis::trainer
