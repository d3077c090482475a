#include "analysis/cost/prices.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/yaml/yaml.h"

namespace trellis::analysis {

namespace {

bool is_date(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  int year = 0, month = 0, day = 0;
  const auto read = [&](std::size_t from, std::size_t length, int& value) {
    const char* end = text.data() + from + length;
    return std::from_chars(text.data() + from, end, value).ptr == end;
  };
  if (!read(0, 4, year) || !read(5, 2, month) || !read(8, 2, day) || month < 1 || day < 1)
    return false;
  return (std::chrono::year(year) / std::chrono::month(static_cast<unsigned>(month)) /
          std::chrono::day(static_cast<unsigned>(day)))
      .ok();
}

PricePlan read_plan(const YamlMap& plans, const std::string& name) {
  PricePlan plan{name, 0, "", false};
  if (!plans.is_map(name)) {
    plans.problem(name,
                  "expected a map with per_hour and source, e.g. {per_hour: 1.50, source: \"offer "
                  "of 2026-11-01\"}");
    return plan;
  }
  const YamlMap map = plans.map(name);
  plan.per_hour = map.required<double>("per_hour");
  plan.source = map.required<std::string>("source");
  plan.example = map.get<bool>("example", false);
  if (map.has("per_hour") && !(std::isfinite(plan.per_hour) && plan.per_hour > 0))
    map.problem("per_hour", "expected a price above 0");
  if (map.has("source") && plan.source.empty())
    map.problem("source", "expected where the price is from");
  map.reject_unknown();
  return plan;
}

}  // namespace

const InstancePrices& PriceFile::of(const std::string& instance) const {
  const auto found = std::find_if(instances.begin(), instances.end(),
                                  [&](const InstancePrices& p) { return p.instance == instance; });
  if (found != instances.end()) return *found;
  std::string known;
  for (const InstancePrices& p : instances) known += (known.empty() ? "" : ", ") + p.instance;
  throw ConfigError(path.string() + ": no price for " + instance + "; the file has " +
                    (known.empty() ? "none" : known) + ": add instances." + instance);
}

PriceFile read_prices(const std::filesystem::path& file) {
  const YamlDocument document = YamlDocument::load(file);
  const YamlMap root = document.root();
  PriceFile prices;
  prices.path = file;
  if (!root.has("date")) {
    root.problem("date",
                 "a price without its date is worth nothing: expected the day of the prices, e.g. "
                 "date: 2026-11-22");
  }
  prices.date = root.get<std::string>("date", "");
  if (root.has("date") && !is_date(prices.date))
    root.problem("date", "expected a day as YYYY-MM-DD, got \"" + prices.date + "\"");
  prices.currency = root.required<std::string>("currency");
  if (!root.is_map("instances"))
    root.problem("instances", "expected a map from instance names to their prices");
  const YamlMap instances = root.map("instances");
  for (const std::string& name : instances.keys()) {
    if (!instances.is_map(name)) {
      instances.problem(name, "expected a map of ways to pay: on_demand, reserved, spot");
      continue;
    }
    const YamlMap plans = instances.map(name);
    InstancePrices entry{name, {}};
    for (const std::string& plan : plans.keys()) entry.plans.push_back(read_plan(plans, plan));
    if (entry.plans.empty()) instances.problem(name, "expected at least one way to pay");
    prices.instances.push_back(std::move(entry));
  }
  root.reject_unknown();
  document.problems().throw_if_any();
  return prices;
}

}  // namespace trellis::analysis
