#include "device/driver/reports/attribution.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "device/driver/timing/kernel_advance.h"

namespace trellis::device {

std::string without_numbers(std::string_view path) {
  std::string out;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view word = path.substr(begin, end - begin);
    const bool number = !word.empty() && std::all_of(word.begin(), word.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    out += number ? "*" : word;
    if (end < path.size()) out += '.';
    begin = end + 1;
  }
  return out;
}

namespace {

using sim::ScheduleItem;

std::string comm_kind(const std::string& axis) {
  // Groups of data-parallel ranks that hold the same weights, with CP and with EP, or the same
  // shards.
  for (const char* of_weights : {"zero1", "edp", "fsdp", "efsdp", "replicas"}) {
    if (axis == of_weights) return "comm_dp";
  }
  const bool has_kind = axis == "tp" || axis == "pp" || axis == "dp" || axis == "cp";
  return has_kind ? "comm_" + axis : "comm_other";
}

class Attributor {
 public:
  Attributor(const StepTiming& step, std::size_t rank, const StepStream& stream,
             const std::vector<Graph>& graphs)
      : step_(step), rank_(rank), stream_(stream), graphs_(graphs) {}

  std::vector<AttributionRow> run() {
    Picoseconds cursor;
    const auto& items = step_.job.ranks[rank_];
    for (std::size_t i = 0; i < items.size(); ++i) {
      const sim::ItemTiming& time = step_.timing.ranks[rank_][i];
      at(step_.origins[rank_][i]);
      if (items[i].kind == ScheduleItem::Kind::kLaunch) {
        charge("", "waiting for the host", "host", time.start - cursor);
      } else {
        charge("", "idle", "other", time.start - cursor);
      }
      charge_item(items[i], time);
      cursor = time.end;
    }
    graph_ = nullptr;
    charge("", "idle", "bubble", step_.timing.makespan - cursor);
    return sorted();
  }

 private:
  struct Sum {
    Picoseconds time;
    std::int64_t count = 0;
  };
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  /// The sums to which a kernel of a piece adds at every run of it.
  struct Share {
    KernelAdvance advance;
    Sum* sum;
    Sum* memory;  ///< for what a concurrent communication costs
  };
  struct Shares {
    std::vector<Share> kernels;
    Sum* rest = nullptr;
  };

  void at(const ItemOrigin& origin) {
    origin_ = origin;
    graph_index_ = stream_.instances[origin.instance].graph;
    graph_ = &graphs_[graph_index_];
  }

  Sum& sum(const std::string& component, const std::string& op, const std::string& kind) {
    return sums_[{graph_ == nullptr ? std::string() : graph_->name, component, op, kind}];
  }

  void charge(const std::string& component, const std::string& op, const std::string& kind,
              Picoseconds time) {
    if (time.value != 0) add(sum(component, op, kind), time);
  }

  static void add(Sum& sum, Picoseconds time) {
    sum.time += time;
    ++sum.count;
  }

  [[nodiscard]] std::string component(std::uint32_t node) const {
    return without_numbers(graph_->nodes[node].scope.layer);
  }

  void charge_item(const ScheduleItem& item, const sim::ItemTiming& time) {
    const Picoseconds duration = time.end - time.start;
    switch (item.kind) {
      case ScheduleItem::Kind::kSegment: return charge_segment(duration);
      case ScheduleItem::Kind::kCommStart:
        return charge("", "communication start", "other", duration);
      case ScheduleItem::Kind::kCommWait:
        return charge_wait(step_.job.comms[item.comm], step_.timing.comms[item.comm], time);
      case ScheduleItem::Kind::kLaunch: return charge("", "launch", "launch", duration);
      case ScheduleItem::Kind::kHostCopy: {
        const HostCopy& copy = step_.program(origin_).host_copies[origin_.step];
        return charge(component(copy.node), copy.to_device ? "copy to device" : "copy to host",
                      copy.to_device ? "data" : "other", duration);
      }
    }
  }

  void charge_wait(const sim::ClusterComm& comm, const sim::CommTiming& timing,
                   const sim::ItemTiming& time) {
    const std::string layer = component(step_.program(origin_).steps[origin_.step].node),
                      op(sim::name(comm.kind));
    const std::string& axis = step_.job.groups[comm.group].axis;
    const Picoseconds idle = axis == "pp" ? bubble_of_wait(time, timing) : Picoseconds();
    charge(layer, op, "bubble", idle);
    charge(layer, op, comm_kind(axis), time.end - time.start - idle);
  }

