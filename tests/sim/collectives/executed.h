#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "sim/collectives/plan.h"

namespace trellis::sim::testing {

using Buffers = std::vector<std::vector<std::int64_t>>;

inline Buffers random_buffers(int members, std::int64_t elements, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Buffers buffers(static_cast<std::size_t>(members),
                  std::vector<std::int64_t>(static_cast<std::size_t>(elements)));
  for (auto& buffer : buffers) {
    for (auto& x : buffer) x = static_cast<std::int64_t>(rng() % 1000);
  }
  return buffers;
}

/// Executes a plan as its comments say: all messages of a round leave before any of them arrives.
inline void execute(const CommPlan& plan, const Buffers& source, Buffers& target) {
  for (std::size_t begin = 0; begin < plan.steps.size();) {
    std::size_t end = begin;
    Buffers messages;
    for (; end < plan.steps.size() && plan.steps[end].round == plan.steps[begin].round; ++end) {
      const PlanStep& s = plan.steps[end];
      const auto first = source[static_cast<std::size_t>(s.from)].begin() + s.source;
      messages.emplace_back(first, first + s.length);
    }
    for (std::size_t i = begin; i < end; ++i) {
      const PlanStep& s = plan.steps[i];
      for (std::int64_t k = 0; k < s.length; ++k) {
        auto& cell = target[static_cast<std::size_t>(s.to)][static_cast<std::size_t>(s.target + k)];
        cell = messages[i - begin][static_cast<std::size_t>(k)] + (s.reduce ? cell : 0);
      }
    }
    begin = end;
  }
}

inline std::vector<std::int64_t> sum_of(const Buffers& buffers) {
  std::vector<std::int64_t> sum(buffers[0].size());
  for (const auto& buffer : buffers) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += buffer[i];
  }
  return sum;
}

}  // namespace trellis::sim::testing
