#include "sim/systemc/cluster_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "sim/config/host_copy.h"
#include "sim/systemc/time.h"

namespace trellis::sim {

ClusterRun::ClusterRun(const SystemConfig& system, const CommMachine& machine, CommTraffic& traffic,
                       Network& network, const ClusterJob& job)
    : system_(system),
      machine_(machine),
      network_(network),
      job_(job),
      checked_(check_job(job, machine.topology())),
      sharing_(system, machine) {
  for (int r = 0; r < static_cast<int>(job.ranks.size()); ++r) rank_of_core_[core_of(r)] = r;
  for (const auto& [core, rank] : rank_of_core_) nodes_.insert(machine.topology().node_of(core));
  profiler_.emplace(machine, nodes_, traffic);
  for (int rank = 0; rank < static_cast<int>(job.cores.size()); ++rank) {
    if (profiler_->is_near(job.cores[static_cast<std::size_t>(rank)])) near_ranks_.push_back(rank);
  }
  comms_.resize(job.comms.size());
  for (std::size_t c = 0; c < comms_.size(); ++c) {
    const bool transfer = job.comms[c].kind == CollectiveKind::kSendRecv;
    comms_[c].started.assign(checked_.participants[c].size(), false);
    comms_[c].missing = transfer ? 1 : static_cast<int>(checked_.participants[c].size());
  }
  make_profiles();
  timings_.resize(job.ranks.size());
  for (std::size_t r = 0; r < job.ranks.size(); ++r) timings_[r].reserve(job.ranks[r].size());
}

ClusterTiming ClusterRun::run() {
  elaborate_once();
  base_ = now_ps();
  network_.reset(*this);
  ranks_.assign(job_.ranks.size(), {});
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].clock = base_;
    advance(static_cast<int>(r));
  }
  run_until_idle();
  if (!failure_.empty()) throw Error(ExitCode::kHang, failure_);
  if (const std::string hang = describe_hang(); !hang.empty()) throw Error(ExitCode::kHang, hang);
  return collect();
}

void ClusterRun::advance(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const auto& items = job_.ranks[static_cast<std::size_t>(rank)];
  while (r.next < items.size()) {
    ItemTiming timing{Picoseconds(r.clock - base_), {}};
    if (!execute(rank, items[r.next], timing)) return;
    timing.end = Picoseconds(r.clock - base_);
    timings_[static_cast<std::size_t>(rank)].push_back(timing);
    ++r.next;
  }
}

bool ClusterRun::execute(int rank, const ScheduleItem& item, ItemTiming& timing) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  switch (item.kind) {
    case ScheduleItem::Kind::kSegment:
      return run_segment(rank, job_.programs[item.program]->segments[item.segment]);
    case ScheduleItem::Kind::kLaunch: launch(r, item, timing); return true;
    case ScheduleItem::Kind::kHostCopy:
      r.clock += host_copy_time(Bytes(item.bytes), system_.chip).value;
      return true;
    case ScheduleItem::Kind::kCommStart:
      start_comm(rank, checked_.canonical[item.comm]);
      return true;
    case ScheduleItem::Kind::kCommWait: break;
  }
  if (r.wait_began < 0) r.wait_began = r.clock;
  if (!wait_comm(rank, checked_.canonical[item.comm])) return false;
  timing.start = Picoseconds(r.wait_began - base_);
  r.wait_began = -1;
  return true;
}

// ── segments during communications ──

const SegmentTiming& ClusterRun::segment_of(int rank) const {
  const ScheduleItem& item =
      job_.ranks[static_cast<std::size_t>(rank)][ranks_[static_cast<std::size_t>(rank)].next];
  return job_.programs[item.program]->segments[item.segment];
}

Picoseconds ClusterRun::duration_of(int rank, const SegmentTiming& segment) const {
  return slowed(segment.duration, machine_.slow().core(core_of(rank)));
}

bool ClusterRun::run_segment(int rank, const SegmentTiming& segment) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const bool moves_data =
      segment.hbm_read.value + segment.hbm_written.value > 0 && segment.duration.value > 0;
  if (r.under_way == 0 || !moves_data) {
    r.clock += duration_of(rank, segment).value;
    return true;
  }
  r.segment = Rank::Segment::kDue;
  network_.wake_rank(rank, ++r.work.version, r.clock);
  return false;
}

