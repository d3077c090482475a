#include "analysis/cost/cost_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "base/number_text.h"
#include "traces/report/text_table.h"
#include "traces/report/validity.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

using Align = TextTable::Align;

std::array<std::pair<const char*, double>, 5> parts(const RunTime& time) {
  return {{{"training steps", time.steps_s},
           {"validation", time.validation_s},
           {"writing checkpoints", time.checkpoints_s},
           {"lost work", time.lost_work_s},
           {"restarts", time.restarts_s}}};
}

TextTable prices_table(const CostReport& report) {
  std::vector<TextTable::Column> columns{{"paying", Align::kLeft},
                                         {report.prices.currency + " per node-hour"}};
  for (const CostCase& c : report.cases)
    columns.push_back({report.prices.currency + (report.cases.size() > 1 ? ", " + c.name : "")});
  const bool unused = report.cores && report.cores->unused_share() > 0;
  if (unused) columns.push_back({"of it for unused cores"});
  columns.push_back({"per million tokens"});
  columns.push_back({"source", Align::kLeft});
  TextTable table(columns);
  for (const PricePlan& plan : report.plans) {
    std::vector<std::string> cells{plan.name, fmt::format("{:.2f}", plan.per_hour)};
    for (const CostCase& c : report.cases) cells.push_back(money_text(report.cost(c, plan)));
    if (unused) cells.push_back(money_text(report.cost_of_unused(report.cases[0], plan)));
    cells.push_back(
        fmt::format("{:.4f}", report.cost(report.cases[0], plan) / report.tokens() * 1e6));
    cells.push_back((plan.example ? "EXAMPLE, replace it: " : "") + plan.source);
    table.add(std::move(cells));
  }
  return table;
}

TextTable time_table(const CostReport& report) {
  std::vector<TextTable::Column> columns{{"part", Align::kLeft}};
  for (const CostCase& c : report.cases) {
    columns.push_back({c.name});
    columns.push_back({"share"});
  }
  TextTable table(columns);
  const std::size_t count = parts(report.cases[0].time).size();
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::string> cells{parts(report.cases[0].time)[i].first};
    for (const CostCase& c : report.cases) {
      cells.push_back(duration_text(parts(c.time)[i].second));
      cells.push_back(share_text(parts(c.time)[i].second, c.time.total_s()));
    }
    table.add(std::move(cells));
  }
  std::vector<std::string> total{"total"}, hours{"node-hours"};
  for (const CostCase& c : report.cases) {
    total.insert(total.end(), {duration_text(c.time.total_s()), "100.00 %"});
    hours.insert(hours.end(), {fmt::format("{:.1f}", report.node_hours(c)), ""});
  }
  table.add(std::move(total));
  table.add(std::move(hours));
  return table;
}

std::string failures_text(const CostReport& report) {
  const RunTime& time = report.cases[0].time;
  std::string text;
  if (report.checkpoint_bytes)
    text += fmt::format("A checkpoint: {}, {} standing still\n",
                        human_bytes(static_cast<std::int64_t>(*report.checkpoint_bytes)),
                        duration_text(report.inputs.checkpoint_s));
  if (time.interval_s) {
    text +=
        fmt::format("Checkpoints: every {}{}, {:.0f} of them\n", duration_text(*time.interval_s),
                    time.interval_is_optimum ? " (Daly's optimum)" : "", time.checkpoints);
  }
  if (report.inputs.node_mtbf_s) {
    text += fmt::format("Failures: one node in {}, so {} nodes in {}: {:.1f} expected\n",
                        duration_text(*report.inputs.node_mtbf_s), report.nodes,
                        duration_text(*report.inputs.node_mtbf_s / report.nodes), time.failures);
  }
  return text;
}

