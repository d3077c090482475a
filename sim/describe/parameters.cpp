#include "sim/describe/parameters.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trellis::sim {
namespace {

std::string evidence_text(const std::vector<Parameter>& parameters) {
  std::string text;
  for (const Evidence evidence :
       {Evidence::kSpec, Evidence::kMeasured, Evidence::kCalibrated, Evidence::kEstimated}) {
    const auto count =
        std::count_if(parameters.begin(), parameters.end(),
                      [evidence](const Parameter& p) { return p.evidence == evidence; });
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name(evidence));
  }
  return text;
}

}  // namespace

std::string parameters_text(const std::vector<Parameter>& parameters) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const Parameter& p : parameters) {
    key_width = std::max(key_width, p.key.size());
    value_width = std::max(value_width, p.value.size());
  }
  std::string text = evidence_text(parameters) + "\n";
  for (const Parameter& p : parameters) {
    text += fmt::format("  {:<{}}  {:<{}}  {:<10}  {}{}\n", p.key, key_width, p.value, value_width,
                        name(p.evidence), p.source, p.range.empty() ? "" : " [" + p.range + "]");
  }
  return text;
}

nlohmann::json parameters_json(const std::vector<Parameter>& parameters) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Parameter& p : parameters) {
    rows.push_back({{"key", p.key},
                    {"value", p.value},
                    {"source", p.source},
                    {"evidence", name(p.evidence)},
                    {"range", p.range}});
  }
  return rows;
}

}  // namespace trellis::sim