  void charge_segment(Picoseconds duration) {
    const Shares& shares = shares_of_piece();
    const double slowness = step_.slowness(rank_);
    const Picoseconds alone =
        sim::slowed(step_.program(origin_).steps[origin_.step].piece->segment().duration, slowness);
    // During a communication all of a segment is stretched; what that costs is a wait for memory.
    const auto stretched = [&](Picoseconds t) {
      if (duration == alone || alone.value == 0) return t;
      return Picoseconds(
          static_cast<std::int64_t>(static_cast<__int128>(t.value) * duration.value / alone.value));
    };
    Picoseconds end;
    for (const Share& share : shares.kernels) {
      const Picoseconds from = sim::slowed(share.advance.from, slowness),
                        to = sim::slowed(share.advance.to, slowness);
      const Picoseconds own = to - from, extra = stretched(to) - stretched(from) - own;
      add(*share.sum, own);
      if (extra.value != 0) add(*share.memory, extra);
      end = stretched(to);
    }
    if (duration <= end) return;
    const TimedProgram& program = step_.program(origin_);
    const Picoseconds rest = duration - end;
    const Picoseconds multi_node = program.phase() == TrainingPhase::kOptimizer
                                       ? Picoseconds()
                                       : std::min(step_.multi_node_part(alone), rest);
    if (multi_node.value > 0) {
      charge(component(program.steps[origin_.step].node), "several instances", "multi_node",
             multi_node);
    }
    if (rest > multi_node) add(*shares.rest, rest - multi_node);
  }

  const Shares& shares_of_piece() {
    const auto [it, fresh] = shares_.try_emplace({graph_index_, origin_.step});
    Shares& shares = it->second;
    if (!fresh) return shares;
    const TimedProgram& program = step_.program(origin_);
    const TimedProgram::Step& step = program.steps[origin_.step];
    const auto kind = [&](const char* otherwise) {
      return program.phase() == TrainingPhase::kOptimizer ? kOptimizerPhase.data() : otherwise;
    };
    for (const KernelAdvance& advance : kernel_advances(step.piece->segment())) {
      const sim::isa::Kernel& kernel = step.piece->kernels[advance.kernel];
      const std::string layer = component(step.node + kernel.node);
      Sum& memory = sum(layer, kernel.name, kind("memory"));
      shares.kernels.push_back(
          {advance, advance.bound_by_memory ? &memory : &sum(layer, kernel.name, kind("compute")),
           &memory});
    }
    shares.rest = &sum(component(step.node), "latency", kind("other"));
    return shares;
  }

  [[nodiscard]] std::vector<AttributionRow> sorted() const {
    std::vector<AttributionRow> rows;
    for (const auto& [key, sum] : sums_) {
      const auto& [phase, component, op, kind] = key;
      if (sum.time.value != 0) rows.push_back({phase, component, op, kind, sum.time, sum.count});
    }
    std::stable_sort(
        rows.begin(), rows.end(),
        [](const AttributionRow& a, const AttributionRow& b) { return a.time > b.time; });
    return rows;
  }

  const StepTiming& step_;
  std::size_t rank_;
  const StepStream& stream_;
  const std::vector<Graph>& graphs_;
  ItemOrigin origin_;
  std::uint32_t graph_index_ = 0;
  const Graph* graph_ = nullptr;
  std::map<Key, Sum> sums_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Shares>
      shares_;  ///< by (graph, step of its program)
};

}  // namespace

std::vector<Attribution> attribute(const StepTiming& step, const std::vector<Breakdown>& breakdowns,
                                   const std::vector<const StepStream*>& streams,
                                   const std::vector<const std::vector<Graph>*>& graphs,
                                   std::size_t most) {
  std::vector<Attribution> all;
  if (step.timing.ranks.empty()) return all;
  std::vector<std::size_t> ranks{last_to_end(step.timing)};
  for (std::size_t rank = 0; rank < breakdowns.size() && ranks.size() < most; ++rank) {
    const bool known = std::any_of(ranks.begin(), ranks.end(), [&](std::size_t other) {
      return breakdowns[other] == breakdowns[rank];
    });
    if (!known) ranks.push_back(rank);
  }
  for (const std::size_t rank : ranks)
    all.push_back({rank, Attributor(step, rank, *streams[rank], *graphs[rank]).run()});
  return all;
}

}  // namespace trellis::device
