#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trellis::analysis {

/// The routers of one layer of a mixture of experts in a step, over all ranks: picks of the
/// routers, and those that were computed. Σ kept = tokens · k − drops.
struct ExpertLoad {
  int layer = 0;                             ///< in the whole model, from 0
  std::vector<std::int64_t> assigned, kept;  ///< tokens, by expert
  /// Rows that were computed, by expert: with slots that stayed empty, and padding to whole blocks.
  std::vector<std::int64_t> computed;
};

/// A row per layer: layer, routed_tokens, dropped_tokens, padding (rows that were computed for no
/// token), imbalance (the busiest expert's share of the picks in units of an even one); assigned,
/// kept and computed by expert.
[[nodiscard]] nlohmann::json expert_load_json(const std::vector<ExpertLoad>& loads);
/// Text of these rows; layers with equal numbers are one row of it.
[[nodiscard]] std::string print_expert_load(const nlohmann::json& rows);

}  // namespace trellis::analysis
