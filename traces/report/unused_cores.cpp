#include "traces/report/unused_cores.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trellis::analysis {

std::optional<CoreUse> core_use(const nlohmann::json& report) {
  const int there = report.value("simulated", nlohmann::json::object()).value("logical_cores", 0);
  if (there == 0) return std::nullopt;
  return CoreUse{report.at("world_size").get<int>(), there};
}

std::string unused_text(const CoreUse& use) {
  if (use.used >= use.there) return fmt::format("all {} logical cores run a rank", use.there);
  return fmt::format("{} of {} logical cores run no rank: {:.2f} % of what is paid for",
                     use.there - use.used, use.there, 100 * use.unused_share());
}

}  // namespace trellis::analysis
