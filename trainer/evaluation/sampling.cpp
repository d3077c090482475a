#include "trainer/evaluation/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

std::int64_t choose_token(std::span<const float> logits, const SamplingOptions& options,
                          double draw) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return best - logits.begin();
  std::vector<std::int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto logit = [&](std::int64_t token) { return logits[static_cast<std::size_t>(token)]; };
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && options.top_k < std::ssize(tokens))
    tokens.resize(static_cast<std::size_t>(options.top_k));
  std::vector<double> up_to(tokens.size());  // probability of a token and all likelier ones
  double sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    up_to[i] = sum += std::exp((double{logit(tokens[i])} - double{*best}) / options.temperature);
  const auto kept =
      std::min(up_to.end() - 1, std::lower_bound(up_to.begin(), up_to.end(), options.top_p * sum)) +
      1;
  const auto found = std::upper_bound(up_to.begin(), kept, draw * *(kept - 1));
  return tokens[static_cast<std::size_t>(std::min(found, kept - 1) - up_to.begin())];
}

double draw_of(std::int64_t seed, std::int64_t record, std::int64_t place) {
  const std::uint64_t bits =
      stream_seed(seed, "answer " + std::to_string(record) + " token " + std::to_string(place));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace trellis::trainer
