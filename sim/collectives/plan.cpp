#include "sim/collectives/plan.h"

#include <array>

namespace trellis::sim {

std::string_view name(CollectiveKind kind) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                       "broadcast", "send_recv", "barrier", "permute"});
  return kNames.at(static_cast<std::size_t>(kind));
}

std::vector<std::int64_t> elements_sent(const CommPlan& plan) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(plan.members), 0);
  for (const PlanStep& step : plan.steps) sent[static_cast<std::size_t>(step.from)] += step.length;
  return sent;
}

}  // namespace trellis::sim
