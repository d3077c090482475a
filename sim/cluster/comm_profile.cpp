#include "sim/cluster/comm_profile.h"
#include "sim/collectives/stage_steps.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace trellis::sim {
namespace {

// Few enough that a collective of 32 ranks costs microseconds of host time, enough that others
// share the links fairly.
constexpr int kMaxPhases = 8;

/// Bytes per resource. Sparse: a large cluster has millions of resources, a communication uses a
/// few.
class LoadSum {
 public:
  void add(ResourceId resource, std::int64_t bytes) {
    if (bytes > 0) parts_.push_back({resource, bytes});
  }
  void add(const std::vector<CommPhase::Load>& loads) {
    parts_.insert(parts_.end(), loads.begin(), loads.end());
  }
  /// By resource; empties the sum.
  [[nodiscard]] std::vector<CommPhase::Load> take() {
    std::sort(parts_.begin(), parts_.end(),
              [](const auto& a, const auto& b) { return a.resource < b.resource; });
    std::vector<CommPhase::Load> loads;
    for (const CommPhase::Load& part : std::exchange(parts_, {})) {
      if (loads.empty() || loads.back().resource != part.resource)
        loads.push_back({part.resource, 0});
      loads.back().bytes += part.bytes;
    }
    return loads;
  }

 private:
  std::vector<CommPhase::Load> parts_;
};

class Profiler {
 public:
  Profiler(const std::vector<int>& cores, int element_bytes, const CommMachine& machine,
           const KeptDomains* domains)
      : cores_(cores), element_bytes_(element_bytes), machine_(machine), domains_(domains) {}

  /// Adds one part of a stage to the running phase; `finish` ends the phase.
  void add(const StageTraffic& traffic) {
    std::int64_t latency = 0;
    for (const Flow& flow : traffic.flows) latency = std::max(latency, add(flow));
    for (const DirectLine& line : traffic.direct) latency = std::max(latency, add(line));
    const CollectiveConfig& costs = machine_.costs();
    const int transfers = traffic.waits_for_sum ? 2 : 1;  // the sum reads what has arrived
    latency += transfers * costs.step_time.value + traffic.messages * costs.message_time.value +
               (traffic.exchange ? costs.exchange_time.value : 0);
    waiting_ += traffic.rounds * latency;
    if (traffic.all_ready && !std::exchange(all_ready_, true)) waiting_ += costs.ready_time.value;
    channel_ += traffic.channel * element_bytes_;
    // Two slices per piece: the first is reduced while the second is on its way. If parts are
    // pipelined, only the last one counts.
    reducing_ = transfer_time(Bytes((traffic.reduced_last * element_bytes_ + 1) / 2),
                              machine_.reduce_rate())
                    .value;
  }

  CommPhase finish() {
    CommPhase phase;
    phase.loads = sum_.take();
    std::int64_t busiest = 0;
    for (const auto& load : phase.loads)
      busiest =
          std::max(busiest, transfer_time(Bytes(load.bytes), machine_.rate(load.resource)).value);
    busiest = std::max(
        busiest, transfer_time(Bytes(std::exchange(channel_, 0)), machine_.channel_rate()).value);
    phase.alone = std::exchange(waiting_, 0) + busiest + std::exchange(reducing_, 0);
    return phase;
  }

  /// Over all links, so far.
  [[nodiscard]] std::int64_t wire_bytes() const { return wire_bytes_; }

 private:
  /// Returns the latency of the flow's route. A copy reads once and writes once; a sum also reads
  /// where it writes; a fused step shares its read (copies) or its write (sums) with another one.
  std::int64_t add(const Flow& flow) {
    const int from = cores_[static_cast<std::size_t>(flow.from)];
    const int to = cores_[static_cast<std::size_t>(flow.to)];
    const std::int64_t bytes = flow.elements * element_bytes_;
    const Route route = machine_.topology().route(from, to);
    const auto middle =
        machine_.topology().domain_of(from) == machine_.topology().domain_of(to)
            ? route.links.end()
            : route.links.begin() + static_cast<std::ptrdiff_t>(route.links.size() / 2);
    if (is_kept(flow.from)) {
      carry(flow.from, {route.links.begin(), middle}, bytes);
      if (!flow.fused) sum_.add(machine_.dma_of(from), bytes);
      if (!flow.fused || flow.reduce) sum_.add(machine_.hbm_of(from), bytes);
    }
    if (is_kept(flow.to)) {
      carry(flow.to, {middle, route.links.end()}, bytes);
      if (!flow.fused || !flow.reduce)
        sum_.add(machine_.hbm_of(to), flow.reduce ? 2 * bytes : bytes);
    }
    return route.latency;
  }

