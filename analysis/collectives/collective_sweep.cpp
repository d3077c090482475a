#include "analysis/collectives/collective_sweep.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/activity.h"
#include "base/error.h"
#include "base/nearest.h"
#include "sim/config/load_system.h"

namespace trellis::analysis {
namespace {

using sim::CollectiveKind;

struct Operation {
  const char* name;
  const char* nccom;  ///< nccom-test's word
  CollectiveKind kind;
};
constexpr auto kOperations =
    std::to_array<Operation>({{"all_reduce", "allr", CollectiveKind::kAllReduce},
                              {"all_gather", "allg", CollectiveKind::kAllGather},
                              {"reduce_scatter", "redsct", CollectiveKind::kReduceScatter},
                              {"all_to_all", "alltoall", CollectiveKind::kAllToAll},
                              {"broadcast", "broadcast", CollectiveKind::kBroadcast},
                              {"send_recv", "sendrecv", CollectiveKind::kSendRecv},
                              {"permute", "permute", CollectiveKind::kPermute}});

constexpr int kMaxSizes = 1000;
constexpr std::size_t kMaxRanks = 8192;  ///< plans grow with the square of the ranks

struct Type {
  const char* name;
  int bytes;
};
constexpr auto kTypes = std::to_array<Type>({{"uint8", 1},
                                             {"int8", 1},
                                             {"fp8", 1},
                                             {"uint16", 2},
                                             {"int16", 2},
                                             {"bf16", 2},
                                             {"fp16", 2},
                                             {"uint32", 4},
                                             {"int32", 4},
                                             {"fp32", 4},
                                             {"uint64", 8},
                                             {"int64", 8}});

template <typename Table>
const auto& find(const Table& table, const std::string& word, const char* what) {
  std::vector<std::string> names;
  for (const auto& entry : table) {
    if (word == entry.name) return entry;
    names.emplace_back(entry.name);
  }
  std::string known;
  for (const auto& each : names) known += (known.empty() ? "" : ", ") + each;
  const std::string near = nearest_name(word, names);
  throw ConfigError(fmt::format("unknown {} \"{}\"{}; known: {}", what, word,
                                near.empty() ? "" : "; did you mean " + near + "?", known));
}

CollectiveKind find_operation(const std::string& word) {
  for (const Operation& operation : kOperations) {
    if (word == operation.nccom) return operation.kind;
  }
  return find(kOperations, word, "operation").kind;
}

std::vector<int> cores_of(const CollectiveSweep& request, const sim::SystemConfig& system,
                          CollectiveKind kind) {
  if (!request.cores.empty()) return request.cores;
  const int all = system.logical_cores();
  const int ranks = request.ranks.value_or(kind == CollectiveKind::kSendRecv ? 2 : all);
  if (ranks < 1 || ranks > all) {
    throw ConfigError(fmt::format(
        "--ranks {}: expected 1 to {}, the logical cores of {} x {}; add nodes with --nodes", ranks,
        all, system.nodes, system.instance.name));
  }
  if (ranks % system.nodes != 0)
    throw ConfigError(fmt::format(
        "--ranks {}: expected a multiple of the {} nodes, every node holds equally many ranks",
        ranks, system.nodes));
  std::vector<int> cores;
  for (int node = 0; node < system.nodes; ++node) {
    for (int local = 0; local < ranks / system.nodes; ++local)
      cores.push_back(node * system.logical_cores_per_node() + local);
  }
  return cores;
}

/// Elements come in multiples of this: one for each rank where every rank owns a part.
std::int64_t granule(CollectiveKind kind, std::size_t ranks) {
  const bool shared = kind == CollectiveKind::kAllGather ||
                      kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
  return shared ? static_cast<std::int64_t>(ranks) : 1;
}

/// Bytes of the input and output buffers of one rank; twice the largest size is no int64.
double memory_of(CollectiveKind kind, Bytes size, std::size_t ranks) {
  const auto bytes = static_cast<double>(size.value);
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter: return bytes + bytes / static_cast<double>(ranks);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendRecv: return bytes;
    default: return bytes * 2;
  }
}

void check_sizes(const CollectiveSweep& request, int element_bytes) {
  if (request.min.value < element_bytes) {
    throw ConfigError(
        fmt::format("--min {} B holds no element of {} ({} bytes): expected at least {} B",
                    request.min.value, request.dtype, element_bytes, element_bytes));
  }
  if (request.max < request.min)
    throw ConfigError(
        fmt::format("--max {} B is below --min {} B", request.max.value, request.min.value));
  if (!(request.factor > 1) || !std::isfinite(request.factor))
    throw ConfigError(
        fmt::format("--factor {}: expected a number above 1, sizes grow by it", request.factor));
  const double sizes =
      std::log(static_cast<double>(request.max.value) / static_cast<double>(request.min.value)) /
      std::log(request.factor);
  if (sizes > kMaxSizes) {
    throw ConfigError(
        fmt::format("--factor {}: expected at most {} sizes from --min to --max, got {:.0f}: take "
                    "a larger factor",
                    request.factor, kMaxSizes, sizes));
  }
}

void check_memory(const sim::SystemConfig& system, CollectiveKind kind, Bytes size,
                  std::size_t ranks) {
  const double needed = memory_of(kind, size, ranks);
  if (needed <= static_cast<double>(system.hbm_per_logical_core().value)) return;
  throw Error(ExitCode::kDoesNotFit,
              fmt::format("{} of {} B needs {:.1f} GiB for the buffers of each rank, a logical "
                          "core of {} has {:.1f} GiB: lower --max",
                          name(kind), size.value, needed / (1 << 30), system.instance.name,
                          static_cast<double>(system.hbm_per_logical_core().value) / (1 << 30)));
}

}  // namespace

