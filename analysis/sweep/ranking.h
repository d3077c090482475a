#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/cost/prices.h"
#include "analysis/sweep/row.h"

namespace trellis::analysis {

/// The options of the ranking, as written.
struct RankRequest {
  std::string by = "time";  ///< time, cost or deadline
  std::string prices = {}, paying = {}, tokens = {},
              deadline = {};  ///< price file, one of its ways to pay, "300B", "30d"; "": not given
};

/// The criterion by which simulated layouts of all numbers of nodes are ranked.
struct Ranking {
  std::string by;
  PriceFile prices;
  PricePlan plan;
  std::optional<double> tokens;  ///< of the whole training
  std::optional<double> deadline_s;
};

/// One layout in the ranking.
struct RankedRow {
  const SweepRow* row = nullptr;
  double cost_per_million_tokens = 0;
  std::optional<double> run_s, cost;  ///< of all tokens
  bool in_time = true;                ///< false: it misses the deadline
};

/// None: by time, without prices. Throws ConfigError: an option that the ranking needs is missing
/// or has no effect, a price that the file does not have.
[[nodiscard]] std::optional<Ranking> read_ranking(const RankRequest& request,
                                                  const std::string& instance);

/// Money and time of a layout that was simulated. REQUIRES: row.step.
[[nodiscard]] RankedRow rank_row(const Ranking& ranking, const SweepRow& row);
/// The layouts that fit, the best first: by time; by cost; by deadline those that meet it by cost,
/// then the others by time. Equal ones by time, then by place.
[[nodiscard]] std::vector<RankedRow> ranked_rows(const Ranking& ranking,
                                                 const std::vector<SweepRow>& rows);

[[nodiscard]] std::string ranking_text(const Ranking& ranking, const std::vector<RankedRow>& rows,
                                       std::size_t most);
[[nodiscard]] nlohmann::json ranking_json(const Ranking& ranking,
                                          const std::vector<RankedRow>& rows);

}  // namespace trellis::analysis