void ClusterRun::rank_due(int rank, std::uint32_t version) {
  const Rank& r = ranks_[static_cast<std::size_t>(rank)];
  if (version != r.work.version) return;
  if (r.segment == Rank::Segment::kDue) {
    begin_segment(rank);
  } else {
    end_segment(rank);
  }
}

void ClusterRun::begin_segment(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const SegmentTiming& segment = segment_of(rank);
  const int core = core_of(rank);
  // A DMA moves each byte once, to or from HBM.
  const Picoseconds duration = duration_of(rank, segment);
  const double rate =
      static_cast<double>((segment.hbm_read + segment.hbm_written).value) / to_seconds(duration);
  r.segment = Rank::Segment::kRunning;
  sharing_.start_segment(core, {rate, rate});
  r.work.begin(r.clock, duration.value, sharing_.stretch_of_core(core));
  network_.wake_rank(rank, r.work.version, r.work.end);
  retime_comms(core);
}

void ClusterRun::retime_segment(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const double stretch = sharing_.stretch_of_core(core_of(rank));
  if (stretch == r.work.stretch) return;
  r.work.retime(now_ps(), stretch);
  network_.wake_rank(rank, r.work.version, r.work.end);
}

void ClusterRun::end_segment(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const int core = core_of(rank);
  r.segment = Rank::Segment::kNone;
  sharing_.end_segment(core);
  retime_comms(core);
  timings_[static_cast<std::size_t>(rank)].push_back(
      {Picoseconds(r.clock - base_), Picoseconds(r.work.end - base_)});
  r.clock = r.work.end;
  ++r.next;
  advance(rank);
}

void ClusterRun::retime_comms(int core) {
  for (const std::uint32_t comm : sharing_.comms_on(core))
    network_.set_stretch(comm, sharing_.stretch_of_comm(comm));
}

/// The host records a program while the device executes those before, launches it when it may be
/// in flight with them (one execution: PyTorch/XLA locks the device), and goes on recording. So a
/// program waits where the host has not launched it yet: the item's timing begins after that. The
/// first one is recorded while the step before ends, unless the host reads a value there; it waits
/// for its launch and for what the training software does between two steps. Each pays for the
/// device's start and stop.
void ClusterRun::launch(Rank& rank, const ScheduleItem& item, ItemTiming& timing) {
  const SoftwareConfig& software = system_.software;
  if (item.operations > 0) {
    std::int64_t host = item.after_read ? rank.clock : std::max(rank.host_free, base_);
    if (rank.launched || software.reads_per_step > 0)
      host += software.recording(item.operations).value;
    rank.ended.push_back(rank.clock);
    if (rank.ended.size() == static_cast<std::size_t>(software.executions_in_flight)) {
      host = std::max(host, rank.ended.front());
      rank.ended.pop_front();
    }
    rank.host_free = host + software.launching(item.operations).value;
    rank.clock = std::max(rank.clock, rank.host_free);
  }
  timing.start = Picoseconds(rank.clock - base_);
  if (!rank.launched) rank.clock += (system_.launch.program_launch + software.step_overhead).value;
  rank.launched = true;
  rank.clock += system_.launch.program_start.value;
}

void ClusterRun::start_comm(int rank, std::uint32_t index) {
  Comm& comm = comms_[index];
  const auto& participants = checked_.participants[index];
  const auto position = static_cast<std::size_t>(
      std::find(participants.begin(), participants.end(), rank) - participants.begin());
  if (comm.started[position]) {
    // Inside the kernel nothing is thrown: the run ends by itself and reports the first failure.
    if (failure_.empty())
      failure_ = fmt::format("rank {} starts {} twice", world_rank(rank),
                             describe_comm(job_, job_.comms[index]));
    return;
  }
  comm.started[position] = true;
  if (comm.end < 0) ++ranks_[static_cast<std::size_t>(rank)].under_way;
  const bool receiver = job_.comms[index].kind == CollectiveKind::kSendRecv && position == 1;
  if (receiver) return;  // the sender's start suffices
  comm.ready = std::max(comm.ready, ranks_[static_cast<std::size_t>(rank)].clock);
  if (--comm.missing == 0) comm_ready(index);
}