  [[nodiscard]] bool is_kept(int member) const {
    return domains_ == nullptr || domains_->kept[static_cast<std::size_t>(
                                      domains_->of_member[static_cast<std::size_t>(member)])];
  }

  /// Links of the member's domain.
  void carry(int member, std::span<const LinkId> links, std::int64_t bytes) {
    for (const LinkId link : links) sum_.add(link, bytes);
    const std::int64_t times = domains_ == nullptr
                                   ? 1
                                   : domains_->represents[static_cast<std::size_t>(
                                         domains_->of_member[static_cast<std::size_t>(member)])];
    wire_bytes_ += times * static_cast<std::int64_t>(links.size()) * bytes;
  }

  /// Members of one domain pair by pair; beyond it, each way out and each way in carries what all
  /// others take or give.
  std::int64_t add(const DirectLine& line) {
    std::map<int, std::vector<std::size_t>> domains;
    std::int64_t all = 0, latency = 0;
    for (std::size_t m = 0; m < line.members.size(); ++m) {
      domains[machine_.topology().domain_of(core(line, m))].push_back(m);
      all += line.owned[m];
    }
    const auto members = static_cast<std::int64_t>(line.members.size());
    for (const auto& [domain, inside] : domains) {
      if (!is_kept(line.members[inside.front()])) continue;
      std::int64_t owned_here = 0;
      for (const std::size_t from : inside) {
        owned_here += line.owned[from];
        for (const std::size_t to : inside) {
          const std::int64_t elements = line.owned[line.reduce ? to : from];
          if (from != to && elements > 0)
            latency = std::max(latency, add(Flow{line.members[from], line.members[to], elements,
                                                 line.reduce, false}));
        }
      }
      const std::int64_t others = members - static_cast<std::int64_t>(inside.size());
      if (others == 0) continue;
      for (const std::size_t m : inside) {
        const std::int64_t to_each = line.owned[m] * others, of_all = all - owned_here;
        latency = std::max(latency, add_beyond(line.members[m], line.reduce ? of_all : to_each,
                                               line.reduce ? to_each : of_all, line.reduce));
      }
    }
    return latency;
  }

  [[nodiscard]] int core(const DirectLine& line, std::size_t member) const {
    return cores_[static_cast<std::size_t>(line.members[member])];
  }

  /// Adds the transfers of a member to and from other domains. Returns the latency of a way out and
  /// a way in.
  std::int64_t add_beyond(int member, std::int64_t sent, std::int64_t received, bool reduce) {
    const int core = cores_[static_cast<std::size_t>(member)];
    const Route out = machine_.topology().way_out(core), in = machine_.topology().way_in(core);
    carry(member, out.links, sent * element_bytes_);
    carry(member, in.links, received * element_bytes_);
    sum_.add(machine_.dma_of(core), sent * element_bytes_);
    sum_.add(machine_.hbm_of(core), (sent + (reduce ? 2 : 1) * received) * element_bytes_);
    return sent + received > 0 ? out.latency + in.latency : 0;
  }

