#include "sim/cluster/symmetry.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/check.h"
#include "sim/cluster/comm_profiler.h"

namespace trellis::sim {
namespace {

using Colour = std::uint64_t;
constexpr int kMaxRounds = 64;

/// splitmix64's finalizer over a running value.
Colour mix(Colour h, Colour value) {
  h += 0x9e3779b97f4a7c15u + value;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

/// Independent of order.
Colour mix_all(Colour h, std::vector<Colour>& values) {
  std::sort(values.begin(), values.end());
  for (const Colour value : values) h = mix(h, value);
  return h;
}

/// One of the groups that communicate at the same moment.
struct Instance {
  Colour type = 0;       ///< of what it does
  bool ordered = false;  ///< a transfer: its ends differ
  std::size_t members = 0;
  std::vector<int> ranks;  ///< that are looked at; of a transfer both
  Colour elsewhere = 0;    ///< of the other members, who keep their first colours
  std::vector<CommPhase> phases;
};

class Colouring {
 public:
  Colouring(const ClusterJob& job, const CommMachine& machine, CommTraffic& traffic)
      : job_(job), machine_(machine) {
    for (std::size_t rank = 0; rank < job.cores.size(); ++rank)
      ranks_.push_back(first_colour(static_cast<int>(rank)));
    for (const int rank : job.fold.representatives()) nodes_.insert(node_of(rank));
    // The work that a slow part delays may be on any instance.
    if (!machine.slow().empty()) {
      for (std::size_t rank = 0; rank < job.cores.size(); ++rank)
        nodes_.insert(node_of(static_cast<int>(rank)));
    }
    profiler_.emplace(machine, nodes_, traffic);
    for (int rank = 0; rank < static_cast<int>(job.cores.size()); ++rank) {
      near_.push_back(nodes_.contains(node_of(rank)));
      if (near_.back()) near_ranks_.push_back(rank);
    }
    add_instances();
  }

  RankFold run() {
    std::size_t classes = count();
    for (int round = 0; round < kMaxRounds; ++round) {
      refine();
      const std::size_t now = count();
      if (now == classes) break;
      classes = now;
    }
    return fold();
  }

 private:
  [[nodiscard]] Colour first_colour(int rank) const {
    const auto seat = static_cast<Colour>(job_.fold.seat(rank));
    const double slow = machine_.slow().core(core(rank));
    return slow == 1 ? seat : mix(seat, std::bit_cast<Colour>(slow));
  }

  [[nodiscard]] int core(int rank) const { return job_.cores[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int node_of(int rank) const { return machine_.topology().node_of(core(rank)); }

  CommShape shape_of(const ClusterComm& comm, const std::vector<int>& ranks) const {
    std::vector<int> cores;
    for (const int rank : ranks) cores.push_back(core(rank));
    if (comm.kind != CollectiveKind::kSendRecv) std::sort(cores.begin(), cores.end());
    return {comm.kind, std::move(cores), comm.elements, comm.element_bytes};
  }

  /// Communications of one group that follow one algorithm use the same links in the same
  /// proportions: one of them speaks for all.
  void add_instances() {
    std::set<std::tuple<CollectiveKind, std::vector<int>, Algorithm, Algorithm>> seen;
    std::set<std::tuple<CollectiveKind, std::uint32_t, int, int, std::int64_t, int>> known;
    for (const ClusterComm& comm : job_.comms) {
      if (!known
               .emplace(comm.kind, comm.group, comm.from, comm.to, comm.elements,
                        comm.element_bytes)
               .second)
        continue;
      const bool transfer = comm.kind == CollectiveKind::kSendRecv;
      const std::vector<int> ranks =
          transfer ? std::vector<int>{comm.from, comm.to} : job_.groups[comm.group].ranks;
      const AlgorithmChoice choice = profiler_->choose(shape_of(comm, ranks));
      if (seen.emplace(comm.kind, ranks, choice.algorithm, choice.across).second)
        add_instances(comm, ranks, seen.size());
    }
  }

  void add_instances(const ClusterComm& comm, const std::vector<int>& ranks, Colour type) {
    for (std::vector<int>& group : job_.fold.equal_groups(ranks, near_ranks_, members_of(comm))) {
      const CommShape shape = shape_of(comm, group);
      Instance& instance = instances_.emplace_back();
      instance.type = type;
      instance.ordered = comm.kind == CollectiveKind::kSendRecv;
      instance.phases = profiler_->profile(shape).phases;
      for (const CommPhase& phase : instance.phases) {
        for (const auto& load : phase.loads)
          resources_.try_emplace(load.resource,
                                 static_cast<Colour>(machine_.rate(load.resource).value));
      }
      set_members(instance, std::move(group));
    }
  }

  void set_members(Instance& instance, std::vector<int> group) {
    instance.members = group.size();
    for (const int rank : group) {
      if (near_[static_cast<std::size_t>(rank)])
        memberships_[rank].push_back(instances_.size() - 1);
    }
    if (!instance.ordered) {
      const auto far = std::partition(group.begin(), group.end(), [this](int rank) {
        return near_[static_cast<std::size_t>(rank)];
      });
      std::vector<Colour> others;
      for (auto rank = far; rank != group.end(); ++rank)
        others.push_back(ranks_[static_cast<std::size_t>(*rank)]);
      instance.elsewhere = mix_all(others.size(), others);
      group.erase(far, group.end());
    }
    instance.ranks = std::move(group);
  }

  [[nodiscard]] Colour colour(const Instance& instance) const {
    std::vector<Colour> members;
    for (const int rank : instance.ranks) members.push_back(ranks_[static_cast<std::size_t>(rank)]);
    Colour h = mix(mix(instance.type, instance.members), instance.elsewhere);
    if (instance.ordered) {
      for (const Colour member : members) h = mix(h, member);
    } else {
      h = mix_all(h, members);
    }
    for (const CommPhase& phase : instance.phases) {
      std::vector<Colour> loads;
      for (const auto& load : phase.loads)
        loads.push_back(mix(static_cast<Colour>(load.bytes), resources_.at(load.resource)));
      h = mix_all(mix(h, static_cast<Colour>(phase.alone)), loads);
    }
    return h;
  }

  void refine() {
    std::vector<Colour> instances;
    for (const Instance& instance : instances_) instances.push_back(colour(instance));
    std::unordered_map<ResourceId, std::vector<Colour>> users;
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      for (std::size_t p = 0; p < instances_[i].phases.size(); ++p) {
        for (const auto& load : instances_[i].phases[p].loads)
          users[load.resource].push_back(
              mix(mix(instances[i], p), static_cast<Colour>(load.bytes)));
      }
    }
    for (auto& [resource, of] : users) resources_[resource] = mix_all(resources_[resource], of);
    for (auto& [rank, of] : memberships_) {
      std::vector<Colour> seen;
      for (const std::size_t i : of) seen.push_back(instances[i]);
      for (const ResourceId own : {machine_.dma_of(core(rank)), machine_.hbm_of(core(rank))}) {
        if (const auto at = resources_.find(own); at != resources_.end())
          seen.push_back(at->second);
      }
      Colour& mine = ranks_[static_cast<std::size_t>(rank)];
      mine = mix_all(mine, seen);
    }
  }

  /// Colours of ranks and of resources: while either can still be distinguished further, the other
  /// ones may follow.
  [[nodiscard]] std::size_t count() const {
    std::set<std::pair<int, Colour>> classes;
    for (const int rank : near_ranks_)
      classes.emplace(job_.fold.seat(rank), ranks_[static_cast<std::size_t>(rank)]);
    std::set<Colour> resources;
    for (const auto& [resource, colour] : resources_) resources.insert(colour);
    return classes.size() + resources.size();
  }

  /// Ranks elsewhere are equal to those with their place on an instance that was looked at.
  [[nodiscard]] RankFold fold() const {
    std::map<std::pair<int, int>, Colour> by_place;  // seat, core of its instance
    const int cores = machine_.topology().cores() / machine_.topology().nodes();
    for (const int rank : near_ranks_) {
      by_place.try_emplace({job_.fold.seat(rank), core(rank) % cores},
                           ranks_[static_cast<std::size_t>(rank)]);
    }
    std::map<std::pair<int, Colour>, int> lowest;
    std::vector<int> equal_to;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const int seat = job_.fold.seat(rank);
      Colour mine = ranks_[static_cast<std::size_t>(rank)];
      if (!near_[static_cast<std::size_t>(rank)]) {
        const auto like = by_place.find({seat, core(rank) % cores});
        mine = like != by_place.end()
                   ? like->second
                   : ranks_[static_cast<std::size_t>(
                         job_.fold.representatives()[static_cast<std::size_t>(seat)])];
      }
      equal_to.push_back(lowest.try_emplace({seat, mine}, rank).first->second);
    }
    return RankFold::with_classes(job_.fold.mesh(), equal_to);
  }

  const ClusterJob& job_;
  const CommMachine& machine_;
  std::set<int> nodes_;          ///< with a representative
  std::vector<bool> near_;       ///< by rank: on one of those nodes
  std::vector<int> near_ranks_;  ///< these
  std::optional<CommProfiler> profiler_;
  std::vector<Instance> instances_;
  std::map<int, std::vector<std::size_t>> memberships_;  ///< rank → instances
  std::vector<Colour> ranks_;
  std::unordered_map<ResourceId, Colour> resources_;
};

/// Writes the schedules of a finer fold.
class Unfolding {
 public:
  Unfolding(const ClusterJob& job, const RankFold& finer, std::vector<std::size_t>& sources)
      : job_(job), sources_(sources) {
    result_.programs = job.programs;
    result_.cores = job.cores;
    result_.fold = finer;
  }

  ClusterJob run() {
    for (const int rank : result_.fold.representatives()) {
      const auto source = static_cast<std::size_t>(job_.fold.seat(rank));
      sources_.push_back(source);
      moved_.clear();
      std::vector<ScheduleItem>& items = result_.ranks.emplace_back(job_.ranks[source]);
      for (ScheduleItem& item : items) {
        if (item.kind == ScheduleItem::Kind::kCommStart ||
            item.kind == ScheduleItem::Kind::kCommWait)
          item.comm = comm(item.comm, rank, source);
      }
    }
    return std::move(result_);
  }

 private:
  /// The group that does for `rank` what `group` does for the rank that represented it.
  std::vector<int> group_of(const std::vector<int>& group, bool transfer, int rank,
                            std::size_t source) {
    const int before = job_.fold.representatives()[source];
    if (rank == before) return group;
    const auto place = std::find(group.begin(), group.end(), before) - group.begin();
    auto [equal, fresh] = equal_groups_.try_emplace(group);
    if (fresh) equal->second = job_.fold.equal_groups(group);
    for (const auto& other : equal->second) {
      const bool is_mine = transfer ? other[static_cast<std::size_t>(place)] == rank
                                    : std::find(other.begin(), other.end(), rank) != other.end();
      if (is_mine) return other;
    }
    TRELLIS_CHECK(false, "a rank has no group like that of its representative");
    return {};
  }

  std::uint32_t group(const std::string& axis, std::vector<int> ranks) {
    const auto [it, fresh] = groups_.try_emplace({axis, std::move(ranks)},
                                                 static_cast<std::uint32_t>(result_.groups.size()));
    if (fresh) result_.groups.push_back({axis, it->first.second});
    return it->second;
  }

  std::uint32_t comm(std::uint32_t index, int rank, std::size_t source) {
    const auto known = moved_.find(index);
    if (known != moved_.end()) return known->second;
    ClusterComm moved = job_.comms[index];
    const bool transfer = moved.kind == CollectiveKind::kSendRecv;
    const CommGroup& old_group = job_.groups[moved.group];
    if (transfer) {
      const std::vector<int> ends = group_of({moved.from, moved.to}, true, rank, source);
      moved.from = ends[0];
      moved.to = ends[1];
      moved.group = group(old_group.axis, ends);
    } else {
      moved.group = group(old_group.axis, group_of(old_group.ranks, false, rank, source));
    }
    const auto [it, fresh] =
        comms_.try_emplace({moved.group, transfer, moved.from, moved.to, moved.sequence},
                           static_cast<std::uint32_t>(result_.comms.size()));
    if (fresh) result_.comms.push_back(moved);
    return moved_[index] = it->second;
  }

  const ClusterJob& job_;
  std::vector<std::size_t>& sources_;
  ClusterJob result_;
  std::map<std::vector<int>, std::vector<std::vector<int>>> equal_groups_;
  std::map<std::pair<std::string, std::vector<int>>, std::uint32_t> groups_;
  std::map<std::tuple<std::uint32_t, bool, int, int, std::uint64_t>, std::uint32_t> comms_;
  std::unordered_map<std::uint32_t, std::uint32_t> moved_;  ///< of the current rank
};

}  // namespace

RankFold equal_ranks(const ClusterJob& job, const CommMachine& machine, CommTraffic& traffic) {
  TRELLIS_CHECK(!job.fold.empty(), "the job is not folded");
  return Colouring(job, machine, traffic).run();
}

ClusterJob unfold(const ClusterJob& job, const RankFold& finer, std::vector<std::size_t>& sources) {
  return Unfolding(job, finer, sources).run();
}

}  // namespace trellis::sim
