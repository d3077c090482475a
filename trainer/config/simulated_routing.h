#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// How the routers of a step without data share its tokens, as text: `balanced`, `zipf:S` (expert e
/// gets a share in proportion to 1 / (e + 1)^S) or `hot:EXPERT=SHARE` (one expert gets that part of
/// the picks, the others share the rest evenly). A token picks an expert once: a share is at most 1
/// / top_k; what a zipf would have above it goes to the others.
///
/// Returns the experts' shares of the picks, of sum 1; empty when balanced. Throws ConfigError with
/// the numbers.
[[nodiscard]] std::vector<double> parse_routing(const std::string& text, int num_experts,
                                                int top_k);

/// simulated_shares of a layer; empty: even.
[[nodiscard]] const std::vector<double>& shares_of_layer(const MoeSection& moe, int layer);

/// Picks of each expert of `tokens` · `top_k` with these shares (empty: even ones), none above
/// `tokens`; the parts that are not whole go to the experts with the largest remainders, the lower
/// one first.
[[nodiscard]] std::vector<std::int64_t> picks_of_experts(const std::vector<double>& shares,
                                                         int num_experts, std::int64_t tokens,
                                                         int top_k);

}  // namespace trellis::trainer
