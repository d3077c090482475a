#include "sim/describe/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "sim/cluster/topology.h"
#include "sim/config/load_system.h"
#include "sim/describe/drawing.h"

namespace trellis::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Describe, ListsEveryParameterWithItsSource) {
  const SystemConfig s = load_system("trn2.48xlarge", 2);
  const nlohmann::json json = describe(s);
  const std::string text = describe_text(s);
  EXPECT_EQ(json["parameters"].size(), s.parameters.size());
  EXPECT_GT(s.parameters.size(), 50u);
  for (const auto& parameter : json["parameters"]) {
    EXPECT_FALSE(parameter["source"].get<std::string>().empty()) << parameter;
    EXPECT_THAT(text, HasSubstr(parameter["key"].get<std::string>()));
  }
  EXPECT_EQ(s.worst_evidence(), Evidence::kEstimated);
}

TEST(Describe, SaysWhereTheDocumentsDisagree) {
  for (const auto& instance : instance_names()) {
    const SystemConfig s = load_system(instance);
    ASSERT_FALSE(s.contradictions.empty()) << instance;
    EXPECT_EQ(describe(s)["contradictions"].size(), s.contradictions.size());
    for (const Contradiction& c : s.contradictions)
      EXPECT_THAT(describe_text(s), HasSubstr(c.item + ": " + c.first));
  }
  EXPECT_THAT(describe_text(load_system("trn2u.48xlarge", 4)),
              HasSubstr("3,200 Gbps (trn2-arch.rst)"));
}

TEST(Describe, CountsLinksNeighboursAndTheMemoryOfTheModel) {
  const nlohmann::json fabric = describe(load_system("trn2.48xlarge"))["fabric"];
  EXPECT_EQ(fabric["chips"][5]["neighbours"], nlohmann::json({1, 4, 9, 6}));
  EXPECT_EQ(fabric["chips"][5]["numa_node"], 0);
  EXPECT_EQ(fabric["chips"][12]["numa_node"], 1);
  EXPECT_GT(fabric["model_bytes_per_chip"], 0);
  for (const auto& link : fabric["links"]) {
    EXPECT_GT(link["gb_per_s"], 0);
    EXPECT_EQ(link["count"], link["kind"] == "on_chip"       ? 16 * 12
                             : link["kind"] == "neuron_link" ? 64
                                                             : 16);
  }
  EXPECT_FALSE(describe(load_system("trn3-gen1"))["fabric"]["chips"][0].contains(
      "numa_node"));  // not published
}

std::size_t count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<std::size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

TEST(Drawing, ShowsEveryChipOnceAndEveryWireOfTheTorus) {
  const std::string text = drawing(load_system("trn1.32xlarge"));
  EXPECT_EQ(count(text, "\"chip\\d+\" \\[label"), 16u);
  // 32 wires: 24 lines inside the grid, eight that wrap around with a stub at each end.
  EXPECT_EQ(count(text, "\"chip\\d+\" -- \"chip\\d+\"\n"), 24u);
  EXPECT_EQ(count(text, "\"chip\\d+\" -- \"chip\\d+to\\d+\""), 16u);
  EXPECT_EQ(count(text, "NUMA 0"), 8u);
  EXPECT_THAT(text, Not(HasSubstr("EFA")));
}

TEST(Drawing, BundlesTheLinksBetweenInstances) {
  const std::string ultra = drawing(load_system("trn2u.48xlarge", 4));
  EXPECT_EQ(count(ultra, "16 x "), 4u);  // the ring of four
  const std::string gen1 = drawing(load_system("trn3-gen1", 4));
  EXPECT_EQ(count(gen1, "\"node\\d\" -- \"rack\\d\""), 4u);
  EXPECT_EQ(count(gen1, "\"chip\\d+\" -- \"switch\\d\""), 64u);
  EXPECT_EQ(count(gen1, "label=\"16 x "),
            4u + 4u);  // to the pairs' switches; direct links 0-2, 0-3, 1-2, 1-3
  const std::string gen2 = drawing(load_system("trn3-gen2", 36));
  EXPECT_EQ(count(gen2, "\"chip\\d+\" \\[label"), 144u);
  EXPECT_EQ(count(gen2, "\"node\\d+\" -- \"rack0\""), 36u);
  EXPECT_EQ(count(drawing(load_system("trn2.48xlarge", 2)), "\"node\\d\" -- \"network\""), 2u);
}

TEST(Drawing, IsTheSameEachTime) {
  EXPECT_EQ(drawing(load_system("trn3-gen1", 4)), drawing(load_system("trn3-gen1", 4)));
}

}  // namespace
}  // namespace trellis::sim