std::string known_operations() {
  std::string text;
  for (const Operation& operation : kOperations)
    text += (text.empty() ? "" : ", ") + std::string(operation.name);
  return text;
}

std::vector<sim::SelectionRow> selection_rows(const CollectiveSweep& request) {
  const sim::CollectiveConfig costs = sim::load_system(request.instance, request.load).collectives;
  return sim::rows({costs.single_step_max, costs.mesh_max, costs.rdh_max});
}

CollectiveSweepResult sweep(const CollectiveSweep& request) {
  const CollectiveKind kind = find_operation(request.op);
  const int element_bytes = find(kTypes, request.dtype, "type").bytes;
  check_sizes(request, element_bytes);
  const sim::SystemConfig system = sim::load_system(request.instance, request.load);
  CollectiveSweepResult result{kind, cores_of(request, system, kind), request.dtype, {}, {}};
  if (result.cores.size() > kMaxRanks)
    throw ConfigError(
        fmt::format("{} ranks: expected at most {}: take fewer --nodes, or fewer --ranks",
                    result.cores.size(), kMaxRanks));
  const std::int64_t step = granule(kind, result.cores.size());
  Activity activity(fmt::format("timing {} over {} ranks, one size after the other", name(kind),
                                result.cores.size()));
  for (auto asked = static_cast<double>(request.min.value);
       asked <= static_cast<double>(request.max.value); asked *= request.factor) {
    const auto bytes = static_cast<std::int64_t>(asked);
    const std::int64_t count = bytes / element_bytes / step * step;
    const Bytes size(count * element_bytes);
    if (count == 0) {
      result.notes.push_back(
          fmt::format("{} B left out: fewer than one element of {} for each of the {} ranks", bytes,
                      request.dtype, step));
      continue;
    }
    if (!result.rows.empty() && result.rows.back().size == size) continue;  // rounded to the same
    if (size.value != bytes)
      result.notes.push_back(
          fmt::format("{} B rounded down to {} B, {} elements: a whole number for each rank", bytes,
                      size.value, count));
    check_memory(system, kind, size, result.cores.size());
    activity.count(static_cast<std::int64_t>(result.rows.size()));
    result.rows.push_back({size, count,
                           sim::time_collective(system, {kind, result.cores, size, element_bytes,
                                                         request.algorithm})});
  }
  if (result.rows.empty())
    throw ConfigError(fmt::format(
        "no size up to --max {} B gives each of the {} ranks an element: expected at least {} B",
        request.max.value, step, step * element_bytes));
  return result;
}

}  // namespace trellis::analysis
