#include "trainer/loop/routed_tokens.h"

#include <string>

#include <nlohmann/json.hpp>

#include "runtime/links/process_link.h"
#include "runtime/ranks/world.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

std::string text_of(const RoutedTokens& layers) {
  json rows = json::array();
  for (const auto& [layer, load] : layers)
    rows.push_back({layer, load.assigned, load.kept, load.computed});
  return rows.dump();
}

void add_text(const std::string& text, RoutingLedger& ledger) {
  for (const json& row : json::parse(text))
    ledger.add(row.at(0), {row.at(1), row.at(2), row.at(3)});
}

}  // namespace

RoutedTokens take_of_all_processes(RoutingLedger& ledger, runtime::RankContext& rank,
                                   std::int64_t step) {
  runtime::ProcessLink* const link = rank.link();
  if (link == nullptr) return ledger.take();
  const auto name = [&](int process) {
    return "routed tokens/" + std::to_string(step) + "/" + std::to_string(process);
  };
  if (rank.rank() != 0) {
    link->leave_text(name(link->process()), text_of(ledger.take()));
    return {};
  }
  for (int other = 1; other < link->processes(); ++other)
    add_text(rank.take_text(name(other)), ledger);
  return ledger.take();
}

}  // namespace trellis::trainer
