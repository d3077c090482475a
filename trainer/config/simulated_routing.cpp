#include "trainer/config/simulated_routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError(fmt::format("--routing {}: {}", text, why));
}

/// Limits each share to `most`. The excess goes to the shares below it, in proportion to their
/// sizes.
void cap(std::vector<double>& shares, double most) {
  for (std::size_t round = 0; round < shares.size(); ++round) {
    double excess = 0, below = 0;
    for (double& share : shares) {
      excess += std::max(0.0, share - most);
      share = std::min(share, most);
      if (share < most) below += share;
    }
    if (excess <= 0 || below <= 0) return;
    for (double& share : shares) {
      if (share < most) share += excess * share / below;
    }
  }
}

std::vector<double> zipf(const std::string& text, int num_experts, int top_k) {
  const auto exponent = number_of<double>(std::string_view(text).substr(5));
  if (!exponent || !(*exponent >= 0 && *exponent <= 100))
    refuse(text, "expected zipf:S with S from 0 to 100");
  std::vector<double> shares;
  for (int e = 0; e < num_experts; ++e) shares.push_back(std::pow(e + 1, -*exponent));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  cap(shares, 1.0 / top_k);
  return shares;
}

std::vector<double> hot(const std::string& text, int num_experts, int top_k) {
  const std::string_view rest = std::string_view(text).substr(4);
  const std::size_t equals = rest.find('=');
  const auto expert = number_of<int>(rest.substr(0, equals));
  const auto share =
      equals == std::string_view::npos ? std::nullopt : number_of<double>(rest.substr(equals + 1));
  if (!expert || !share) refuse(text, "expected hot:EXPERT=SHARE, as hot:3=0.4");
  if (*expert < 0 || *expert >= num_experts) {
    refuse(text, fmt::format("expected an expert from 0 to {}, got {}", num_experts - 1, *expert));
  }
  const double most = 1.0 / top_k;
  if (!(*share >= 0 && *share <= most)) {
    refuse(text, fmt::format("a token picks an expert once: expected a share of the picks from 0 "
                             "to {} with top_k {}, got {}",
                             most, top_k, *share));
  }
  if (num_experts > 1 && (1 - *share) / (num_experts - 1) > most) {
    refuse(text, fmt::format("leaves {} of the picks for {} experts, each with at most {}",
                             1 - *share, num_experts - 1, most));
  }
  std::vector<double> shares(static_cast<std::size_t>(num_experts),
                             num_experts > 1 ? (1 - *share) / (num_experts - 1) : 1.0);
  if (num_experts > 1) shares[static_cast<std::size_t>(*expert)] = *share;
  return shares;
}

}  // namespace

std::vector<double> parse_routing(const std::string& text, int num_experts, int top_k) {
  if (text == "balanced") return {};
  if (text.starts_with("zipf:")) return zipf(text, num_experts, top_k);
  if (text.starts_with("hot:")) return hot(text, num_experts, top_k);
  refuse(text, "expected balanced, zipf:S, hot:EXPERT=SHARE or trace:FILE");
}

const std::vector<double>& shares_of_layer(const MoeSection& moe, int layer) {
  static const std::vector<double> kEven;
  const auto found = moe.simulated_shares.find(layer);
  return found == moe.simulated_shares.end() ? kEven : found->second;
}

std::vector<std::int64_t> picks_of_experts(const std::vector<double>& shares, int num_experts,
                                           std::int64_t tokens, int top_k) {
  const std::int64_t picks = tokens * top_k;
  std::vector<std::int64_t> counts;
  std::vector<double> remainders;
  for (int e = 0; e < num_experts; ++e) {
    const double share = shares.empty() ? 1.0 / num_experts : shares[static_cast<std::size_t>(e)];
    const double wanted = share * static_cast<double>(picks);
    const auto whole =
        std::min(tokens, static_cast<std::int64_t>(std::floor(wanted * (1 + 1e-12))));
    counts.push_back(whole);
    remainders.push_back(wanted - static_cast<double>(whole));
  }
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t e) { return remainders[e]; });
  std::int64_t left = picks - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  while (left > 0) {
    for (const std::size_t e : order) {
      if (left == 0) break;
      if (counts[e] == tokens) continue;
      ++counts[e], --left;
    }
  }
  return counts;
}

}  // namespace trellis::trainer
