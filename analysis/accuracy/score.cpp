#include "analysis/accuracy/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/config/model_version.h"

namespace trellis::analysis {
namespace {

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

/// Group → |errors|; "all" last. Each also split by use.
std::vector<std::pair<std::string, std::vector<double>>> grouped(
    const std::vector<ScoredRow>& scored) {
  std::map<std::string, std::vector<double>> groups;
  std::map<std::string, std::vector<double>> uses;
  std::vector<double> all;
  for (const ScoredRow& each : scored) {
    groups[each.row.group].push_back(each.error());
    for (const std::string& group : each.row.also) groups[group].push_back(each.error());
    uses[fmt::format("all, {} rows", name(each.row.use))].push_back(each.error());
    all.push_back(each.error());
  }
  std::vector<std::pair<std::string, std::vector<double>>> out(groups.begin(), groups.end());
  out.insert(out.end(), uses.begin(), uses.end());
  out.emplace_back("all", all);
  return out;
}

/// From 1; equal values have the mean of their places.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    const auto below =
        std::count_if(values.begin(), values.end(), [&](double other) { return other < value; });
    const auto equal = std::count(values.begin(), values.end(), value);
    ranks.push_back(static_cast<double>(below) + static_cast<double>(equal + 1) / 2);
  }
  return ranks;
}

}  // namespace

double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  const std::vector<double> a = ranks_of(x), b = ranks_of(y);
  const double mean = static_cast<double>(a.size() + 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  return aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa * bb);
}

void sort_worst_first(std::vector<ScoredRow>& scored) {
  std::stable_sort(scored.begin(), scored.end(), [](const ScoredRow& a, const ScoredRow& b) {
    return std::abs(a.error()) > std::abs(b.error());
  });
}

std::string summaries_text(const std::vector<ScoredRow>& scored, std::size_t width) {
  std::string text = fmt::format("{:<{}}  {:>6}  {:>8}  {:>8}  {:>8}\n", "group, |error|", width,
                                 "rows", "median", "p90", "worst");
  for (const auto& [group, errors] : grouped(scored)) {
    const Summary s = summarize(errors);
    text += fmt::format("{:<{}}  {:>6}  {:>7.1f}%  {:>7.1f}%  {:>7.1f}%\n", group, width, s.rows,
                        100 * s.median, 100 * s.p90, 100 * s.worst);
  }
  return text;
}

nlohmann::json summaries_json(const std::vector<ScoredRow>& scored) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [group, errors] : grouped(scored)) {
    const Summary s = summarize(errors);
    out.push_back({{"group", group},
                   {"rows", s.rows},
                   {"median", s.median},
                   {"p90", s.p90},
                   {"worst", s.worst}});
  }
  return out;
}

Summary summarize(std::vector<double> errors) {
  if (errors.empty()) return {};
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  return {errors.size(), percentile(errors, 0.5), percentile(errors, 0.9), errors.back()};
}

std::string accuracy_text(const std::string& subject, std::vector<ScoredRow> scored,
                          const std::vector<PublishedRow>& excluded) {
  sort_worst_first(scored);
  std::size_t width = 20;
  for (const ScoredRow& each : scored) width = std::max(width, each.row.id.size());
  std::string text = fmt::format(
      "Accuracy of {}: published rows compared with the model, worst first (error = model / "
      "published - "
      "1)\n\n{:<{}}  {:>13}  {:>13}  {:>8}  {:<5} {:<14} {}\n",
      subject, "row", width, "published us", "model us", "error", "use", "instance", "source");
  for (const ScoredRow& each : scored) {
    text += fmt::format("{:<{}}  {:>13.2f}  {:>13.2f}  {:>+7.1f}%  {:<5} {:<14} {}\n", each.row.id,
                        width, each.row.time_us, each.model_us, 100 * each.error(),
                        name(each.row.use), each.row.instance, each.row.source);
  }
  text += "\n" + summaries_text(scored, width);
  if (!excluded.empty()) text += "\nNot scored:\n";
  for (const PublishedRow& row : excluded)
    text += fmt::format("{:<{}}  {:>13.2f} us  {}\n", row.id, width, row.time_us, row.reason);
  return text;
}

nlohmann::json accuracy_json(const std::string& subject, const std::vector<ScoredRow>& scored,
                             const std::vector<PublishedRow>& excluded) {
  nlohmann::json out = {
      {"schema", "trellis.accuracy/1"},      {"subject", subject},
      {"model", sim::kModelVersion},         {"rows", nlohmann::json::array()},
      {"summaries", summaries_json(scored)}, {"excluded", nlohmann::json::array()}};
  for (const ScoredRow& each : scored) {
    out["rows"].push_back({{"id", each.row.id},
                           {"group", each.row.group},
                           {"use", name(each.row.use)},
                           {"instance", each.row.instance},
                           {"source", each.row.source},
                           {"published_us", each.row.time_us},
                           {"model_us", each.model_us},
                           {"error", each.error()}});
  }
  for (const PublishedRow& row : excluded)
    out["excluded"].push_back(
        {{"id", row.id}, {"published_us", row.time_us}, {"reason", row.reason}});
  return out;
}

}  // namespace trellis::analysis
