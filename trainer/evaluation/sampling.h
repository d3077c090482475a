#pragma once

#include <cstdint>
#include <span>

namespace trellis::trainer {

/// How the next token is chosen, with Hugging Face's names and order: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy, the likeliest token; the first of equal ones
  std::int64_t top_k = 0;  ///< of the likeliest tokens only; 0: all
  double top_p = 1;        ///< of the fewest tokens that have this share of probability together
  std::int64_t seed = 0;
};

/// `logits`: one per token. `draw`: a number from [0, 1); unused when greedy.
[[nodiscard]] std::int64_t choose_token(std::span<const float> logits,
                                        const SamplingOptions& options, double draw);

/// The number that token `place` of the answer to record `record` is drawn with: a function of its
/// arguments, so that batches, layouts and threads do not matter.
[[nodiscard]] double draw_of(std::int64_t seed, std::int64_t record, std::int64_t place);

}  // namespace trellis::trainer
