#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/selfcheck/sanity_check.h"
#include "analysis/selfcheck/workloads.h"
#include "sim/collectives/outline.h"
#include "sim/config/load_system.h"

namespace trellis::analysis {
namespace {

using sim::Algorithm;
using sim::CollectiveKind;

constexpr std::int64_t kGiB = 1 << 30;

/// Twice the data through a ring takes, beyond latency that does not depend on size, 2(n−1)/n·S/B
/// longer, B being what the busiest resource carries at full rate.
Finding ring_follows_its_formula() {
  double worst = 0;
  std::string where;
  for (const auto& [instance, ranks] : {std::pair{"trn1.32xlarge", 2},
                                        {"trn1.32xlarge", 8},
                                        {"trn1.32xlarge", 32},
                                        {"trn2.48xlarge", 64}}) {
    const auto at = [&, i = instance, n = ranks](std::int64_t bytes) {
      return seconds(
          run_collective({i, 1, n, CollectiveKind::kAllReduce, bytes, Algorithm::kRing}).time);
    };
    const double slope = (at(kGiB) - at(kGiB / 2)) / (kGiB / 2.0);
    const double latency = at(kGiB) - slope * kGiB;
    const double predicted = latency + slope * (kGiB / 4.0);
    const double error = std::abs(at(kGiB / 4) / predicted - 1);
    const double bus = 2.0 * (ranks - 1) / ranks / slope;
    if (error >= worst) {
      worst = error;
      where = fmt::format("{} ranks of {}: latency {:.1f} us + 2(n-1)/n S / {:.1f} GB/s", ranks,
                          instance, latency * 1e6, bus * 1e-9);
    }
  }
  return {worst <= 0.01, fmt::format("worst deviation {:.3f} % ({})", 100 * worst, where)};
}

Finding latency_grows_with_the_ring() {
  double before = 0;
  std::string times;
  bool grows = true;
  for (const int ranks : {2, 8, 32}) {
    const double time =
        seconds(run_collective({"trn1.32xlarge", 1, ranks, CollectiveKind::kAllReduce, 4 * ranks,
                                Algorithm::kRing})
                    .time);
    grows = grows && time > before;
    before = time;
    times += fmt::format("{}{} ranks {:.1f} us", times.empty() ? "" : ", ", ranks, time * 1e6);
  }
  return {grows, times};
}

/// Every byte that a member sends is received by another one: sums over the plan's steps.
Finding bytes_sent_are_received() {
  int plans = 0;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast}) {
    for (const int members : {2, 3, 8, 32}) {
      const std::int64_t elements = 96 * members;
      const sim::CommPlan plan = sim::ring_plan(kind, members, elements);
      std::vector<std::int64_t> sent(static_cast<std::size_t>(members)),
          received(static_cast<std::size_t>(members));
      for (const auto& step : plan.steps) {
        sent[static_cast<std::size_t>(step.from)] += step.length;
        received[static_cast<std::size_t>(step.to)] += step.length;
      }
      ++plans;
      if (kind != CollectiveKind::kBroadcast && sent != received)
        return {false, fmt::format("{} of {} members: a member sends {} and receives {}",
                                   sim::name(kind), members, sent[0], received[0])};
    }
  }
  return {true, fmt::format("{} plans", plans)};
}

/// The size of an all-gather is what it ends with: each member receives (n−1)/n of it.
Finding all_gather_size_is_the_gathered_size() {
  constexpr int kMembers = 8;
  constexpr std::int64_t kElements = 800;
  for (const std::int64_t sent :
       sim::elements_sent(sim::ring_plan(CollectiveKind::kAllGather, kMembers, kElements))) {
    if (sent != kElements / kMembers * (kMembers - 1))
      return {false, fmt::format("a member sends {} of {} elements", sent, kElements)};
  }
  const auto gather = run_collective(
      {"trn1.32xlarge", 1, 32, CollectiveKind::kAllGather, 256 * kMiB, Algorithm::kRing});
  const auto reduce = run_collective(
      {"trn1.32xlarge", 1, 32, CollectiveKind::kAllReduce, 256 * kMiB, Algorithm::kRing});
  const double ratio = seconds(reduce.time) / seconds(gather.time);
  return {
      ratio > 1.6 && ratio < 2.4,
      fmt::format("an all-reduce of the same size takes {:.2f} times as long: scatter and gather",
                  ratio)};
}

Finding algorithms_and_fabrics_differ() {
  const CollectiveCase base{"trn2.48xlarge", 1, 64, CollectiveKind::kAllGather, 16 * kMiB};
  CollectiveCase ring = base, mesh = base, other = base;
  ring.algorithm = Algorithm::kRing;
  mesh.algorithm = Algorithm::kMesh;
  other.instance = "trn3";
  for (const std::string& name : sim::instance_names()) {
    if (name.starts_with("trn3") && sim::load_system(name).logical_cores() >= 4)
      other.instance = name;
  }
  other.ranks = std::min(64, sim::load_system(other.instance).logical_cores());
  other.algorithm = Algorithm::kRing;
  const double r = seconds(run_collective(ring).time), m = seconds(run_collective(mesh).time),
               s = seconds(run_collective(other).time);
  return {
      r != m && r != s && m != s,
      fmt::format(
          "16 MiB all-gather: ring {:.1f} us, mesh {:.1f} us; ring over switches ({}) {:.1f} us",
          r * 1e6, m * 1e6, other.instance, s * 1e6)};
}

Finding links_carry_what_is_sent() {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kMesh}) {
    const auto timing =
        run_collective({"trn1.32xlarge", 1, 32, CollectiveKind::kAllReduce, 64 * kMiB, algorithm});
    std::int64_t on_links = 0;
    for (const auto& link : timing.links) on_links += link.bytes.value;
    if (on_links != timing.wire_bytes.value)
      return {false, fmt::format("{}: links carry {} B, {} B are counted", sim::name(algorithm),
                                 on_links, timing.wire_bytes.value)};
    for (const auto& link : timing.links) {
      if (link.busy > timing.time)
        return {false, fmt::format("{} is busy for {:.1f} us of {:.1f}", link.name,
                                   seconds(link.busy) * 1e6, seconds(timing.time) * 1e6)};
    }
  }
  return {true, "ring and mesh over 32 ranks"};
}

}  // namespace

std::vector<SanityCheck> collective_checks() {
  return {
      {"ring-formula", "a ring all-reduce takes latency + 2(n-1)/n S/B, within 1 %",
       ring_follows_its_formula},
      {"ring-latency", "a longer ring has more latency", latency_grows_with_the_ring},
      {"bytes-conserved", "every byte that is sent is received", bytes_sent_are_received},
      {"links-conserved",
       "the bytes on the links are the bytes that are counted, and no link is busy for longer than "
       "the whole",
       links_carry_what_is_sent},
      {"all-gather-size", "the size of an all-gather is what it ends with",
       all_gather_size_is_the_gathered_size},
      {"algorithms-differ", "ring, mesh and switch do not take the same time",
       algorithms_and_fabrics_differ},
  };
}

}  // namespace trellis::analysis
