#include "traces/report/expert_load.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

double imbalance_of(const std::vector<std::int64_t>& assigned) {
  const std::int64_t total = sum_of(assigned);
  if (total == 0) return 1;
  return static_cast<double>(*std::ranges::max_element(assigned)) *
         static_cast<double>(assigned.size()) / static_cast<double>(total);
}

/// "expert 3: 1,234 (21 %)"
std::string busiest(const std::vector<std::int64_t>& assigned) {
  const auto most = std::ranges::max_element(assigned);
  return fmt::format("expert {}: {} ({})", most - assigned.begin(), thousands(*most),
                     share_text(static_cast<double>(*most),
                                static_cast<double>(std::max<std::int64_t>(1, sum_of(assigned)))));
}

/// "512 (3 %)" of the rows that were computed.
std::string padding_text(const json& row) {
  const auto padding = row.at("padding").get<std::int64_t>();
  if (padding == 0) return "0";
  const double computed =
      static_cast<double>(padding + row.at("routed_tokens").get<std::int64_t>());
  return fmt::format("{} ({})", thousands(padding),
                     share_text(static_cast<double>(padding), computed));
}

std::vector<std::string> cells_of(const json& row) {
  const auto assigned = row.at("assigned").get<std::vector<std::int64_t>>();
  return {thousands(row.at("routed_tokens").get<std::int64_t>()),
          thousands(row.at("dropped_tokens").get<std::int64_t>()), padding_text(row),
          busiest(assigned), fmt::format("{:.2f}", row.at("imbalance").get<double>())};
}

}  // namespace

json expert_load_json(const std::vector<ExpertLoad>& loads) {
  json rows = json::array();
  for (const ExpertLoad& load : loads) {
    const std::int64_t routed = sum_of(load.kept);
    rows.push_back({{"layer", load.layer},
                    {"routed_tokens", routed},
                    {"dropped_tokens", sum_of(load.assigned) - routed},
                    {"padding", sum_of(load.computed) - routed},
                    {"imbalance", imbalance_of(load.assigned)},
                    {"assigned", load.assigned},
                    {"kept", load.kept},
                    {"computed", load.computed}});
  }
  return rows;
}

std::string print_expert_load(const json& rows) {
  TextTable table({{"layers", TextTable::Align::kLeft},
                   {"routed"},
                   {"dropped"},
                   {"padding"},
                   {"busiest", TextTable::Align::kLeft},
                   {"of an even share"}});
  for (std::size_t i = 0; i < rows.size();) {
    const std::vector<std::string> cells = cells_of(rows[i]);
    std::size_t end = i + 1;
    while (end < rows.size() && cells_of(rows[end]) == cells) ++end;
    const int first = rows[i].at("layer").get<int>(), last = rows[end - 1].at("layer").get<int>();
    std::vector<std::string> row{first == last ? std::to_string(first)
                                               : fmt::format("{}-{}", first, last)};
    row.insert(row.end(), cells.begin(), cells.end());
    table.add(std::move(row));
    i = end;
  }
  return "Picks of the routers in the last step, all ranks\n" + table.text();
}

}  // namespace trellis::analysis
