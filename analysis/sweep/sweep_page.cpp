#include "analysis/sweep/sweep_page.h"

#include <nlohmann/json.hpp>

#include "analysis/sweep/page_file.h"
#include "analysis/sweep/sweep_output.h"
#include "traces/report/report_page.h"

namespace trellis::analysis {
namespace {

constexpr std::size_t kMostOthers = 2000;  ///< a browser sorts that many rows without a pause

}  // namespace

std::string sweep_page(const SweepResult& result) {
  nlohmann::json sweep = sweep_json(result), rows = nlohmann::json::array();
  std::size_t others = 0;
  for (nlohmann::json& row : sweep.at("rows")) {
    const bool simulated = !row.at("step_time_ps").is_null();
    if (simulated || ++others <= kMostOthers) rows.push_back(std::move(row));
  }
  sweep["rows"] = std::move(rows);
  return html_page(
      {{"sweep", std::move(sweep)}, {"left_out", others > kMostOthers ? others - kMostOthers : 0}},
      kSweepScript);
}

}  // namespace trellis::analysis
