#include "trainer/app/report/memory_timeline.h"

#include <algorithm>
#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <nlohmann/json.hpp>

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr std::int64_t kStretches = 1000;

/// The device's answer for its `device`-th rank.
json whole_timeline(std::int64_t device) {
  const auto op = c10::Dispatcher::singleton().findSchema({"trellis::memory_timeline", ""});
  if (!op) return nullptr;
  torch::jit::Stack stack{device};
  op->callBoxed(stack);
  return json::parse(stack.back().toStringRef());
}

json thinned(const json& events) {
  json kept = json::array();
  if (events.empty()) return kept;
  const auto first = events.front().at("op").get<std::int64_t>(),
             last = events.back().at("op").get<std::int64_t>();
  std::int64_t stretch = -1;
  for (const json& event : events) {
    const std::int64_t here =
        (event.at("op").get<std::int64_t>() - first) * kStretches / (last - first + 1);
    json point = {{"op", event.at("op")},
                  {"allocated", event.at("allocated")},
                  {"reserved", event.at("reserved")},
                  {"phase", event.value("phase", "")}};
    if (here != stretch) {
      kept.push_back(std::move(point));
    } else if (point.at("allocated") > kept.back().at("allocated")) {
      kept.back() = std::move(point);
    }
    stretch = here;
  }
  return kept;
}

}  // namespace

json memory_timeline_of_fullest(const json& memory) {
  if (memory.is_null()) return nullptr;
  const json& ranks = memory.at("ranks");
  const auto fullest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const json& a, const json& b) { return a.at("peak_bytes") < b.at("peak_bytes"); });
  json timeline = whole_timeline(fullest - ranks.begin());
  if (timeline.is_null()) return timeline;
  timeline["events"] = thinned(timeline.at("events"));
  return timeline;
}

}  // namespace trellis::trainer
