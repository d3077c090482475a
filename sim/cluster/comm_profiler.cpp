#include "sim/cluster/comm_profiler.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "sim/collectives/outline.h"

namespace trellis::sim {
namespace {

/// splitmix64's finalizer over a running value.
std::uint64_t mix(std::uint64_t h, std::uint64_t value) {
  h += 0x9e3779b97f4a7c15u + value;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

/// Hashes of three words. Flows that follow each other are mostly alike.
class Mixed {
 public:
  std::uint64_t operator()(std::int64_t a, std::int64_t b, std::int64_t c) {
    Kept& kept = kept_[static_cast<std::size_t>(a * 31 + b) % kept_.size()];
    if (kept.a != a || kept.b != b || kept.c != c || !kept.valid)
      kept = {a, b, c, mix(mix(mix(0, unsigned_of(a)), unsigned_of(b)), unsigned_of(c)), true};
    return kept.hash;
  }

 private:
  struct Kept {
    std::int64_t a = 0, b = 0, c = 0;
    std::uint64_t hash = 0;
    bool valid = false;
  };
  static std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }
  std::array<Kept, 64> kept_{};
};

/// Two numbers below 2^31 in one.
std::int64_t pack(std::int64_t high, std::int64_t low) { return high << 32 | low; }

// In place of a core.
constexpr std::int64_t kNoCore = 0x7ffffffd, kReceives = 0x7ffffffe, kOnLine = 0x7fffffff;

/// The part of a plan in which the kept domains take part; the length of its rounds is unchanged.
PlanTraffic part_of(const PlanTraffic& plan, const std::vector<int>& domain,
                    const std::vector<bool>& kept) {
  PlanTraffic result{{}, plan.ends_phase};
  const auto is_kept = [&](int member) {
    return kept[static_cast<std::size_t>(domain[static_cast<std::size_t>(member)])];
  };
  for (const StageTraffic& part : plan.parts) {
    StageTraffic& mine = result.parts.emplace_back(StageTraffic{part.rounds,
                                                                part.messages,
                                                                part.exchange,
                                                                part.reduced_last,
                                                                part.all_ready,
                                                                part.waits_for_sum,
                                                                part.channel,
                                                                {},
                                                                part.direct});
    for (const Flow& flow : part.flows) {
      if (is_kept(flow.from) || is_kept(flow.to)) mine.flows.push_back(flow);
    }
  }
  return result;
}

}  // namespace

CommProfiler::CommProfiler(const CommMachine& machine, const std::set<int>& nodes,
                           CommTraffic& traffic)
    : machine_(machine), nodes_(nodes), traffic_(traffic) {
  for (const int node : nodes)
    near_domains_.insert(node / machine.topology().instance().ultraserver_nodes);
}

CommTraffic::Places CommTraffic::places_of(const CommShape& shape) const {
  const Topology& topology = machine_.topology();
  const int cores = topology.cores() / topology.nodes() * topology.instance().ultraserver_nodes;
  const auto chip = [&](int core) { return topology.chip_of(core); };
  Places places;
  for (const int core : shape.cores) {
    if (places.domains.empty() || places.domains.back() != core / cores)
      places.domains.push_back(core / cores);
    places.domain.push_back(static_cast<int>(places.domains.size()) - 1);
    places.core.push_back(core % cores);
  }
  // One member on each: at which core of it makes no difference to the plan.
  if (places.domains.size() == shape.cores.size()) {
    std::fill(places.core.begin(), places.core.end(), 0);
  } else if (std::ranges::adjacent_find(shape.cores, {}, chip) == shape.cores.end()) {
    for (int& core : places.core) core -= core % topology.cores_per_chip();
  }
  return places;
}

const GroupLayout& CommTraffic::layout_of(const CommShape& shape, const Places& places) {
  const auto [entry, fresh] = layouts_.try_emplace({places.domain, places.core});
  if (fresh) entry->second = machine_.layout(shape.cores);
  return entry->second;
}

CommTraffic::Entry& CommTraffic::entry(const CommShape& shape, const Places& places) {
  const auto [entry, fresh] = entries_.try_emplace(
      Key{shape.kind, shape.elements, shape.element_bytes, places.domain, places.core});
  if (fresh)
    entry->second.choice =
        choose_algorithm(shape.kind, layout_of(shape, places),
                         Bytes(shape.elements * shape.element_bytes), machine_.selection());
  return entry->second;
}

CommTraffic::Entry& CommTraffic::planned(const CommShape& shape, const Places& places) {
  Entry& traffic = this->entry(shape, places);
  if (std::exchange(traffic.is_planned, true)) return traffic;
  traffic.plan = plan_traffic(
      make_outline(shape.kind, traffic.choice, layout_of(shape, places), shape.elements));
  traffic.represents = classes(traffic.plan, places);
  for (const std::int64_t represents : traffic.represents)
    traffic.represents_some.push_back(represents > 0);
  for (const StageTraffic& part : traffic.plan.parts) flows_ += part.flows.size();
  return traffic;
}

void CommTraffic::bound() {
  constexpr std::size_t kMostFlows = std::size_t{1} << 22;  // some 200 MiB
  if (flows_ <= kMostFlows) return;
  entries_.clear();
  layouts_.clear();
  flows_ = 0;
}

/// Domains are alike when every flow of one has its like in the other. Sums of hashes: flows come
/// in no particular order.
std::vector<std::int64_t> CommTraffic::classes(const PlanTraffic& plan, const Places& places) {
  std::vector<std::uint64_t> colours(places.domains.size());
  Mixed mixed;
  const auto domain = [&](int member) {
    return static_cast<std::size_t>(places.domain[static_cast<std::size_t>(member)]);
  };
  const auto core = [&](int member) {
    return std::int64_t{places.core[static_cast<std::size_t>(member)]};
  };
  for (std::size_t p = 0; p < plan.parts.size(); ++p) {
    const auto part = static_cast<std::int64_t>(p);
    for (const Flow& flow : plan.parts[p].flows) {
      const bool inside = domain(flow.from) == domain(flow.to);
      const std::int64_t how = (flow.reduce ? 2 : 0) + (flow.fused ? 1 : 0);
      // Few words: there are millions of flows.
      colours[domain(flow.from)] += mixed(
          pack(part, core(flow.from)), pack(how, inside ? core(flow.to) : kNoCore), flow.elements);
      if (!inside)
        colours[domain(flow.to)] +=
            mixed(pack(part, core(flow.to)), pack(how, kReceives), flow.elements);
    }
    for (const DirectLine& line : plan.parts[p].direct) {
      for (std::size_t m = 0; m < line.members.size(); ++m)
        colours[domain(line.members[m])] +=
            mixed(pack(part, core(line.members[m])), pack(0, kOnLine), line.owned[m]);
    }
  }
  std::map<std::uint64_t, std::size_t> first;
  std::vector<std::int64_t> represents(colours.size());
  for (std::size_t d = 0; d < colours.size(); ++d)
    ++represents[first.try_emplace(colours[d], d).first->second];
  return represents;
}

CommProfile CommProfiler::profile(const CommShape& shape) {
  if (shape.kind == CollectiveKind::kSendRecv)
    return profile_comm(shape, choose_algorithm(shape, machine_), machine_);
  const CommTraffic::Places places = traffic_.places_of(shape);
  CommTraffic::Entry& traffic = traffic_.planned(shape, places);
  if (places.domains.size() == 1)
    return profile_traffic(traffic.plan, shape.cores, shape.element_bytes, machine_);
  KeptDomains domains{places.domain, traffic.represents_some, traffic.represents};
  for (const int near : near_domains_) {
    const auto place = std::ranges::lower_bound(places.domains, near);
    if (place != places.domains.end() && *place == near)
      domains.kept[static_cast<std::size_t>(place - places.domains.begin())] = true;
  }
  const auto [kept, fresh] = traffic.kept.try_emplace(domains.kept);
  if (fresh) kept->second = part_of(traffic.plan, places.domain, domains.kept);
  return profile_traffic(kept->second, shape.cores, shape.element_bytes, machine_, &domains);
}

CommProfile CommProfiler::together(const std::vector<CommShape>& shapes) {
  std::vector<CommProfile> concurrent;
  for (std::size_t other = 1; other < shapes.size(); ++other) {
    const std::vector<int>& cores = shapes[other].cores;
    if (std::any_of(cores.begin(), cores.end(), [this](int core) { return is_near(core); }))
      concurrent.push_back(profile(shapes[other]));
  }
  return add_up(profile(shapes.front()), concurrent);
}

}  // namespace trellis::sim
