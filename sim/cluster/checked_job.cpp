#include "sim/cluster/checked_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/error.h"

namespace trellis::sim {
namespace {

using Key = std::tuple<std::uint32_t, std::uint64_t, int, int>;

/// Finds, among groups that do the same at the same moment, the first that the job names: where a
/// group has several representatives, each of them calls the communication of another group.
class FirstGroups {
 public:
  explicit FirstGroups(const ClusterJob& job) : job_(job) {}

  std::uint32_t group(std::uint32_t index) {
    if (job_.fold.empty()) return index;
    const auto [known, is_new] = groups_.try_emplace(index, index);
    if (!is_new) return known->second;
    const CommGroup& own = job_.groups[index];
    std::vector<int> seats;
    for (const int rank : own.ranks) seats.push_back(job_.fold.seat(rank));
    std::sort(seats.begin(), seats.end());
    auto& alike = by_seats_[{own.axis, std::move(seats)}];
    const auto first = std::find_if(alike.begin(), alike.end(), [&](std::uint32_t other) {
      return job_.fold.are_equal(job_.groups[other].ranks, own.ranks, RankFold::Members::kAnyOrder);
    });
    if (first != alike.end()) {
      known->second = *first;
    } else {
      alike.push_back(index);
    }
    return known->second;
  }

 private:
  const ClusterJob& job_;
  std::map<std::uint32_t, std::uint32_t> groups_;
  std::map<std::pair<std::string, std::vector<int>>, std::vector<std::uint32_t>> by_seats_;
};

/// A transfer is counted per ordered pair, a collective per group.
Key key_of(const ClusterComm& comm, FirstGroups& first) {
  if (comm.kind == CollectiveKind::kSendRecv)
    return {comm.group, comm.sequence, comm.from, comm.to};
  return {first.group(comm.group), comm.sequence, -1, -1};
}

std::string size_text(const ClusterComm& comm) {
  return fmt::format("{} of {} x {} bytes", name(comm.kind), comm.elements, comm.element_bytes);
}

void check_same(const ClusterJob& job, const ClusterComm& a, const ClusterComm& b) {
  if (a.kind == b.kind && a.elements == b.elements && a.element_bytes == b.element_bytes) return;
  throw Error(
      ExitCode::kHang,
      fmt::format(
          "ranks disagree about communication #{} of group \"{}\" [{}]: one calls {}, another {}",
          a.sequence, job.groups[a.group].axis, join_ranks(job.groups[a.group].ranks), size_text(a),
          size_text(b)));
}

void check_comm(const ClusterJob& job, const ClusterComm& comm) {
  TRELLIS_CHECK(comm.group < job.groups.size(),
                "a communication names a group that does not exist");
  const int ranks = static_cast<int>(job.cores.size());
  if (comm.kind != CollectiveKind::kSendRecv) return;
  TRELLIS_CHECK(comm.from >= 0 && comm.from < ranks && comm.to >= 0 && comm.to < ranks &&
                    comm.from != comm.to,
                "a transfer needs two ranks that exist");
  TRELLIS_CHECK(job.fold.seat(comm.from) != job.fold.seat(comm.to),
                "a transfer between ranks that are folded into one");
}

/// Who of the simulated ranks speaks for the members.
std::vector<int> seats_of(const ClusterJob& job, const std::vector<int>& ranks) {
  std::vector<int> seats;
  for (const int rank : ranks) seats.push_back(job.fold.seat(rank));
  if (job.fold.empty()) return seats;
  std::sort(seats.begin(), seats.end());
  seats.erase(std::unique(seats.begin(), seats.end()), seats.end());
  return seats;
}

void check_items(const ClusterJob& job, const CheckedJob& checked) {
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    for (const ScheduleItem& item : job.ranks[rank]) {
      switch (item.kind) {
        case ScheduleItem::Kind::kSegment:
          TRELLIS_CHECK(item.program < job.programs.size() &&
                            item.segment < job.programs[item.program]->segments.size(),
                        "a schedule names a segment that does not exist");
          break;
        case ScheduleItem::Kind::kLaunch: break;
        case ScheduleItem::Kind::kHostCopy:
          TRELLIS_CHECK(item.bytes >= 0, "a copy of a negative number of bytes");
          break;
        case ScheduleItem::Kind::kCommStart:
        case ScheduleItem::Kind::kCommWait: {
          TRELLIS_CHECK(item.comm < job.comms.size(),
                        "a schedule names a communication that does not exist");
          const auto& members = checked.participants[item.comm];
          TRELLIS_CHECK(
              std::find(members.begin(), members.end(), static_cast<int>(rank)) != members.end(),
              fmt::format("rank {} takes part in {}, of which it is no member", checked.ranks[rank],
                          describe_comm(job, job.comms[item.comm])));
          break;
        }
      }
    }
  }
}

}  // namespace

std::string join_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kShown; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kShown) text += fmt::format(", … ({} ranks)", ranks.size());
  return text;
}

std::string describe_comm(const ClusterJob& job, const ClusterComm& comm) {
  const CommGroup& group = job.groups[comm.group];
  if (comm.kind == CollectiveKind::kSendRecv)
    return fmt::format("send_recv #{} of \"{}\" from rank {} to rank {}", comm.sequence, group.axis,
                       comm.from, comm.to);
  return fmt::format("{} #{} of \"{}\" [{}]", name(comm.kind), comm.sequence, group.axis,
                     join_ranks(group.ranks));
}

CheckedJob check_job(const ClusterJob& job, const Topology& topology) {
  TRELLIS_CHECK(
      job.cores.size() ==
          (job.fold.empty() ? job.ranks.size() : static_cast<std::size_t>(job.fold.world_size())),
      "every rank needs a core");
  TRELLIS_CHECK(job.fold.empty() || job.ranks.size() == job.fold.representatives().size(),
                "every representative needs a schedule");
  for (const int core : job.cores) {
    if (core < 0 || core >= topology.cores()) {
      throw ConfigError(fmt::format(
          "the job uses logical core {}, the cluster has {}: add nodes or use fewer ranks", core,
          topology.cores()));
    }
  }
  CheckedJob checked;
  checked.job = &job;
  for (std::size_t i = 0; i < job.ranks.size(); ++i)
    checked.ranks.push_back(job.fold.empty() ? static_cast<int>(i) : job.fold.representatives()[i]);
  std::vector<std::vector<int>> members;
  for (const CommGroup& group : job.groups) {
    for (const int rank : group.ranks)
      TRELLIS_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < job.cores.size(),
                    "a group names a rank that does not exist");
    members.push_back(seats_of(job, group.ranks));
  }
  std::map<Key, std::uint32_t> first;
  FirstGroups groups(job);
  for (std::uint32_t c = 0; c < job.comms.size(); ++c) {
    const ClusterComm& comm = job.comms[c];
    check_comm(job, comm);
    const std::uint32_t canonical = first.emplace(key_of(comm, groups), c).first->second;
    check_same(job, job.comms[canonical], comm);
    checked.canonical.push_back(canonical);
    const bool pair = comm.kind == CollectiveKind::kSendRecv;
    checked.participants.push_back(
        pair ? std::vector<int>{job.fold.seat(comm.from), job.fold.seat(comm.to)}
             : members[comm.group]);
  }
  check_items(job, checked);
  return checked;
}

}  // namespace trellis::sim
