#include "device/driver/timing/cluster_job.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/check.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;

/// Two ranks' requests are the same communication when group and sequence are (send/receive: the
/// n-th of the ordered pair).
class Layout {
 public:
  Layout(const std::vector<const StepStream*>& streams,
         const std::vector<const std::vector<Graph>*>& graphs, const World& world,
         const std::function<const TimedProgram*(const Graph&)>& program_of)
      : streams_(streams), graphs_(graphs), world_(world), program_of_(program_of) {}

  StepTiming build() {
    find_first_sequences();
    step_.job.ranks.resize(streams_.size());
    step_.origins.resize(streams_.size());
    step_.job.fold = world_.fold;
    for (int rank = 0; rank < world_.size; ++rank) step_.job.cores.push_back(rank);
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) add_rank(rank);
    for (sim::ClusterComm& c : step_.job.comms) {
      const auto members = static_cast<std::int64_t>(step_.job.groups[c.group].ranks.size());
      if (c.kind == sim::CollectiveKind::kAllToAll)
        c.elements = (c.elements + members - 1) / members * members;
    }
    return std::move(step_);
  }

 private:
  /// Sequence numbers grow over a run; inside a step they count from zero, so that equal steps are
  /// equal jobs.
  void find_first_sequences() {
    for (const StepStream* stream : streams_) {
      for (const CommRequest& request : stream->comms) {
        Sequences& uses = sequences(request);
        uses.first = std::min(uses.first, request.sequence);
      }
    }
  }

  static bool is_transfer(const CommRequest& request) {
    return request.kind == sim::CollectiveKind::kSendRecv;
  }

  std::uint32_t group(const CommRequest& request) {
    // Ranks use few groups, and mostly the same one again.
    if (recent_group_ < step_.job.groups.size()) {
      const sim::CommGroup& recent = step_.job.groups[recent_group_];
      if (recent.ranks == request.ranks && recent.axis == request.axis) return recent_group_;
    }
    const auto [it, fresh] = groups_.try_emplace(
        {request.axis, request.ranks}, static_cast<std::uint32_t>(step_.job.groups.size()));
    if (fresh) {
      step_.job.groups.push_back({request.axis, request.ranks});
      sequences_.emplace_back();
    }
    return recent_group_ = it->second;
  }

  /// The communications of one group, transfers separately from collectives, by sequence number.
  struct Sequences {
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
    std::unordered_map<std::uint64_t, std::uint32_t>
        comms;  ///< sequence → index in ClusterJob::comms
  };
  Sequences& sequences(const CommRequest& request) {
    return sequences_[group(request)][is_transfer(request) ? 1 : 0];
  }

  std::uint32_t comm(const CommRequest& request) {
    Sequences& uses = sequences(request);
    const auto [it, fresh] = uses.comms.try_emplace(
        request.sequence, static_cast<std::uint32_t>(step_.job.comms.size()));
    if (fresh) {
      sim::ClusterComm c;
      c.kind = request.kind;
      c.group = recent_group_;
      c.sequence = request.sequence - uses.first;
      c.elements = request.elements;
      c.element_bytes = sim::isa::size_bytes(request.dtype);
      if (is_transfer(request)) {
        c.from = request.ranks[0];
        c.to = request.ranks[1];
      }
      step_.job.comms.push_back(c);
    }
    sim::ClusterComm& known = step_.job.comms[it->second];
    // An uneven exchange ends when its busiest member has sent and received: it counts as an even
    // one of that member's size.
    const bool uneven = known.kind == sim::CollectiveKind::kAllToAll;
    if (uneven) known.elements = std::max(known.elements, request.elements);
    TRELLIS_CHECK(known.kind == request.kind && (uneven || known.elements == request.elements),
                  "ranks disagree about a communication");
    return it->second;
  }

  /// The programs of one rank's graphs, each looked up once.
  std::vector<std::uint32_t> programs_of(std::size_t rank) {
    std::vector<std::uint32_t> programs(graphs_[rank]->size(), kUnseen);
    for (const GraphInstance& instance : streams_[rank]->instances) {
      std::uint32_t& program = programs[instance.graph];
      if (program == kUnseen)
        program = this->program(program_of_((*graphs_[rank])[instance.graph]));
    }
    return programs;
  }

  std::uint32_t program(const TimedProgram* timed) {
    const auto [it, fresh] =
        programs_.try_emplace(timed, static_cast<std::uint32_t>(step_.programs.size()));
    if (fresh) {
      step_.programs.push_back(timed);
      std::vector<std::uint32_t>& pieces = pieces_of_.emplace_back();
      for (const TimedProgram::Step& step : timed->steps)
        pieces.push_back(step.piece == nullptr ? kUnseen : piece(step.piece));
    }
    return it->second;
  }

  std::uint32_t piece(const TimedPiece* timed) {
    const auto [it, fresh] =
        pieces_.try_emplace(timed, static_cast<std::uint32_t>(step_.job.programs.size()));
    if (fresh) step_.job.programs.push_back(timed->timing);
    return it->second;
  }

  void add_rank(std::size_t rank) {
    const StepStream& stream = *streams_[rank];
    const std::vector<std::uint32_t> programs = programs_of(rank);
    const std::vector<ScheduleItem> launches = launches_of(stream, programs);
    for (std::uint32_t i = 0; i < stream.instances.size(); ++i)
      add_instance(rank, stream, i, programs[stream.instances[i].graph], launches[i]);
  }

  /// The host records and launches a micro-batch's passes together, as one graph of PyTorch/XLA,
  /// unless it reads a value between them or a pipeline has another micro-batch's pass follow.
  std::vector<ScheduleItem> launches_of(const StepStream& stream,
                                        const std::vector<std::uint32_t>& programs) const {
    std::vector<ScheduleItem> launches;
    const bool pipeline = std::any_of(
        stream.comms.begin(), stream.comms.end(),
        [](const CommRequest& request) { return is_transfer(request) && request.axis == "pp"; });
    std::size_t first = 0;  // that is launched together with this one
    for (std::size_t i = 0; i < stream.instances.size(); ++i) {
      const GraphInstance& instance = stream.instances[i];
      const bool same = i > 0 && stream.instances[i - 1].microbatch == instance.microbatch;
      const bool second =
          same && (i < 2 || stream.instances[i - 2].microbatch != instance.microbatch);
      const bool after_read = world_.reads_forward && second && instance.microbatch >= 0;
      launches.push_back({.kind = ScheduleItem::Kind::kLaunch, .after_read = after_read});
      if (!same || pipeline || after_read) first = i;
      const TimedProgram& program = *step_.programs[programs[instance.graph]];
      launches[first].operations += program.coverage.lowered_ops + program.coverage.estimated_ops;
    }
    return launches;
  }

  void add_instance(std::size_t rank, const StepStream& stream, std::uint32_t index,
                    std::uint32_t p, const ScheduleItem& launch) {
    const TimedProgram& program = *step_.programs[p];
    const std::vector<std::uint32_t>& pieces = pieces_of_[p];
    const auto add = [&](const ScheduleItem& item, std::size_t step) {
      step_.job.ranks[rank].push_back(item);
      step_.origins[rank].push_back({index, p, static_cast<std::uint32_t>(step)});
    };
    const auto add_copies = [&](bool to_device) {
      for (std::size_t c = 0; c < program.host_copies.size(); ++c) {
        const HostCopy& copy = program.host_copies[c];
        if (copy.to_device == to_device)
          add({ScheduleItem::Kind::kHostCopy, 0, 0, 0, copy.bytes}, c);
      }
    };
    add_copies(true);
    add(launch, 0);
    for (std::size_t s = 0; s < program.steps.size(); ++s) {
      const TimedProgram::Step& step = program.steps[s];
      if (step.piece != nullptr) {
        add({ScheduleItem::Kind::kSegment, pieces[s], 0, 0, 0}, s);
      } else {
        const bool start = step.comm.action == sim::isa::CommAction::kStart;
        const std::uint32_t request = stream.instances[index].comms.at(step.comm.slot);
        add({start ? ScheduleItem::Kind::kCommStart : ScheduleItem::Kind::kCommWait, 0, 0,
             comm(stream.comms[request]), 0},
            s);
      }
    }
    add_copies(false);
  }

  static constexpr std::uint32_t kUnseen = 0xffffffffu;

  const std::vector<const StepStream*>& streams_;
  const std::vector<const std::vector<Graph>*>& graphs_;
  const World& world_;
  const std::function<const TimedProgram*(const Graph&)>& program_of_;
  StepTiming step_;
  std::map<std::pair<std::string, std::vector<int>>, std::uint32_t> groups_;
  std::uint32_t recent_group_ = 0;
  std::deque<std::array<Sequences, 2>> sequences_;  ///< by group
  std::unordered_map<const TimedProgram*, std::uint32_t> programs_;
  std::vector<std::vector<std::uint32_t>>
      pieces_of_;  ///< by program, next to its steps: index in ClusterJob::programs
  std::unordered_map<const TimedPiece*, std::uint32_t> pieces_;
};

}  // namespace

StepTiming lay_out_step(const std::vector<const StepStream*>& streams,
                        const std::vector<const std::vector<Graph>*>& graphs, const World& world,
                        const std::function<const TimedProgram*(const Graph&)>& program_of) {
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
    const std::array<std::uint64_t, 7> fields{static_cast<std::uint64_t>(c.kind),
                                              c.group,
                                              c.sequence,
                                              static_cast<std::uint64_t>(c.elements),
                                              static_cast<std::uint64_t>(c.element_bytes),
                                              static_cast<std::uint64_t>(c.from),
                                              static_cast<std::uint64_t>(c.to)};
    h.bytes(fields.data(), sizeof fields);
  }
  for (const auto& items : job.ranks) {
    h.value(items.size());
    for (const ScheduleItem& item : items) {
      const std::array<std::uint64_t, 4> fields{
          (static_cast<std::uint64_t>(item.kind) << 32) | item.program,
          (std::uint64_t{item.segment} << 32) | item.comm, static_cast<std::uint64_t>(item.bytes),
          static_cast<std::uint64_t>(item.operations) << 1 | (item.after_read ? 1 : 0)};
      h.bytes(fields.data(), sizeof fields);
    }
  }
  return h.finish();
}

}  // namespace trellis::device
