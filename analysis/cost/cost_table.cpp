#include "analysis/cost/cost_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "analysis/cost/page_file.h"
#include "base/escape.h"
#include "traces/report/report_page.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

using Align = TextTable::Align;

struct Offer {
  const CostReport* run;
  const PricePlan* plan;
  [[nodiscard]] double cost() const { return run->cost(run->cases[0], *plan); }
};

std::vector<Offer> offers(const CostComparison& comparison) {
  std::vector<Offer> all;
  for (const CostReport& run : comparison.runs) {
    for (const PricePlan& plan : run.plans) all.push_back({&run, &plan});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Offer& a, const Offer& b) { return a.cost() < b.cost(); });
  return all;
}

std::string unused_cell(const CostReport& run) {
  return run.cores ? fmt::format("{} of {}", run.cores->there - run.cores->used, run.cores->there)
                   : "unknown";
}

}  // namespace

std::string comparison_text(const CostComparison& comparison) {
  std::string text;
  if (!comparison.runs.empty()) {
    const CostReport& first = comparison.runs.front();
    text = fmt::format("{}: {:.4g} tokens; money in {}, at the prices of {} ({})\n",
                       terminal_line(first.source), first.tokens(),
                       terminal_line(first.prices.currency), first.prices.date,
                       first.prices.path.string());
    TextTable table({{"machine", Align::kLeft},
                     {"cores without a rank"},
                     {"step"},
                     {"time"},
                     {"node-hours"},
                     {"paying", Align::kLeft},
                     {"cost"},
                     {"of it for unused cores"},
                     {"per million tokens"},
                     {"", Align::kLeft}});
    for (const Offer& offer : offers(comparison)) {
      const CostReport& run = *offer.run;
      const CostCase& expected = run.cases[0];
      table.add({fmt::format("{} × {}", run.nodes, run.instance), unused_cell(run),
                 fmt::format("{:.4g} s", run.step_s), duration_text(expected.time.total_s()),
                 fmt::format("{:.1f}", run.node_hours(expected)), terminal_line(offer.plan->name),
                 money_text(offer.cost()),
                 run.cores ? money_text(run.cost_of_unused(expected, *offer.plan)) : "unknown",
                 fmt::format("{:.4f}", offer.cost() / run.tokens() * 1e6),
                 offer.plan->example ? "EXAMPLE price, replace it" : ""});
    }
    text += table.text();
  }
  for (const RefusedInstance& each : comparison.refused)
    text += fmt::format("not possible on {}: {}\n", each.instance, terminal_line(each.reason));
  return text;
}

json to_json(const CostComparison& comparison) {
  json runs = json::array(), refused = json::array();
  for (const CostReport& run : comparison.runs) runs.push_back(to_json(run));
  for (const RefusedInstance& each : comparison.refused)
    refused.push_back({{"instance", each.instance}, {"reason", each.reason}});
  return {
      {"schema", "trellis.costs/1"}, {"runs", std::move(runs)}, {"refused", std::move(refused)}};
}

std::string cost_csv(const CostComparison& comparison) {
  std::string text =
      "instance,nodes,logical_cores,unused_core_share,case,step_s,steps,tokens,total_s,node_hours,"
      "paying,example_price,per_node_hour,currency,prices_date,cost,"
      "cost_of_unused_cores,cost_per_million_tokens,price_source\n";
  for (const CostReport& run : comparison.runs) {
    for (const CostCase& c : run.cases) {
      for (const PricePlan& plan : run.plans) {
        const std::vector<std::string> cells = {
            csv_cell(run.instance),
            std::to_string(run.nodes),
            run.cores ? std::to_string(run.cores->there) : "",
            run.cores ? fmt::format("{}", run.cores->unused_share()) : "",
            c.name,
            fmt::format("{}", c.step_s),
            std::to_string(run.steps),
            fmt::format("{}", run.tokens()),
            fmt::format("{}", c.time.total_s()),
            fmt::format("{}", run.node_hours(c)),
            csv_cell(plan.name),
            plan.example ? "true" : "false",
            fmt::format("{}", plan.per_hour),
            csv_cell(run.prices.currency),
            run.prices.date,
            fmt::format("{}", run.cost(c, plan)),
            run.cores ? fmt::format("{}", run.cost_of_unused(c, plan)) : "",
            fmt::format("{}", run.cost(c, plan) / run.tokens() * 1e6),
            csv_cell(plan.source)};
        text += fmt::format("{}\n", fmt::join(cells, ","));
      }
    }
  }
  return text;
}

std::string cost_page(const CostComparison& comparison) {
  return html_page(to_json(comparison), kCostScript);
}

}  // namespace trellis::analysis
