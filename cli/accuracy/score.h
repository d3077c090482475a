#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/accuracy/published_rows.h"

namespace trellis::cli {

/// A published row beside the model. Errors are model / published − 1, signed.
struct ScoredRow {
  PublishedRow row;
  double model_us = 0;
  [[nodiscard]] double error() const { return model_us / row.time_us - 1; }
};

/// Median and 90th percentile (linear between ranks) and worst of |error|.
struct Summary {
  std::size_t rows = 0;
  double median = 0, p90 = 0, worst = 0;
};
[[nodiscard]] Summary summarize(std::vector<double> errors);

/// What `trellis accuracy` prints: worst first, then summaries per group and for all, those fitted on and those held out apart.
[[nodiscard]] std::string accuracy_text(const std::string& subject, std::vector<ScoredRow> scored, const std::vector<PublishedRow>& excluded);
/// Schema trellis.accuracy/1.
[[nodiscard]] nlohmann::json accuracy_json(const std::string& subject, const std::vector<ScoredRow>& scored, const std::vector<PublishedRow>& excluded);

}  // namespace trellis::cli
