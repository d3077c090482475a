#include "sim/cluster/comm_profile.h"

#include "sim/cluster/comm_profiler.h"
#include "sim/collectives/stage_steps.h"
#include "sim/config/load_system.h"

#include <map>

#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

using Loads = std::map<ResourceId, std::int64_t>;

/// The load of the written-out steps on every resource.
Loads loads_of_steps(const CommShape& shape, const AlgorithmChoice& choice,
                     const CommMachine& machine) {
  Loads loads;
  const auto add = [&](ResourceId resource, std::int64_t bytes) {
    if (bytes > 0) loads[resource] += bytes;
  };
  for (const PlanStep& step :
       expand(make_outline(shape.kind, choice, machine.layout(shape.cores), shape.elements))
           .steps) {
    const int from = shape.cores[static_cast<std::size_t>(step.from)],
              to = shape.cores[static_cast<std::size_t>(step.to)];
    const std::int64_t bytes = step.length * shape.element_bytes;
    for (const LinkId link : machine.topology().route(from, to).links) add(link, bytes);
    add(machine.dma_of(from), bytes);
    add(machine.hbm_of(from), bytes);
    add(machine.hbm_of(to), step.reduce ? 2 * bytes : bytes);
  }
  return loads;
}

Loads loads_of_profile(const CommProfile& profile) {
  Loads loads;
  for (const CommPhase& phase : profile.phases) {
    for (const auto& load : phase.loads) {
      if (load.bytes > 0) loads[load.resource] += load.bytes;
    }
  }
  return loads;
}

/// One core on each of `nodes` nodes, and on the first one two more: pairs inside a node and beyond
/// it.
std::vector<int> spread(const CommMachine& machine, int nodes) {
  const int cores = machine.topology().cores() / machine.topology().nodes();
  std::vector<int> group{0, 5, 9};
  for (int node = 1; node < nodes; ++node) group.push_back(node * cores + node % cores);
  return group;
}

TEST(CommProfile, LargeMeshesAskForWhatTheirStepsMove) {
  for (const char* instance : {"trn1.32xlarge", "trn2u.48xlarge"}) {
    const CommMachine machine(load_system(instance, 80));
    const std::vector<int> group = spread(machine, 80);
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
      for (const std::int64_t elements :
           {1LL, 41LL, 1000LL, 82000LL}) {  // fewer than members, uneven, even
        const CommShape shape{kind, group, elements, 4};
        const CommProfile profile = profile_comm(shape, {Algorithm::kMesh}, machine);
        EXPECT_EQ(loads_of_profile(profile), loads_of_steps(shape, {Algorithm::kMesh}, machine))
            << instance << " " << name(kind) << " " << elements;
      }
    }
  }
}

TEST(CommProfile, HalvingAndDoublingAsksForWhatItsStepsMove) {
  const CommMachine machine(load_system("trn1.32xlarge", 64));
  std::vector<int> group;
  for (int node = 0; node < 64; ++node) group.push_back(32 * node);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
    for (const std::int64_t elements : {1LL, 100LL, 4096LL}) {
      const CommShape shape{kind, group, elements, 2};
      EXPECT_EQ(loads_of_profile(profile_comm(shape, {Algorithm::kHalvingDoubling}, machine)),
                loads_of_steps(shape, {Algorithm::kHalvingDoubling}, machine))
          << elements;
    }
  }
}

TEST(CommProfile, OthersThatDoTheSameAddTheirLoads) {
  const CommMachine machine(load_system("trn1.32xlarge"));
  const auto shape = [](int first) {
    return CommShape{
        CollectiveKind::kAllReduce, {first, first + 2, first + 4, first + 6}, 1 << 20, 4};
  };
  const std::set<int> here{0}, nowhere;
  CommTraffic traffic(machine);
  const CommProfile alone = CommProfiler(machine, here, traffic).together({shape(0)});
  const CommProfile concurrent =
      CommProfiler(machine, here, traffic).together({shape(0), shape(1)});
  const Loads one = loads_of_profile(alone),
              other = loads_of_profile(CommProfiler(machine, here, traffic).together({shape(1)}));
  Loads sum = one;
  for (const auto& [resource, bytes] : other) sum[resource] += bytes;
  EXPECT_EQ(loads_of_profile(concurrent), sum);
  EXPECT_EQ(concurrent.wire_bytes, alone.wire_bytes);
  EXPECT_EQ(
      loads_of_profile(CommProfiler(machine, nowhere, traffic).together({shape(0), shape(1)})), one)
      << "no one looks at their instance";
}

/// Every `step`-th core of each of `nodes` nodes, from `first` on.
std::vector<int> on_every_node(const CommMachine& machine, int nodes, int first, int step) {
  const int cores = machine.topology().cores() / machine.topology().nodes();
  std::vector<int> group;
  for (int node = 0; node < nodes; ++node) {
    for (int core = first; core < cores; core += step) group.push_back(node * cores + core);
  }
  return group;
}

TEST(CommProfiler, DomainsThatAreLeftOutAreLikeOneThatIsKept) {
  for (const char* instance : {"trn1.32xlarge", "trn2u.48xlarge"}) {
    for (const int nodes : {8, 20, 64}) {
      const CommMachine machine(load_system(instance, nodes));
      const int cores = machine.topology().cores() / nodes;
      const std::set<int> near{0, 1};
      CommTraffic traffic(machine);
      CommProfiler profiler(machine, near, traffic);
      for (const auto& [first, step] :
           {std::pair{0, cores}, std::pair{5, cores}, std::pair{1, cores / 4}}) {
        for (const CollectiveKind kind :
             {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
              CollectiveKind::kAllReduce}) {
          for (const std::int64_t elements : {1LL, 1000LL, 4096LL, 3'000'001LL, 200'000'000LL}) {
            const CommShape shape{kind, on_every_node(machine, nodes, first, step), elements, 2};
            const AlgorithmChoice choice = choose_algorithm(shape, machine);
            EXPECT_EQ(profiler.choose(shape).algorithm, choice.algorithm);
            const CommProfile whole = profile_comm(shape, choice, machine),
                              part = profiler.profile(shape);
            ASSERT_EQ(part.phases.size(), whole.phases.size());
            EXPECT_EQ(part.wire_bytes, whole.wire_bytes)
                << instance << " " << nodes << " " << name(kind) << " " << elements;
            for (std::size_t p = 0; p < whole.phases.size(); ++p) {
              EXPECT_EQ(part.phases[p].alone, whole.phases[p].alone)
                  << instance << " " << nodes << " " << name(kind) << " " << elements;
              Loads all, kept;
              std::set<std::int64_t> all_bytes, kept_bytes;
              for (const auto& load : whole.phases[p].loads)
                all[load.resource] = load.bytes, all_bytes.insert(load.bytes);
              for (const auto& load : part.phases[p].loads)
                kept[load.resource] = load.bytes, kept_bytes.insert(load.bytes);
              for (const auto& [resource, bytes] : kept) EXPECT_EQ(bytes, all[resource]);
              EXPECT_EQ(kept_bytes, all_bytes)
                  << "every amount that some resource has to move is one of a kept resource";
              for (const auto& [resource, bytes] : all) {
                const bool here = machine.is_link(resource) &&
                                  near.contains(machine.topology().node_of_link(resource));
                if (here) {
                  EXPECT_EQ(kept[resource], bytes) << machine.name(resource);
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trellis::sim