json time_json(const CostReport& report, const CostCase& c) {
  json costs = json::object(), unused = json::object();
  for (const PricePlan& plan : report.plans) {
    costs[plan.name] = report.cost(c, plan);
    if (report.cores) unused[plan.name] = report.cost_of_unused(c, plan);
  }
  json document = {{"name", c.name},
                   {"step_time_s", c.step_s},
                   {"steps_s", c.time.steps_s},
                   {"validation_s", c.time.validation_s},
                   {"checkpoints_s", c.time.checkpoints_s},
                   {"lost_work_s", c.time.lost_work_s},
                   {"restarts_s", c.time.restarts_s},
                   {"total_s", c.time.total_s()},
                   {"days", c.time.total_s() / 86400},
                   {"node_hours", report.node_hours(c)},
                   {"expected_failures", c.time.failures},
                   {"checkpoints", c.time.checkpoints},
                   {"cost", std::move(costs)},
                   {"cost_of_unused_cores", std::move(unused)}};
  if (c.time.interval_s) document["checkpoint_interval_s"] = *c.time.interval_s;
  return document;
}

}  // namespace

std::string money_text(double amount) {
  return amount >= 1000 ? thousands(std::llround(amount)) : fmt::format("{:.2f}", amount);
}

std::string dominating(const RunTime& time) {
  auto list = parts(time);
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text =
      fmt::format("{} {} of the time", list[0].first, share_text(list[0].second, time.total_s()));
  if (list[1].second > 0)
    text += fmt::format("; most of the rest: {}, {}", list[1].first,
                        share_text(list[1].second, time.total_s()));
  return text;
}

json to_json(const CostReport& report) {
  json cases = json::array(), plans = json::array();
  for (const CostCase& c : report.cases) cases.push_back(time_json(report, c));
  for (const PricePlan& p : report.plans)
    plans.push_back({{"name", p.name},
                     {"per_node_hour", p.per_hour},
                     {"source", p.source},
                     {"example", p.example}});
  json document = {{"schema", "trellis.cost/1"},
                   {"source", report.source},
                   {"evidence", report.evidence},
                   {"validity", report.validity},
                   {"instance", report.instance},
                   {"nodes", report.nodes},
                   {"steps", report.steps},
                   {"tokens", report.tokens()},
                   {"mfu", report.mfu},
                   {"checkpoint_s", report.inputs.checkpoint_s},
                   {"restart_s", report.inputs.restart_s},
                   {"cases", std::move(cases)},
                   {"dominating", dominating(report.cases[0].time)},
                   {"currency", report.prices.currency},
                   {"prices_date", report.prices.date},
                   {"prices_file", report.prices.path.string()},
                   {"prices", std::move(plans)},
                   {"notes", report.notes}};
  if (report.cores) {
    document["logical_cores"] = report.cores->there;
    document["unused_core_share"] = report.cores->unused_share();
  }
  if (report.checkpoint_bytes) document["checkpoint_bytes"] = *report.checkpoint_bytes;
  if (report.inputs.node_mtbf_s) document["node_mtbf_s"] = *report.inputs.node_mtbf_s;
  return document;
}

std::string cost_text(const CostReport& report) {
  std::string text = fmt::format(
      "{} steps of {} tokens ({:.4g} tokens) at {:.4f} ms (simulated, evidence: {}), MFU {:.2f} %, "
      "on {} × {}\n\n",
      thousands(report.steps), thousands(report.tokens_per_step), report.tokens(),
      report.step_s * 1e3, report.evidence, 100 * report.mfu, report.nodes, report.instance);
  text.insert(text.size() - 1, validity_line(report.validity));
  if (report.cores) text.insert(text.size() - 1, "Cores: " + unused_text(*report.cores) + "\n");
  text += "Time\n" + time_table(report).text() + "\n" + failures_text(report);
  text += "What dominates: " + dominating(report.cases[0].time) + "\n\n";
  text += fmt::format("Money, at the prices of {} ({})\n", report.prices.date,
                      report.prices.path.string()) +
          prices_table(report).text();
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace trellis::analysis
