#include "sim/describe/storage_text.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/describe/parameters.h"

namespace trellis::sim {
namespace {

std::string rate_text(BytesPerSecond rate) {
  return rate.value > 0 ? fmt::format("{:.4g} GB/s", rate.value * 1e-9) : "no limit";
}

nlohmann::json side_json(const StorageConfig& storage, const StorageSide& side) {
  return {{"rank_gb_per_s", storage.rank_rate(side).value * 1e-9},
          {"node_gb_per_s", side.node.value * 1e-9},
          {"cluster_gb_per_s", side.cluster.value * 1e-9},
          {"file_latency_ms", to_milliseconds(side.file_latency)},
          {"requests_per_second", side.requests_per_second}};
}

}  // namespace

std::string storage_text(const StorageConfig& storage, const SystemConfig& system) {
  std::string text = fmt::format("{}: {}\n  {:<8}{:>14}{:>14}{:>16}{:>14}{:>16}\n", storage.name,
                                 storage.description, "", "a rank", "an instance", "all instances",
                                 "a file", "requests/s");
  const std::array<std::pair<const char*, const StorageSide*>, 2> sides{
      {{"write", &storage.write}, {"read", &storage.read}}};
  for (const auto& [word, side] : sides) {
    const std::string all = storage.shared
                                ? rate_text(side->cluster)
                                : rate_text(side->node * static_cast<double>(system.nodes));
    text += fmt::format(
        "  {:<8}{:>14}{:>14}{:>16}{:>14}{:>16}\n", word, rate_text(storage.rank_rate(*side)),
        rate_text(side->node), all, fmt::format("{:.4g} ms", to_milliseconds(side->file_latency)),
        side->requests_per_second > 0 ? fmt::format("{:.6g}", side->requests_per_second)
                                      : "no limit");
  }
  return text + "  Parameters: " + parameters_text(storage.parameters);
}

nlohmann::json storage_json(const StorageConfig& storage) {
  return {{"name", storage.name},
          {"description", storage.description},
          {"scope", storage.shared ? "cluster" : "node"},
          {"capacity_bytes", storage.capacity.value},
          {"write", side_json(storage, storage.write)},
          {"read", side_json(storage, storage.read)},
          {"parameters", parameters_json(storage.parameters)}};
}

}  // namespace trellis::sim
