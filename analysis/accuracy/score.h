#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/accuracy/published_rows.h"

namespace trellis::analysis {

/// A published row compared with the model. Errors are model / published − 1, signed.
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

/// Rank correlation of two series of equal length, −1 … 1; equal values share their rank. 0 when
/// one of them does not vary.
[[nodiscard]] double spearman(const std::vector<double>& x, const std::vector<double>& y);

/// The largest |error| first.
void sort_worst_first(std::vector<ScoredRow>& scored);
/// Rows, median, p90 and worst |error| of each group, of each use and of all; as lines and as JSON.
[[nodiscard]] std::string summaries_text(const std::vector<ScoredRow>& scored, std::size_t width);
[[nodiscard]] nlohmann::json summaries_json(const std::vector<ScoredRow>& scored);

/// The output of `trellis accuracy`: worst first, then summaries per group and for all, those
/// fitted on and those held out separately.
[[nodiscard]] std::string accuracy_text(const std::string& subject, std::vector<ScoredRow> scored,
                                        const std::vector<PublishedRow>& excluded);
/// Schema trellis.accuracy/1.
[[nodiscard]] nlohmann::json accuracy_json(const std::string& subject,
                                           const std::vector<ScoredRow>& scored,
                                           const std::vector<PublishedRow>& excluded);

}  // namespace trellis::analysis
