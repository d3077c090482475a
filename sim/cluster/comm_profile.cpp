#include "sim/cluster/comm_profile.h"

#include <algorithm>
#include <utility>

namespace trellis::sim {
namespace {

// Few enough that a collective of 32 ranks costs microseconds of host time, enough that others share the links fairly.
constexpr int kMaxPhases = 8;

/// Bytes per resource. Sparse: a large cluster has millions of resources, a communication uses a few.
class LoadSum {
 public:
  void add(ResourceId resource, std::int64_t bytes) {
    if (bytes > 0) parts_.push_back({resource, bytes});
  }
  void add(const std::vector<CommPhase::Load>& loads) { parts_.insert(parts_.end(), loads.begin(), loads.end()); }
  /// By resource; empties the sum.
  [[nodiscard]] std::vector<CommPhase::Load> take() {
    std::sort(parts_.begin(), parts_.end(), [](const auto& a, const auto& b) { return a.resource < b.resource; });
    std::vector<CommPhase::Load> loads;
    for (const CommPhase::Load& part : std::exchange(parts_, {})) {
      if (loads.empty() || loads.back().resource != part.resource) loads.push_back({part.resource, 0});
      loads.back().bytes += part.bytes;
    }
    return loads;
  }

 private:
  std::vector<CommPhase::Load> parts_;
};

class Profiler {
 public:
  Profiler(const std::vector<int>& cores, int element_bytes, const CommMachine& machine)
      : cores_(cores), element_bytes_(element_bytes), machine_(machine) {}

  /// Adds one part of a stage to the running phase; `finish` ends the phase.
  void add(const StageTraffic& traffic) {
    std::int64_t latency = 0;
    for (const Flow& flow : traffic.flows) latency = std::max(latency, add(flow));
    const CollectiveConfig& costs = machine_.costs();
    latency += costs.step_time.value + traffic.messages * costs.message_time.value + (traffic.exchange ? costs.exchange_time.value : 0);
    waiting_ += traffic.rounds * latency;
    // Two slices per piece: the first is reduced while the second is on its way. Of pipelined parts the last one counts.
    reducing_ = transfer_time(Bytes((traffic.reduced_last * element_bytes_ + 1) / 2), machine_.reduce_rate()).value;
  }

  CommPhase finish() {
    CommPhase phase;
    phase.loads = sum_.take();
    std::int64_t busiest = 0;
    for (const auto& load : phase.loads) busiest = std::max(busiest, transfer_time(Bytes(load.bytes), machine_.rate(load.resource)).value);
    phase.alone = std::exchange(waiting_, 0) + busiest + std::exchange(reducing_, 0);
    return phase;
  }

 private:
  /// Returns the latency of the flow's route. A copy reads once and writes once; a sum also reads where it writes; a fused step shares its
  /// read (copies) or its write (sums) with another one.
  std::int64_t add(const Flow& flow) {
    const int from = cores_[static_cast<std::size_t>(flow.from)];
    const int to = cores_[static_cast<std::size_t>(flow.to)];
    const std::int64_t bytes = flow.elements * element_bytes_;
    const Route route = machine_.topology().route(from, to);
    for (const LinkId link : route.links) sum_.add(link, bytes);
    if (!flow.fused) sum_.add(machine_.dma_of(from), bytes);
    if (!flow.fused || flow.reduce) sum_.add(machine_.hbm_of(from), bytes);
    if (!flow.fused || !flow.reduce) sum_.add(machine_.hbm_of(to), flow.reduce ? 2 * bytes : bytes);
    return route.latency;
  }

  const std::vector<int>& cores_;
  const std::int64_t element_bytes_;
  const CommMachine& machine_;
  LoadSum sum_;
  std::int64_t waiting_ = 0;   ///< latencies of the running phase
  std::int64_t reducing_ = 0;  ///< its reduction that no transfer hides
};

/// Phase `index` of `count` equal ones; together they are exactly the whole.
CommPhase share(const CommPhase& whole, int count, int index) {
  const auto part = [&](std::int64_t amount) { return amount * (index + 1) / count - amount * index / count; };
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

CommProfile profile_outline(const PlanOutline& outline, const std::vector<int>& cores, int element_bytes, const CommMachine& machine) {
  CommProfile profile;
  Profiler profiler(cores, element_bytes, machine);
  for (std::size_t s = 0; s < outline.stages.size(); ++s) {
    const PlanStage& stage = outline.stages[s];
    const bool flows_on = stage.pipelined && s + 1 < outline.stages.size() && outline.stages[s + 1].pipelined && outline.stages[s + 1].reduce == stage.reduce;
    for (const StageTraffic& part : traffic(stage)) {
      profiler.add(part);
      if (!flows_on) profile.phases.push_back(profiler.finish());
    }
  }
  for (const CommPhase& phase : profile.phases) {
    for (const auto& load : phase.loads) profile.wire_bytes += machine.is_link(load.resource) ? load.bytes : 0;
  }
  if (profile.phases.size() > kMaxPhases) {
    sum_up(profile.phases);
  } else if (!profile.phases.empty()) {
    cut(profile.phases);
  }
  return profile;
}

AlgorithmChoice choose_algorithm(const CommShape& shape, const CommMachine& machine) {
  return choose_algorithm(shape.kind, machine.layout(shape.cores), Bytes(shape.elements * shape.element_bytes), machine.selection());
}

CommProfile profile_comm(const CommShape& shape, const AlgorithmChoice& choice, const CommMachine& machine) {
  return profile_outline(make_outline(shape.kind, choice, machine.layout(shape.cores), shape.elements), shape.cores, shape.element_bytes, machine);
}

namespace {

std::vector<int> nodes_of(const CommShape& shape, const CommMachine& machine) {
  std::vector<int> nodes;
  for (const int core : shape.cores) nodes.push_back(machine.topology().node_of(core));
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

bool meet(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int node) { return std::binary_search(b.begin(), b.end(), node); });
}

}  // namespace

CommProfile profile_together(const std::vector<CommShape>& shapes, const CommMachine& machine) {
  const auto profile_of = [&](const CommShape& shape) { return profile_comm(shape, choose_algorithm(shape, machine), machine); };
  CommProfile first = profile_of(shapes.front());
  const std::vector<int> nodes = nodes_of(shapes.front(), machine);
  std::vector<LoadSum> sums(first.phases.size());
  for (std::size_t other = 1; other < shapes.size(); ++other) {
    if (!meet(nodes_of(shapes[other], machine), nodes)) continue;
    const CommProfile beside = profile_of(shapes[other]);
    // Equal communications have equally many phases unless they lie differently; then the other's are spread over the first one's.
    for (std::size_t p = 0; p < beside.phases.size() && !sums.empty(); ++p) sums[p * sums.size() / beside.phases.size()].add(beside.phases[p].loads);
  }
  for (std::size_t p = 0; p < sums.size(); ++p) {
    sums[p].add(first.phases[p].loads);
    first.phases[p].loads = sums[p].take();
  }
  return first;
}

}  // namespace trellis::sim