ClusterRun::Stream& ClusterRun::stream_of(std::uint32_t index) {
  const ClusterComm& comm = job_.comms[index];
  const bool transfer = comm.kind == CollectiveKind::kSendRecv;
  return streams_[{comm.group, transfer ? comm.from : -1, transfer ? comm.to : -1}];
}

void ClusterRun::comm_ready(std::uint32_t index) {
  Stream& stream = stream_of(index);
  if (stream.busy) return stream.ready.push_back(index);
  stream.busy = true;
  begin(index);
}

void ClusterRun::begin(std::uint32_t index) {
  const CommProfile& profile = *profile_of_[index];
  comms_[index].wire_bytes = profile.wire_bytes;
  network_.start(index, profile, std::max(comms_[index].ready, now_ps()) + machine_.start().value);
}

/// Computation matters on cores with a simulated rank only: the network alone sees what other cores
/// have to move.
void ClusterRun::make_profiles() {
  for (std::size_t c = 0; c < job_.comms.size(); ++c)
    profile_of_.push_back(checked_.canonical[c] == c ? &profile_of(job_.comms[c]) : nullptr);
  std::vector<CommProfile*> all;
  for (auto& [key, profile] : profiles_) {
    all.push_back(&profile);
    for (CommPhase& phase : profile.phases) {
      std::copy_if(phase.loads.begin(), phase.loads.end(), std::back_inserter(phase.on_cores),
                   [this](const auto& load) {
                     return !machine_.is_link(load.resource) &&
                            rank_of_core_.contains(machine_.core_of(load.resource));
                   });
    }
  }
  classes_.emplace(all, machine_);
}

const CommProfile& ClusterRun::profile_of(const ClusterComm& comm) {
  const bool transfer = comm.kind == CollectiveKind::kSendRecv;
  const ProfileKey key{comm.kind,
                       comm.group,
                       comm.elements,
                       comm.element_bytes,
                       transfer ? comm.from : -1,
                       transfer ? comm.to : -1};
  const auto [entry, is_new] = profiles_.try_emplace(key);
  if (!is_new) return entry->second;
  const std::vector<int> ranks =
      transfer ? std::vector<int>{comm.from, comm.to} : job_.groups[comm.group].ranks;
  const auto [equal, unseen] = equal_groups_.try_emplace({transfer, ranks});
  if (unseen)  // an empty fold has none but itself
    equal->second = job_.fold.equal_groups(ranks, near_ranks_, members_of(comm));
  std::vector<CommShape> shapes;
  for (const auto& group : equal->second) shapes.push_back(shape_of(comm, group));
  entry->second = profiler_->together(shapes);
  return entry->second;
}

CommShape ClusterRun::shape_of(const ClusterComm& comm, const std::vector<int>& ranks) const {
  std::vector<int> cores;
  for (const int rank : ranks) cores.push_back(job_.cores[static_cast<std::size_t>(rank)]);
  if (comm.kind != CollectiveKind::kSendRecv) std::sort(cores.begin(), cores.end());
  return {comm.kind, std::move(cores), comm.elements, comm.element_bytes};
}

bool ClusterRun::wait_comm(int rank, std::uint32_t index) {
  Comm& comm = comms_[index];
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  if (comm.end < 0) {
    comm.waiting.push_back(rank);
    return false;
  }
  r.clock = std::max(r.clock, comm.end);
  return true;
}

double ClusterRun::phase_began(std::uint32_t comm, const CommPhase& phase) {
  sharing_.enter_phase(comm, phase.alone, phase.on_cores);
  for (const int core : sharing_.cores_of(comm)) {
    if (!sharing_.computes(core)) continue;
    retime_segment(rank_of_core_.at(core));
    for (const std::uint32_t other : sharing_.comms_on(core)) {
      if (other != comm) network_.set_stretch(other, sharing_.stretch_of_comm(other));
    }
  }
  return sharing_.stretch_of_comm(comm);
}

