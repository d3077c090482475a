#include "analysis/sweep/ranking.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "analysis/cost/cost_report.h"
#include "base/error.h"
#include "base/escape.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

PricePlan plan_of(const PriceFile& prices, const std::string& instance, const std::string& paying) {
  const std::vector<PricePlan>& plans = prices.of(instance).plans;
  if (paying.empty()) return plans.front();
  const auto found = std::ranges::find(plans, paying, &PricePlan::name);
  if (found != plans.end()) return *found;
  std::vector<std::string> names;
  for (const PricePlan& plan : plans) names.push_back(plan.name);
  throw ConfigError(fmt::format("--paying {}: {} has no such price for {}: expected {}", paying,
                                prices.path.string(), instance, fmt::join(names, ", ")));
}

void check_options(const RankRequest& request) {
  if (request.prices.empty()) {
    if (request.by != "time")
      throw ConfigError("--rank-by " + request.by +
                        ": needs --prices FILE, e.g. examples/prices.yaml");
    for (const auto& [option, value] :
         {std::pair{"--paying", request.paying}, std::pair{"--tokens", request.tokens},
          std::pair{"--deadline", request.deadline}}) {
      if (!value.empty())
        throw ConfigError(std::string(option) + ": has an effect with --prices FILE only");
    }
  }
  if (request.by == "deadline" && request.deadline.empty())
    throw ConfigError("--rank-by deadline: needs --deadline TIME, e.g. 30d");
  if (!request.deadline.empty() && request.tokens.empty())
    throw ConfigError("--deadline: needs --tokens N, the whole training, e.g. 300B");
}

std::string in_time_text(const Ranking& ranking, const RankedRow& row) {
  if (!ranking.deadline_s) return "-";
  return row.in_time ? "yes" : duration_text(*row.run_s - *ranking.deadline_s) + " late";
}

std::string title(const Ranking& ranking) {
  const std::string what = ranking.by == "time"   ? "Fastest"
                           : ranking.by == "cost" ? "Cheapest"
                                                  : "Cheapest in time";
  return fmt::format(
      "\n{} of all numbers of nodes, at {} {:.2f} {} per node and hour{} (prices of {}, {})\n",
      what, terminal_line(ranking.plan.name), ranking.plan.per_hour,
      terminal_line(ranking.prices.currency),
      ranking.plan.example ? ", an EXAMPLE price, replace it" : "", ranking.prices.date,
      ranking.prices.path.string());
}

}  // namespace

std::optional<Ranking> read_ranking(const RankRequest& request, const std::string& instance) {
  check_options(request);
  if (request.prices.empty()) return std::nullopt;
  Ranking ranking{request.by, read_prices(request.prices), {}, {}, {}};
  ranking.plan = plan_of(ranking.prices, instance, request.paying);
  if (!request.tokens.empty()) ranking.tokens = parse_count("--tokens", request.tokens);
  if (!request.deadline.empty())
    ranking.deadline_s = parse_duration("--deadline", request.deadline);
  return ranking;
}

RankedRow rank_row(const Ranking& ranking, const SweepRow& row) {
  const double per_token =
      row.candidate.nodes * ranking.plan.per_hour / 3600 / row.step->tokens_per_s;
  RankedRow ranked{&row, per_token * 1e6, {}, {}, true};
  if (!ranking.tokens) return ranked;
  ranked.run_s = *ranking.tokens / row.step->tokens_per_s;
  ranked.cost = per_token * *ranking.tokens;
  ranked.in_time = !ranking.deadline_s || *ranked.run_s <= *ranking.deadline_s;
  return ranked;
}

std::vector<RankedRow> ranked_rows(const Ranking& ranking, const std::vector<SweepRow>& rows) {
  std::vector<RankedRow> ranked;
  for (const SweepRow& row : rows) {
    if (row.step) ranked.push_back(rank_row(ranking, row));
  }
  const auto key = [&](const RankedRow& row) {
    const bool late = ranking.by == "deadline" && !row.in_time;
    const bool by_cost = ranking.by != "time" && !late;
    const auto time = static_cast<double>(row.row->step->step_time_ps);
    return std::tuple(late, by_cost ? row.cost_per_million_tokens : time, time, row.row->index);
  };
  std::ranges::sort(ranked, {}, key);
  return ranked;
}

std::string ranking_text(const Ranking& ranking, const std::vector<RankedRow>& rows,
                         std::size_t most) {
  if (rows.empty()) return "";
  TextTable table({{"#"},
                   {"layout", TextTable::Align::kLeft},
                   {"nodes"},
                   {"step"},
                   {"per million tokens"},
                   {"whole training"},
                   {"cost"},
                   {"in time"}});
  for (std::size_t i = 0; i < std::min(rows.size(), most); ++i) {
    const RankedRow& row = rows[i];
    table.add({std::to_string(i + 1), to_string(row.row->candidate),
               std::to_string(row.row->candidate.nodes),
               milliseconds_text(row.row->step->step_time_ps),
               fmt::format("{:.4g}", row.cost_per_million_tokens),
               row.run_s ? duration_text(*row.run_s) : "-", row.cost ? money_text(*row.cost) : "-",
               in_time_text(ranking, row)});
  }
  std::string text = title(ranking) + table.text();
  const bool none = ranking.deadline_s && std::ranges::none_of(rows, &RankedRow::in_time);
  if (none)
    text += fmt::format("  no layout meets the deadline of {}: take more --nodes\n",
                        duration_text(*ranking.deadline_s));
  return text;
}

nlohmann::json ranking_json(const Ranking& ranking, const std::vector<RankedRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const RankedRow& row : rows) {
    nlohmann::json entry = {{"index", row.row->index},
                            {"cost_per_million_tokens", row.cost_per_million_tokens}};
    if (row.run_s) entry.update({{"run_s", *row.run_s}, {"cost", *row.cost}});
    if (ranking.deadline_s) entry["in_time"] = row.in_time;
    list.push_back(std::move(entry));
  }
  nlohmann::json document = {{"by", ranking.by},
                             {"paying", ranking.plan.name},
                             {"per_node_hour", ranking.plan.per_hour},
                             {"example_price", ranking.plan.example},
                             {"currency", ranking.prices.currency},
                             {"prices_date", ranking.prices.date},
                             {"prices_file", ranking.prices.path.string()},
                             {"rows", std::move(list)}};
  if (ranking.tokens) document["tokens"] = *ranking.tokens;
  if (ranking.deadline_s) document["deadline_s"] = *ranking.deadline_s;
  return document;
}

}  // namespace trellis::analysis
