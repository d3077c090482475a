#include "device/driver/cluster_job.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;
/// What makes two ranks' requests the same communication: group, and its n-th use (send/receive: n-th of the ordered pair).
using CommKey = std::tuple<std::uint32_t, bool, std::uint64_t>;

class Layout {
 public:
  Layout(const std::vector<const StepStream*>& streams, const std::vector<const std::vector<Graph>*>& graphs, const World& world,
         const std::function<const TimedProgram*(const Graph&)>& program_of)
      : streams_(streams), graphs_(graphs), world_(world), program_of_(program_of) {}

  StepTiming build() {
    find_first_sequences();
    step_.job.ranks.resize(streams_.size());
    step_.origins.resize(streams_.size());
    step_.job.fold = world_.fold;
    for (int rank = 0; rank < world_.size; ++rank) step_.job.cores.push_back(rank);
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) add_rank(rank);
    return std::move(step_);
  }

 private:
  /// Sequence numbers grow over a run; inside a step they count from zero, so that equal steps are equal jobs.
  void find_first_sequences() {
    for (const StepStream* stream : streams_) {
      for (const CommRequest& request : stream->comms) {
        const std::pair key{group(request), is_transfer(request)};
        const auto [it, fresh] = first_.try_emplace(key, request.sequence);
        if (!fresh) it->second = std::min(it->second, request.sequence);
      }
    }
  }

  static bool is_transfer(const CommRequest& request) { return request.kind == sim::CollectiveKind::kSendRecv; }

  std::uint32_t group(const CommRequest& request) {
    const auto [it, fresh] =
        groups_.try_emplace({request.axis, request.ranks}, static_cast<std::uint32_t>(step_.job.groups.size()));
    if (fresh) step_.job.groups.push_back({request.axis, request.ranks});
    return it->second;
  }

  std::uint32_t comm(const CommRequest& request) {
    const std::uint32_t g = group(request);
    const std::uint64_t sequence = request.sequence - first_.at({g, is_transfer(request)});
    const auto [it, fresh] = comms_.try_emplace({g, is_transfer(request), sequence}, static_cast<std::uint32_t>(step_.job.comms.size()));
    if (fresh) {
      sim::ClusterComm c;
      c.kind = request.kind;
      c.group = g;
      c.sequence = sequence;
      c.elements = request.elements;
      c.element_bytes = sim::isa::size_bytes(request.dtype);
      if (is_transfer(request)) {
        c.from = request.ranks[0];
        c.to = request.ranks[1];
      }
      step_.job.comms.push_back(c);
    }
    const sim::ClusterComm& known = step_.job.comms[it->second];
    TRELLIS_CHECK(known.kind == request.kind && known.elements == request.elements, "ranks disagree about a communication");
    return it->second;
  }

  std::uint32_t program(const Graph& graph) {
    const TimedProgram* timed = program_of_(graph);
    const auto [it, fresh] = programs_.try_emplace(timed, static_cast<std::uint32_t>(step_.programs.size()));
    if (fresh) {
      step_.programs.push_back(timed);
      step_.job.programs.push_back(timed->timing);
    }
    return it->second;
  }

  void add_rank(std::size_t rank) {
    const StepStream& stream = *streams_[rank];
    for (std::uint32_t i = 0; i < stream.instances.size(); ++i) {
      const GraphInstance& instance = stream.instances[i];
      const std::uint32_t p = program((*graphs_[rank])[instance.graph]);
      const auto add = [&](ScheduleItem item) {
        step_.job.ranks[rank].push_back(item);
        step_.origins[rank].push_back({i, p});
      };
      const std::vector<HostCopy>& copies = step_.programs[p]->compiled.host_copies;
      const auto add_copies = [&](bool to_device) {
        for (const HostCopy& copy : copies) {
          if (copy.to_device == to_device) add({ScheduleItem::Kind::kHostCopy, p, 0, 0, copy.bytes});
        }
      };
      add_copies(true);
      add({ScheduleItem::Kind::kLaunch, p, 0, 0});
      const auto& segments = step_.programs[p]->compiled.program.segments;
      for (std::uint32_t s = 0; s < segments.size(); ++s) {
        add({ScheduleItem::Kind::kSegment, p, s, 0});
        for (const sim::isa::CommPoint& point : segments[s].then) {
          const bool start = point.action == sim::isa::CommAction::kStart;
          add({start ? ScheduleItem::Kind::kCommStart : ScheduleItem::Kind::kCommWait, p, s,
               comm(stream.comms[instance.comms.at(point.slot)])});
        }
      }
      add_copies(false);
    }
  }

  const std::vector<const StepStream*>& streams_;
  const std::vector<const std::vector<Graph>*>& graphs_;
  const World& world_;
  const std::function<const TimedProgram*(const Graph&)>& program_of_;
  StepTiming step_;
  std::map<std::pair<std::string, std::vector<int>>, std::uint32_t> groups_;
  std::map<std::pair<std::uint32_t, bool>, std::uint64_t> first_;
  std::map<CommKey, std::uint32_t> comms_;
  std::map<const TimedProgram*, std::uint32_t> programs_;
};

}  // namespace

StepTiming lay_out_step(const std::vector<const StepStream*>& streams, const std::vector<const std::vector<Graph>*>& graphs,
                        const World& world, const std::function<const TimedProgram*(const Graph&)>& program_of) {
  return Layout(streams, graphs, world, program_of).build();
}

ContentHash job_key(const sim::ClusterJob& job) {
  ContentHasher h;
  h.value(job.programs.size());
  for (const auto& program : job.programs) h.value(reinterpret_cast<std::uintptr_t>(program.get()));
  for (const sim::CommGroup& group : job.groups) {
    h.text(group.axis);
    for (int rank : group.ranks) h.value(rank);
    h.value(-1);
  }
  for (const sim::ClusterComm& c : job.comms) {
    h.value(c.kind);
    h.value(c.group);
    h.value(c.sequence);
    h.value(c.elements);
    h.value(c.element_bytes);
    h.value(c.from);
    h.value(c.to);
  }
  for (const auto& items : job.ranks) {
    h.value(items.size());
    for (const ScheduleItem& item : items) {
      h.value(item.kind);
      h.value(item.program);
      h.value(item.segment);
      h.value(item.comm);
      h.value(item.bytes);
    }
  }
  return h.finish();
}

}  // namespace trellis::device
