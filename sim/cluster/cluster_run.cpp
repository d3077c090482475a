#include "sim/cluster/cluster_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/kernel/time.h"

namespace trellis::sim {

ClusterRun::ClusterRun(const SystemConfig& system, const Topology& topology, Network& network, const ClusterJob& job)
    : system_(system), topology_(topology), network_(network), job_(job), checked_(check_job(job, topology)) {
  comms_.resize(job.comms.size());
  for (std::size_t c = 0; c < comms_.size(); ++c) {
    const bool transfer = job.comms[c].kind == CollectiveKind::kSendRecv;
    comms_[c].started.assign(checked_.participants[c].size(), false);
    comms_[c].missing = transfer ? 1 : static_cast<int>(checked_.participants[c].size());
  }
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
    case ScheduleItem::Kind::kSegment: r.clock += job_.programs[item.program]->segments[item.segment].duration.value; return true;
    case ScheduleItem::Kind::kLaunch: launch(r); return true;
    case ScheduleItem::Kind::kCommStart: start_comm(rank, checked_.canonical[item.comm]); return true;
    case ScheduleItem::Kind::kCommWait: break;
  }
  if (r.wait_began < 0) r.wait_began = r.clock;
  if (!wait_comm(rank, checked_.canonical[item.comm])) return false;
  timing.start = Picoseconds(r.wait_began - base_);
  r.wait_began = -1;
  return true;
}

/// The host runs ahead of the device, so only the first program waits for its launch; each pays for the device's start and stop.
void ClusterRun::launch(Rank& rank) {
  if (!rank.launched) rank.clock += system_.launch.program_launch.value;
  rank.launched = true;
  rank.clock += system_.launch.program_start.value;
}

void ClusterRun::start_comm(int rank, std::uint32_t index) {
  Comm& comm = comms_[index];
  const auto& participants = checked_.participants[index];
  const auto position = static_cast<std::size_t>(std::find(participants.begin(), participants.end(), rank) - participants.begin());
  if (comm.started[position]) {
    // Inside the kernel nothing is thrown: the run ends by itself and reports the first failure.
    if (failure_.empty()) failure_ = fmt::format("rank {} starts {} twice", rank, describe_comm(job_, job_.comms[index]));
    return;
  }
  comm.started[position] = true;
  const bool receiver = job_.comms[index].kind == CollectiveKind::kSendRecv && position == 1;
  if (receiver) return;  // the sender's start suffices
  comm.ready = std::max(comm.ready, ranks_[static_cast<std::size_t>(rank)].clock);
  if (--comm.missing == 0) begin(index);
}

void ClusterRun::begin(std::uint32_t index) {
  const CommProfile& profile = profile_of(job_.comms[index]);
  comms_[index].wire_bytes = profile.wire_bytes;
  network_.start(index, profile, comms_[index].ready + system_.launch.collective_start.value);
}

const CommProfile& ClusterRun::profile_of(const ClusterComm& comm) {
  const bool transfer = comm.kind == CollectiveKind::kSendRecv;
  const ProfileKey key{comm.kind, comm.group, comm.elements, comm.element_bytes, transfer ? comm.from : -1, transfer ? comm.to : -1};
  const auto [entry, is_new] = profiles_.try_emplace(key);
  if (!is_new) return entry->second;
  std::vector<int> cores;
  for (const int rank : transfer ? std::vector<int>{comm.from, comm.to} : job_.groups[comm.group].ranks) cores.push_back(job_.cores[static_cast<std::size_t>(rank)]);
  if (!transfer) std::sort(cores.begin(), cores.end());
  const CommPlan plan = transfer ? ring_plan(comm.kind, 2, comm.elements) : plan_for(comm.kind, cores, comm.elements, topology_);
  entry->second = profile_plan(plan, cores, comm.element_bytes, topology_);
  return entry->second;
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

void ClusterRun::comm_ended(std::uint32_t index, std::int64_t end) {
  Comm& comm = comms_[index];
  comm.end = end;
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

std::string ClusterRun::describe_rank(int rank) const {
  const Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const auto& items = job_.ranks[static_cast<std::size_t>(rank)];
  if (r.next == items.size()) return fmt::format("rank {} has finished", rank);
  return fmt::format("rank {} waits at item {} for {}", rank, r.next, describe_comm(job_, job_.comms[items[r.next].comm]));
}

std::string ClusterRun::describe_hang() const {
  std::string text;
  for (std::uint32_t c = 0; c < comms_.size(); ++c) {
    if (checked_.canonical[c] != c || comms_[c].end >= 0) continue;
    const auto missing = missing_ranks(c);
    const bool touched = missing.size() < checked_.participants[c].size() || !comms_[c].waiting.empty();
    if (!touched) continue;
    text += fmt::format("\n  {} never starts: missing rank {}", describe_comm(job_, job_.comms[c]), join_ranks(missing));
    for (std::size_t m = 0; m < std::min<std::size_t>(missing.size(), 4); ++m) text += "; " + describe_rank(missing[m]);
    if (!comms_[c].waiting.empty()) text += fmt::format("; rank {} waits for it", join_ranks(comms_[c].waiting));
  }
  return text.empty() ? text : "the job hangs: communications never meet" + text;
}

ClusterTiming ClusterRun::collect() const {
  ClusterTiming timing;
  timing.ranks = timings_;
  for (const auto& rank : ranks_) timing.makespan = std::max(timing.makespan, Picoseconds(rank.clock - base_));
  for (std::uint32_t c = 0; c < comms_.size(); ++c) {
    const Comm& comm = comms_[checked_.canonical[c]];
    if (comm.end < 0) {
      timing.comms.emplace_back();  // no rank's schedule contains it
      continue;
    }
    timing.comms.push_back({Picoseconds(comm.ready - base_), Picoseconds(comm.end - base_), Bytes(comm.wire_bytes)});
    timing.makespan = std::max(timing.makespan, Picoseconds(comm.end - base_));
  }
  timing.links = network_.usage();
  return timing;
}

}  // namespace trellis::sim
