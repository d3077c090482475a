#include "sim/cluster/topology.h"
#include "sim/config/load_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <queue>
#include <random>
#include <set>

namespace trellis::sim {
namespace {

using ::testing::ElementsAre;

/// Clusters that between them have every kind of link.
struct Cluster {
  const char* instance;
  int nodes;
  double oversubscription;
};
constexpr std::array<Cluster, 12> kClusters = {{{"trn1.2xlarge", 1, 1},
                                                {"trn2.3xlarge", 3, 1},
                                                {"trn1.32xlarge", 2, 1},
                                                {"trn1n.32xlarge", 3, 2},
                                                {"trn2.3xlarge", 2, 1},
                                                {"trn2.48xlarge", 2, 4},
                                                {"trn2u.48xlarge", 2, 1},
                                                {"trn2u.48xlarge", 8, 1},
                                                {"trn3-gen1", 2, 1},
                                                {"trn3-gen1", 8, 1},
                                                {"trn3-gen2", 5, 1},
                                                {"trn3-gen2", 40, 2}}};

SystemConfig system_of(const Cluster& cluster) {
  SystemConfig system = load_system(cluster.instance, cluster.nodes);
  system.network.oversubscription = cluster.oversubscription;
  return system;
}

std::vector<std::string> names(const Topology& t, const Route& route) {
  std::vector<std::string> result;
  for (const LinkId link : route.links) result.push_back(t.link_name(link));
  return result;
}

Route between_chips(const Topology& t, int from, int to) {
  return t.route(from * t.cores_per_chip(), to * t.cores_per_chip());
}

/// Picoseconds of one message that has all links to itself: its latency and its slowest link.
double time_of(const Topology& t, const Route& route, double bytes) {
  double slowest = 0;
  for (const LinkId link : route.links)
    slowest = std::max(slowest, bytes / t.link(link).bandwidth.value * 1e12);
  return static_cast<double>(route.latency) + slowest;
}

/// The whole table that neuron-ls prints for 16 chips (hardware facts, torus wiring).
TEST(Topology, NeighboursAreThoseOfNeuronLs) {
  const std::array<std::vector<int>, 16> printed = {{{12, 3, 4, 1},
                                                     {13, 0, 5, 2},
                                                     {14, 1, 6, 3},
                                                     {15, 2, 7, 0},
                                                     {0, 7, 8, 5},
                                                     {1, 4, 9, 6},
                                                     {2, 5, 10, 7},
                                                     {3, 6, 11, 4},
                                                     {4, 11, 12, 9},
                                                     {5, 8, 13, 10},
                                                     {6, 9, 14, 11},
                                                     {7, 10, 15, 8},
                                                     {8, 15, 0, 13},
                                                     {9, 12, 1, 14},
                                                     {10, 13, 2, 15},
                                                     {11, 14, 3, 12}}};
  for (const char* instance : {"trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge"}) {
    const Topology t(load_system(instance));
    for (int chip = 0; chip < 16; ++chip) {
      EXPECT_EQ(t.neighbours(chip), printed[static_cast<std::size_t>(chip)])
          << instance << " chip " << chip;
      std::set<LinkId> wires;
      for (const int neighbour : t.neighbours(chip)) {
        const Route route = between_chips(t, chip, neighbour);
        ASSERT_EQ(route.links.size(), 1u);
        EXPECT_EQ(t.ends(route.links[0]).from, chip);
        EXPECT_EQ(t.ends(route.links[0]).to, neighbour);
        wires.insert(route.links[0]);
      }
      EXPECT_EQ(wires.size(), 4u);
    }
  }
}

/// Hops from `start` to every chip by walking over neighbours.
std::vector<int> distances(const Topology& t, int start) {
  std::vector<int> hops(static_cast<std::size_t>(t.chips()), -1);
  std::queue<int> open({start});
  hops[static_cast<std::size_t>(start)] = 0;
  for (; !open.empty(); open.pop()) {
    for (const int next : t.neighbours(open.front())) {
      if (hops[static_cast<std::size_t>(next)] >= 0) continue;
      hops[static_cast<std::size_t>(next)] = hops[static_cast<std::size_t>(open.front())] + 1;
      open.push(next);
    }
  }
  return hops;
}

TEST(Topology, TorusRoutesAreConnectedShortestAndAsLongBack) {
  for (const auto& [instance, nodes] :
       {std::pair("trn1.32xlarge", 1), std::pair("trn2u.48xlarge", 2),
        std::pair("trn2u.48xlarge", 4)}) {
    const Topology t(load_system(instance, nodes));
    for (int from = 0; from < t.chips(); ++from) {
      const auto hops = distances(t, from);
      for (int to = 0; to < t.chips(); ++to) {
        const Route route = between_chips(t, from, to);
        ASSERT_EQ(static_cast<int>(route.links.size()), hops[static_cast<std::size_t>(to)])
            << from << " to " << to;
        EXPECT_EQ(route.links.size(), between_chips(t, to, from).links.size());
        int at = from;
        for (const LinkId link : route.links) {
          ASSERT_EQ(t.ends(link).from, at);
          at = t.ends(link).to;
        }
        EXPECT_EQ(at, to);
      }
    }
  }
}

TEST(Topology, EveryLinkHasItsNameItsRateAndItsUser) {
  for (const Cluster& cluster : kClusters) {
    SCOPED_TRACE(std::string(cluster.instance) + " x " + std::to_string(cluster.nodes));
    const Topology t(system_of(cluster));
    std::set<std::string> all;
    for (std::size_t id = 0; id < t.link_count(); ++id) {
      all.insert(t.link_name(static_cast<LinkId>(id)));
      EXPECT_GT(t.link(static_cast<LinkId>(id)).bandwidth.value, 0)
          << t.link_name(static_cast<LinkId>(id));
    }
    EXPECT_EQ(all.size(), t.link_count());
    std::vector<bool> used(t.link_count(), false);
    for (int chip = 0; chip < t.chips(); ++chip) {
      for (const bool out : {true, false})
        used[static_cast<std::size_t>(t.host_link(chip, out))] = true;
    }
    for (int from = 0; from < t.cores(); ++from) {
      for (int to = 0; to < t.cores(); ++to) {
        for (const LinkId link : t.route(from, to).links)
          used.at(static_cast<std::size_t>(link)) = true;
      }
    }
    for (std::size_t id = 0; id < t.link_count(); ++id)
      EXPECT_TRUE(used[id]) << t.link_name(static_cast<LinkId>(id)) << " is used by no route";
  }
}

TEST(Topology, ARouteIsEmptyOnlyToItselfAndItsLatencyIsThatOfItsLinks) {
  for (const Cluster& cluster : kClusters) {
    const SystemConfig system = system_of(cluster);
    const Topology t(system);
    std::mt19937 random(7);
    for (int i = 0; i < 500; ++i) {
      const int from = static_cast<int>(random() % static_cast<unsigned>(t.cores()));
      const int to = static_cast<int>(random() % static_cast<unsigned>(t.cores()));
      const Route route = t.route(from, to);
      EXPECT_EQ(route.links.empty(), from == to);
      EXPECT_EQ(std::set<LinkId>(route.links.begin(), route.links.end()).size(), route.links.size())
          << "no link twice";
      EXPECT_EQ(route.links.size(), t.route(to, from).links.size());
      std::int64_t latency = 0;
      for (const LinkId link : route.links) latency += t.link(link).latency.value;
      EXPECT_EQ(route.latency, latency);
      if (t.domain_of(from) == t.domain_of(to)) continue;
      EXPECT_EQ(route.latency, system.instance.efa.latency.value);
    }
  }
}

TEST(Topology, DoublingABandwidthNeverLengthensARoute) {
  for (const Cluster& cluster : kClusters) {
    const SystemConfig base = system_of(cluster);
    const Topology before(base);
    for (LinkConfig InstanceConfig::* link :
         {&InstanceConfig::neuron_link, &InstanceConfig::on_chip, &InstanceConfig::rack_link,
          &InstanceConfig::ultraserver_link, &InstanceConfig::efa}) {
      SystemConfig faster = base;
      (faster.instance.*link).bandwidth = (faster.instance.*link).bandwidth * 2;
      const Topology after(faster);
      std::mt19937 random(3);
      for (int i = 0; i < 200; ++i) {
        const int from = static_cast<int>(random() % static_cast<unsigned>(before.cores()));
        const int to = static_cast<int>(random() % static_cast<unsigned>(before.cores()));
        EXPECT_LE(time_of(after, after.route(from, to), 1e6),
                  time_of(before, before.route(from, to), 1e6));
      }
    }
  }
}

TEST(Topology, TwoHamiltonianCyclesShareNoWire) {
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge"}) {
    const Topology t(load_system(instance));
    const auto cycles = t.hamiltonian_cycles();
    ASSERT_EQ(cycles.size(), 2u);
    std::set<std::pair<int, int>> wires;
    for (const auto& cycle : cycles) {
      EXPECT_EQ(std::set<int>(cycle.begin(), cycle.end()).size(), 16u) << "every chip once";
      for (std::size_t i = 0; i < cycle.size(); ++i) {
        const int from = cycle[i], to = cycle[(i + 1) % cycle.size()];
        EXPECT_THAT(t.neighbours(from), ::testing::Contains(to));
        EXPECT_TRUE(wires.insert(std::minmax(from, to)).second)
            << from << " - " << to << " is used twice";
      }
    }
    EXPECT_EQ(wires.size(), 32u);  // every wire of the torus
  }
  EXPECT_TRUE(Topology(load_system("trn1.2xlarge")).hamiltonian_cycles().empty());
  EXPECT_TRUE(Topology(load_system("trn3-gen1")).hamiltonian_cycles().empty());
}

TEST(Topology, TrnTwoUltraServersRingTheirEqualChips) {
  const Topology t(load_system("trn2u.48xlarge", 8));
  EXPECT_THAT(t.neighbours(5), ElementsAre(1, 4, 9, 6, 16 + 5, 48 + 5));
  EXPECT_THAT(names(t, between_chips(t, 0, 48)), ElementsAre("node0.chip0.neuron_link_down"));
  EXPECT_THAT(names(t, between_chips(t, 0, 16 + 1)),
              ElementsAre("node0.chip0.neuron_link_up", "node1.chip0.neuron_link_east"));
  EXPECT_THAT(names(t, t.route(0, 1)), ElementsAre("node0.chip0.core0.to_core1"));
  EXPECT_THAT(names(t, between_chips(t, 0, 64)),  // the next UltraServer
              ElementsAre("node0.chip0.host_out", "node0.nic0.efa_out", "node4.nic0.efa_in",
                          "node4.chip0.host_in"));
  const Topology pair(load_system("trn2u.48xlarge", 2));
  EXPECT_THAT(names(pair, between_chips(pair, 16, 0)),
              ElementsAre("node1.chip0.neuron_link_up"));  // one wire each way joins two
}

TEST(Topology, GenOneSwitchesPairsOfServersAndLinksThePairs) {
  const Topology t(load_system("trn3-gen1", 4));
  EXPECT_THAT(names(t, between_chips(t, 0, 5)),
              ElementsAre("node0.chip0.switch_out", "node0.chip5.switch_in"));
  EXPECT_THAT(names(t, between_chips(t, 0, 16 + 5)),
              ElementsAre("node0.chip0.rack_out", "node1.chip5.rack_in"));
  EXPECT_THAT(names(t, between_chips(t, 0, 32)), ElementsAre("node0.chip0.to_node2"));
  EXPECT_THAT(names(t, between_chips(t, 16 + 3, 48 + 3)), ElementsAre("node1.chip3.to_node3"));
  EXPECT_THAT(
      names(t, between_chips(t, 0, 48 + 5)),
      ElementsAre("node0.chip0.to_node3", "node3.chip0.switch_out", "node3.chip5.switch_in"));
  EXPECT_EQ(t.neighbours(0).size(), 15u + 16u + 2u);
}

TEST(Topology, GenTwoIsAllToAll) {
  const SystemConfig system = load_system("trn3-gen2", 36);
  const Topology t(system);
  EXPECT_EQ(t.chips(), 144);
  for (int chip = 0; chip < 144; ++chip) EXPECT_EQ(t.neighbours(chip).size(), 143u);
  EXPECT_THAT(names(t, between_chips(t, 0, 3)),
              ElementsAre("node0.chip0.switch_out", "node0.chip3.switch_in"));
  EXPECT_THAT(names(t, between_chips(t, 0, 143)),
              ElementsAre("node0.chip0.rack_out", "node35.chip3.rack_in"));
  EXPECT_EQ(between_chips(t, 0, 143).latency,
            (system.instance.rack_link.latency + system.instance.switch_latency).value);
}

TEST(Topology, CoresShareTheNicsOfTheirChips) {
  const Topology t(load_system("trn1.32xlarge", 2));
  EXPECT_EQ(t.nic_of(0), 0);
  EXPECT_EQ(t.nic_of(1), 0);  // eight NICs, sixteen chips
  EXPECT_EQ(t.nic_of(2), 1);
  EXPECT_EQ(t.nic_of(16), 8);
  EXPECT_THAT(names(t, between_chips(t, 3, 16 + 15)),
              ElementsAre("node0.chip3.host_out", "node0.nic1.efa_out", "node1.nic7.efa_in",
                          "node1.chip15.host_in"));
  const Topology trn2(load_system("trn2.48xlarge", 2));
  EXPECT_EQ(trn2.nic_of(17), 17);
}

TEST(Topology, AnOversubscribedNetworkIsALinkOfTheInstance) {
  SystemConfig system = load_system("trn2.48xlarge", 2);
  system.network.oversubscription = 4;
  const Topology t(system);
  const Route route = between_chips(t, 0, 16);
  EXPECT_THAT(names(t, route),
              ElementsAre("node0.chip0.host_out", "node0.nic0.efa_out", "node0.network_out",
                          "node1.network_in", "node1.nic0.efa_in", "node1.chip0.host_in"));
  EXPECT_DOUBLE_EQ(t.link(route.links[2]).bandwidth.value, 16 * 25e9 / 4);
  EXPECT_EQ(names(t, between_chips(t, 0, 1)).size(), 1u);
}

TEST(Topology, MessagesGoAroundLinksThatAreDown) {
  std::mt19937 random(7);
  for (const auto& [instance, nodes] :
       {std::pair("trn1.32xlarge", 1), std::pair("trn2.48xlarge", 2),
        std::pair("trn2u.48xlarge", 4)}) {
    SystemConfig system = load_system(instance, nodes);
    const Topology whole(system);
    const int chips = 16;
    for (int trial = 0; trial < 30; ++trial) {
      const int chip = static_cast<int>(random() % chips);
      const int other = whole.neighbours(chip)[random() % whole.neighbours(chip).size()];
      const auto links = whole.links_between(chip, other);
      ASSERT_FALSE(links.empty());
      system.slow.down = {links.begin(), links.end()};
      const Topology t(system);
      for (const LinkId id : links) EXPECT_TRUE(t.has_way_around(id));
      for (int from = 0; from < chips; ++from) {
        for (int to = 0; to < chips; ++to) {
          const Route route = between_chips(t, from, to), before = between_chips(whole, from, to);
          int at = from;
          for (const LinkId id : route.links) {
            EXPECT_FALSE(system.slow.down.contains(id));
            EXPECT_EQ(t.ends(id).from, at);
            at = t.ends(id).to;
          }
          EXPECT_EQ(at, to);
          EXPECT_GE(route.links.size(), before.links.size());
          if (std::ranges::none_of(before.links,
                                   [&](LinkId id) { return system.slow.down.contains(id); })) {
            EXPECT_EQ(route.links, before.links) << "who is not concerned keeps the way";
          }
        }
      }
    }
  }
}

TEST(Topology, AChipWhoseLinksAreAllDownHasNoWay) {
  SystemConfig system = load_system("trn1.32xlarge", 1);
  const Topology whole(system);
  for (const int other : whole.neighbours(0)) {
    for (const LinkId id : whole.links_between(0, other)) system.slow.down.insert(id);
  }
  const Topology t(system);
  for (const LinkId id : system.slow.down) EXPECT_FALSE(t.has_way_around(id));
  EXPECT_FALSE(t.has_way_around(t.host_link(0, true))) << "not of the torus";
  EXPECT_FALSE(t.has_way_around(whole.find_link("node0.chip0.core0.to_core1")));
}

TEST(Topology, TakesFewBytesPerChip) {
  for (const auto& [instance, nodes] :
       {std::pair("trn2.48xlarge", 16), std::pair("trn3-gen2", 36)}) {
    const SystemConfig system = load_system(instance, nodes);
    const Topology t(system);
    EXPECT_LT(t.bytes() / static_cast<std::size_t>(t.chips()), 4096u) << instance;
  }
}

}  // namespace
}  // namespace trellis::sim
