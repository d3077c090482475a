#pragma once

#include <string>

namespace trellis::trainer {

/// True if both texts are the same, except for white space around them.
[[nodiscard]] bool exact_match(const std::string& prediction, const std::string& label);

/// F1 of each: 2 · precision · recall / (precision + recall).
struct Rouge {
  double rouge1 = 0, rouge2 = 0;  ///< shared words, and pairs of neighbours
  double rouge_l = 0;             ///< the longest common subsequence of words
};

/// Lin 2004, as Google's rouge_score computes it without a stemmer: words are runs of a … z and 0 …
/// 9 in lower case. 0 where a text has no word.
[[nodiscard]] Rouge rouge(const std::string& prediction, const std::string& label);

}  // namespace trellis::trainer
