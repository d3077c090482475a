#include "sim/cluster/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "sim/cluster/comm_profile.h"

namespace trellis::sim {
namespace {

/// Neighbours as neuron-ls prints them (hardware facts, torus wiring).
TEST(Topology, NeighboursAreOneHopAway) {
  const Topology t(load_system("trn1.32xlarge"));
  const std::array<std::array<int, 4>, 3> printed = {{{12, 3, 4, 1}, {13, 0, 5, 2}, {11, 14, 3, 12}}};
  const std::array<int, 3> chips = {0, 1, 15};
  for (std::size_t i = 0; i < chips.size(); ++i) {
    std::set<LinkId> links;
    for (const int neighbour : printed[i]) {
      const Route route = t.route(chips[i] * 2, neighbour * 2);
      EXPECT_EQ(route.links.size(), 1u) << chips[i] << " to " << neighbour;
      links.insert(route.links[0]);
    }
    EXPECT_EQ(links.size(), 4u);  // four different wires
  }
}

TEST(Topology, NoRouteIsLongerThanTheTorusAllows) {
  const Topology t(load_system("trn1.32xlarge"));
  for (int from = 0; from < 32; ++from) {
    for (int to = 0; to < 32; ++to) {
      const Route route = t.route(from, to);
      EXPECT_LE(route.links.size(), 4u);
      EXPECT_EQ(route.links.empty(), from == to);
      EXPECT_EQ(route.links.size(), t.route(to, from).links.size());
    }
  }
}

TEST(Topology, NamesAreUnique) {
  const Topology t(load_system("trn2u.48xlarge", 2));
  std::set<std::string> names;
  for (std::size_t id = 0; id < t.link_count(); ++id) names.insert(t.link_name(static_cast<LinkId>(id)));
  EXPECT_EQ(names.size(), t.link_count());
}

TEST(Topology, ChoosesTheLinkByTheDistance) {
  const SystemConfig system = load_system("trn2u.48xlarge", 8);
  const Topology t(system);
  EXPECT_EQ(t.link_name(t.route(0, 1).links.at(0)), "node0.chip0.core0.to_core1");
  EXPECT_EQ(t.link_name(t.route(0, 4).links.at(0)), "node0.chip0.neuron_link_east");
  EXPECT_EQ(t.link_name(t.route(0, 3 * 64).links.at(0)), "node0.chip0.neuron_link_down");
  const Route far = t.route(0, 4 * 64);  // the next UltraServer
  EXPECT_EQ(t.link_name(far.links.at(0)), "node0.chip0.core0.efa_out");
  EXPECT_EQ(t.link_name(far.links.at(1)), "node4.chip0.core0.efa_in");
  EXPECT_EQ(far.latency, system.instance.efa.latency.value);
}

TEST(CommProfile, CarriesWhatThePlanSends) {
  const Topology t(load_system("trn1.32xlarge", 2));
  for (const auto& cores : {std::vector<int>{0, 1}, std::vector<int>{0, 2, 4, 6, 8}, std::vector<int>{0, 1, 32, 33}, std::vector<int>{5, 37}}) {
    const CommPlan plan = plan_for(CollectiveKind::kAllReduce, cores, 12345, t);
    std::int64_t expected = 0;
    for (const auto& step : plan.steps) expected += step.length * 2 * static_cast<std::int64_t>(t.route(cores[step.from], cores[step.to]).links.size());
    const CommProfile profile = profile_plan(plan, cores, 2, t);
    EXPECT_EQ(profile.wire_bytes, expected);
    EXPECT_LE(profile.phases.size(), 8u);
  }
}

TEST(CommProfile, GroupsOverSeveralNodesGetTheHierarchicalPlan) {
  const Topology t(load_system("trn1.32xlarge", 2));
  EXPECT_EQ(plan_for(CollectiveKind::kAllReduce, {0, 1, 32, 33}, 100, t).steps.back().round + 1, 2 * (1 + 1));
  EXPECT_EQ(plan_for(CollectiveKind::kAllReduce, {0, 32}, 100, t).steps.back().round + 1, 2);
  EXPECT_EQ(plan_for(CollectiveKind::kAllReduce, {0, 1, 32}, 100, t).steps.back().round + 1, 4);  // uneven: one ring
}

}  // namespace
}  // namespace trellis::sim