  const std::vector<int>& cores_;
  const std::int64_t element_bytes_;
  const CommMachine& machine_;
  const KeptDomains* domains_;
  LoadSum sum_;
  std::int64_t wire_bytes_ = 0;
  bool all_ready_ = false;     ///< the members have agreed on it
  std::int64_t waiting_ = 0;   ///< latencies of the running phase
  std::int64_t channel_ = 0;   ///< bytes of its busiest channel
  std::int64_t reducing_ = 0;  ///< its reduction that no transfer hides
};

/// Phase `index` of `count` equal ones; together they are exactly the whole.
CommPhase share(const CommPhase& whole, int count, int index) {
  const auto part = [&](std::int64_t amount) {
    return amount * (index + 1) / count - amount * index / count;
  };
  CommPhase result{part(whole.alone), {}};
  for (const auto& load : whole.loads) result.loads.push_back({load.resource, part(load.bytes)});
  return result;
}

void cut(std::vector<CommPhase>& phases) {
  const int parts = kMaxPhases / static_cast<int>(phases.size());
  std::vector<CommPhase> pieces;
  for (const CommPhase& phase : phases) {
    for (int part = 0; part < parts; ++part) pieces.push_back(share(phase, parts, part));
  }
  phases = std::move(pieces);
}

void sum_up(std::vector<CommPhase>& phases) {
  const auto count = static_cast<std::int64_t>(phases.size());
  std::vector<CommPhase> sums;
  LoadSum loads;
  for (std::int64_t s = 0; s < kMaxPhases; ++s) {
    CommPhase& sum = sums.emplace_back();
    for (std::int64_t p = count * s / kMaxPhases; p < count * (s + 1) / kMaxPhases; ++p) {
      const CommPhase& phase = phases[static_cast<std::size_t>(p)];
      sum.alone += phase.alone;
      loads.add(phase.loads);
    }
    sum.loads = loads.take();
  }
  phases = std::move(sums);
}

}  // namespace

PlanTraffic plan_traffic(const PlanOutline& outline) {
  PlanTraffic plan;
  for (std::size_t s = 0; s < outline.stages.size(); ++s) {
    const PlanStage& stage = outline.stages[s];
    const bool flows_on = stage.pipelined && s + 1 < outline.stages.size() &&
                          outline.stages[s + 1].pipelined &&
                          outline.stages[s + 1].reduce == stage.reduce;
    for (StageTraffic& part : traffic(stage)) {
      plan.parts.push_back(std::move(part));
      plan.ends_phase.push_back(!flows_on);
    }
  }
  return plan;
}

CommProfile profile_outline(const PlanOutline& outline, const std::vector<int>& cores,
                            int element_bytes, const CommMachine& machine) {
  return profile_traffic(plan_traffic(outline), cores, element_bytes, machine);
}

CommProfile profile_traffic(const PlanTraffic& plan, const std::vector<int>& cores,
                            int element_bytes, const CommMachine& machine,
                            const KeptDomains* domains) {
  CommProfile profile;
  Profiler profiler(cores, element_bytes, machine, domains);
  for (std::size_t p = 0; p < plan.parts.size(); ++p) {
    profiler.add(plan.parts[p]);
    if (plan.ends_phase[p]) profile.phases.push_back(profiler.finish());
  }
  profile.wire_bytes = profiler.wire_bytes();
  if (profile.phases.size() > kMaxPhases) {
    sum_up(profile.phases);
  } else if (!profile.phases.empty()) {
    cut(profile.phases);
  }
  return profile;
}

AlgorithmChoice choose_algorithm(const CommShape& shape, const CommMachine& machine) {
  return choose_algorithm(shape.kind, machine.layout(shape.cores),
                          Bytes(shape.elements * shape.element_bytes), machine.selection());
}

CommProfile profile_comm(const CommShape& shape, const AlgorithmChoice& choice,
                         const CommMachine& machine) {
  return profile_outline(
      make_outline(shape.kind, choice, machine.layout(shape.cores), shape.elements), shape.cores,
      shape.element_bytes, machine);
}

/// Equal communications have equally many phases unless they lie differently; then the other's are
/// spread over the first one's.
CommProfile add_up(CommProfile first, const std::vector<CommProfile>& concurrent) {
  std::vector<LoadSum> sums(first.phases.size());
  for (const CommProfile& other : concurrent) {
    for (std::size_t p = 0; p < other.phases.size() && !sums.empty(); ++p)
      sums[p * sums.size() / other.phases.size()].add(other.phases[p].loads);
  }
  for (std::size_t p = 0; p < sums.size(); ++p) {
    sums[p].add(first.phases[p].loads);
    first.phases[p].loads = sums[p].take();
  }
  return first;
}

}  // namespace trellis::sim