void ClusterRun::comm_ended(std::uint32_t index, std::int64_t end) {
  Comm& comm = comms_[index];
  comm.end = end;
  const std::vector<int> cores = sharing_.cores_of(index);
  sharing_.leave(index);
  for (const int core : cores) {
    if (!sharing_.computes(core)) continue;
    retime_segment(rank_of_core_.at(core));
    retime_comms(core);
  }
  for (std::size_t p = 0; p < comm.started.size(); ++p)
    ranks_[static_cast<std::size_t>(checked_.participants[index][p])].under_way -=
        comm.started[p] ? 1 : 0;
  Stream& stream = stream_of(index);
  stream.busy = !stream.ready.empty();
  if (stream.busy) {
    const std::uint32_t next = stream.ready.front();
    stream.ready.pop_front();
    begin(next);
  }
  std::vector<int> waiting;
  waiting.swap(comm.waiting);
  std::sort(waiting.begin(), waiting.end());
  for (const int rank : waiting) advance(rank);
}

std::vector<int> ClusterRun::missing_ranks(std::uint32_t index) const {
  const auto& participants = checked_.participants[index];
  std::vector<int> missing;
  for (std::size_t p = 0; p < participants.size(); ++p) {
    if (!comms_[index].started[p]) missing.push_back(participants[p]);
  }
  return missing;
}

std::vector<int> ClusterRun::world_ranks(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = world_rank(rank);
  return ranks;
}

std::string ClusterRun::describe_rank(int rank) const {
  const Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const auto& items = job_.ranks[static_cast<std::size_t>(rank)];
  if (r.next == items.size()) return fmt::format("rank {} has finished", world_rank(rank));
  return fmt::format("rank {} waits at item {} for {}", world_rank(rank), r.next,
                     describe_comm(job_, job_.comms[items[r.next].comm]));
}

std::string ClusterRun::describe_hang() const {
  std::string text;
  for (std::uint32_t c = 0; c < comms_.size(); ++c) {
    if (checked_.canonical[c] != c || comms_[c].end >= 0) continue;
    const auto missing = missing_ranks(c);
    const bool touched =
        missing.size() < checked_.participants[c].size() || !comms_[c].waiting.empty();
    if (!touched) continue;
    text += fmt::format("\n  {} never starts: missing rank {}", describe_comm(job_, job_.comms[c]),
                        join_ranks(world_ranks(missing)));
    for (std::size_t m = 0; m < std::min<std::size_t>(missing.size(), 4); ++m)
      text += "; " + describe_rank(missing[m]);
    if (!comms_[c].waiting.empty())
      text += fmt::format("; rank {} waits for it", join_ranks(world_ranks(comms_[c].waiting)));
  }
  return text.empty() ? text : "the job hangs: communications never meet" + text;
}

/// Collects the links of instances with simulated ranks only: the concurrent traffic of other
/// instances is not simulated.
void ClusterRun::collect_links(ClusterTiming& timing) const {
  const std::vector<Network::Usage> usage = network_.usage();
  std::int64_t width = 1;
  for (const Network::Usage& server : usage) width = std::max(width, server.history->width());
  timing.history_bin = Picoseconds(width);
  for (const Network::Usage& server : usage) {
    std::vector<std::int64_t> history;
    for (const ResourceId id : classes_->members(server.resource)) {
      if (!machine_.is_link(id) || !nodes_.contains(machine_.topology().node_of_link(id))) continue;
      if (history.empty()) history = server.history->in_bins_of(width);
      timing.links.push_back({machine_.name(id), server.busy, server.bytes, history});
    }
  }
  std::sort(timing.links.begin(), timing.links.end(),
            [](const LinkUsage& a, const LinkUsage& b) { return a.name < b.name; });
}

ClusterTiming ClusterRun::collect() const {
  ClusterTiming timing;
  timing.ranks = timings_;
  for (const auto& rank : ranks_)
    timing.makespan = std::max(timing.makespan, Picoseconds(rank.clock - base_));
  for (std::uint32_t c = 0; c < comms_.size(); ++c) {
    const Comm& comm = comms_[checked_.canonical[c]];
    if (comm.end < 0) {
      timing.comms.emplace_back();  // no rank's schedule contains it
      continue;
    }
    timing.comms.push_back(
        {Picoseconds(comm.ready - base_), Picoseconds(comm.end - base_), Bytes(comm.wire_bytes)});
    timing.makespan = std::max(timing.makespan, Picoseconds(comm.end - base_));
  }
  collect_links(timing);
  return timing;
}

}  // namespace trellis::sim
