#include "sim/describe/totals.h"
#include "sim/config/load_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace trellis::sim {
namespace {

/// A printed figure: half of its last digit, and what four rounded instances add up to.
struct Printed {
  const char* key;
  double value;
  double digit;  ///< the value of its last printed digit; 0: exact
};
struct Table {
  const char* instance;
  int nodes;
  std::vector<Printed> figures;
  std::vector<const char*> absent;
};

const Total* find(const std::vector<Total>& all, const std::string& key) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&key](const Total& t) { return t.key == key; });
  return found == all.end() ? nullptr : &*found;
}

double tolerance(const Printed& printed, int nodes) {
  return printed.digit * 0.5 * nodes + 1e-6 * printed.value;
}

class Totals : public ::testing::TestWithParam<Table> {};

TEST_P(Totals, AreThoseOfTheInstanceTables) {
  const Table& table = GetParam();
  const auto all = totals(load_system(table.instance, table.nodes));
  for (const Printed& printed : table.figures) {
    const Total* total = find(all, printed.key);
    ASSERT_NE(total, nullptr) << printed.key;
    EXPECT_NEAR(total->cluster, printed.value, tolerance(printed, table.nodes)) << printed.key;
  }
  for (const char* key : table.absent)
    EXPECT_EQ(find(all, key), nullptr) << key << " is not published";
}

// SDK trn1-arch.rst and trn2-arch.rst (one instance), trn2-arch.rst and trn3-arch.rst
// (UltraServers). The UltraServer rows of Trn2 are four times the rounded instance rows; its EFA
// row (3,200) contradicts the others and is as a note in the file.
INSTANTIATE_TEST_SUITE_P(Published, Totals,
                         ::testing::Values(Table{"trn1.2xlarge",
                                                 1,
                                                 {{"chips", 1, 0},
                                                  {"physical_cores", 2, 0},
                                                  {"logical_cores", 2, 0},
                                                  {"vcpus", 8, 0},
                                                  {"host_memory", 32, 0},
                                                  {"hbm", 32, 0},
                                                  {"hbm_bandwidth", 0.82, 0},
                                                  {"peak_fp8", 0.19, 0},
                                                  {"peak_bf16", 0.19, 0},
                                                  {"peak_fp32", 0.0475, 0},
                                                  {"efa", 25, 0}},
                                                 {"peak_sparse", "peak_mx", "neuron_link"}},
                                           Table{"trn1.32xlarge",
                                                 1,
                                                 {{"chips", 16, 0},
                                                  {"physical_cores", 32, 0},
                                                  {"logical_cores", 32, 0},
                                                  {"vcpus", 128, 0},
                                                  {"host_memory", 512, 0},
                                                  {"hbm", 512, 0},
                                                  {"hbm_bandwidth", 13.12, 0},
                                                  {"peak_fp8", 3.04, 0},
                                                  {"peak_bf16", 3.04, 0},
                                                  {"peak_fp32", 0.76, 0},
                                                  {"efa", 800, 0}},
                                                 {"peak_sparse", "peak_mx"}},
                                           Table{"trn1n.32xlarge",
                                                 1,
                                                 {{"chips", 16, 0},
                                                  {"physical_cores", 32, 0},
                                                  {"vcpus", 128, 0},
                                                  {"host_memory", 512, 0},
                                                  {"hbm", 512, 0},
                                                  {"hbm_bandwidth", 13.12, 0},
                                                  {"peak_bf16", 3.04, 0},
                                                  {"peak_fp32", 0.76, 0},
                                                  {"efa", 1600, 0}},
                                                 {"peak_sparse", "peak_mx"}},
                                           Table{"trn2.3xlarge",
                                                 1,
                                                 {{"chips", 1, 0},
                                                  {"physical_cores", 8, 0},
                                                  {"logical_cores", 4, 0},
                                                  {"hbm", 96, 0},
                                                  {"hbm_bandwidth", 2.9, 0},
                                                  {"peak_fp8", 1.299, 0},
                                                  {"peak_bf16", 0.667, 0},
                                                  {"peak_fp32", 0.181, 0},
                                                  {"peak_sparse", 2.56, 0.01}},
                                                 {"peak_mx", "neuron_link"}},
                                           Table{"trn2.48xlarge",
                                                 1,
                                                 {{"chips", 16, 0},
                                                  {"physical_cores", 128, 0},
                                                  {"logical_cores", 64, 0},
                                                  {"vcpus", 192, 0},
                                                  {"host_memory", 2048, 0},
                                                  {"hbm", 1536, 0},
                                                  {"hbm_bandwidth", 46.4, 0},
                                                  {"peak_fp8", 20.8, 0.1},
                                                  {"peak_bf16", 10.7, 0.1},
                                                  {"peak_fp32", 2.9, 0.1},
                                                  {"peak_sparse", 41, 1},
                                                  {"efa", 3200, 0}},
                                                 {"peak_mx"}},
                                           Table{"trn2u.48xlarge",
                                                 4,
                                                 {{"chips", 64, 0},
                                                  {"vcpus", 768, 0},
                                                  {"host_memory", 8192, 0},
                                                  {"hbm", 6144, 0},
                                                  {"hbm_bandwidth", 185.6, 0},
                                                  {"peak_fp8", 83.2, 0.1},
                                                  {"peak_bf16", 42.8, 0.1},
                                                  {"peak_fp32", 11.6, 0.1},
                                                  {"peak_sparse", 164, 1},
                                                  {"efa", 4 * 3200, 0}},
                                                 {"peak_mx"}},
                                           Table{"trn3-gen1",
                                                 4,
                                                 {{"chips", 64, 0},
                                                  {"vcpus", 768, 0},
                                                  {"host_memory", 8192, 0},
                                                  {"hbm", 9216, 0},
                                                  {"hbm_bandwidth", 313.6, 0},
                                                  {"peak_mx", 161.088, 0},
                                                  {"peak_bf16", 42.944, 0},
                                                  {"peak_fp32", 11.712, 0},
                                                  {"efa", 12800, 0}},
                                                 {"peak_fp8"}},
                                           Table{"trn3-gen2",
                                                 36,
                                                 {{"chips", 144, 0},
                                                  {"vcpus", 2304, 0},
                                                  {"host_memory", 27648, 0},
                                                  {"hbm", 20736, 0},
                                                  {"hbm_bandwidth", 705.6, 0},
                                                  {"peak_mx", 362.448, 0},
                                                  {"peak_bf16", 96.624, 0},
                                                  {"peak_fp32", 26.352, 0},
                                                  {"efa", 28800, 0}},
                                                 {"peak_fp8"}}),
                         [](const auto& each) {
                           std::string name = each.param.instance;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '.' || c == '-'; }, '_');
                           return name;
                         });

/// The chip table: SDK trainium.rst, trainium2.rst, trainium3.rst; DMA engines of the NKI guides.
TEST(TotalsPerChip, AreThoseOfTheChipTable) {
  const std::map<std::string, std::map<std::string, double>> printed = {
      {"trn1.32xlarge",
       {{"physical_cores", 2},
        {"logical_cores", 2},
        {"peak_fp8", 0.19},
        {"peak_bf16", 0.19},
        {"peak_fp32", 0.0475},
        {"hbm_stacks", 2},
        {"hbm", 32},
        {"hbm_bandwidth", 0.82},
        {"sbuf", 48},
        {"dma_bandwidth", 1},
        {"dma_engines", 32},
        {"cc_cores", 6}}},
      {"trn2.48xlarge",
       {{"physical_cores", 8},
        {"logical_cores", 4},
        {"peak_fp8", 1.299},
        {"peak_bf16", 0.667},
        {"peak_fp32", 0.181},
        {"peak_sparse", 2.563},
        {"hbm_stacks", 4},
        {"hbm", 96},
        {"hbm_bandwidth", 2.9},
        {"sbuf", 224},
        {"dma_bandwidth", 3.5},
        {"dma_engines", 128},
        {"cc_cores", 16}}},
      {"trn3-gen2",
       {{"physical_cores", 8},
        {"logical_cores", 4},
        {"peak_mx", 2.517},
        {"peak_bf16", 0.671},
        {"peak_fp32", 0.183},
        {"peak_sparse", 2.517},
        {"hbm_stacks", 4},
        {"hbm", 144},
        {"hbm_bandwidth", 4.9},
        {"sbuf", 256},
        {"dma_bandwidth", 4.9},
        {"dma_engines", 128}}},
  };
  for (const auto& [instance, figures] : printed) {
    const auto all = totals(load_system(instance));
    for (const auto& [key, value] : figures)
      EXPECT_NEAR(find(all, key)->chip, value, 1e-9 * value) << instance << " " << key;
  }
}

/// Two logical core sizes cut the same chip.
TEST(TotalsPerChip, DoNotDependOnTheLogicalCoreSize) {
  LoadOptions physical;
  physical.logical_core_size = 1;
  const auto one = totals(load_system("trn2.48xlarge", physical));
  for (const Total& two : totals(load_system("trn2.48xlarge"))) {
    if (two.key == "logical_cores" || two.key == "neuron_link")
      continue;  // neuron_link is a figure of the chip
    EXPECT_DOUBLE_EQ(find(one, two.key)->instance, two.instance) << two.key;
  }
}

/// NeuronLink bandwidth is printed per chip.
TEST(TotalsPerChip, NeuronLinkIsThatOfTheTables) {
  const auto printed = [](const char* instance) {
    return find(totals(load_system(instance)), "neuron_link")->chip;
  };
  EXPECT_DOUBLE_EQ(printed("trn1.32xlarge"), 384);
  EXPECT_DOUBLE_EQ(printed("trn1n.32xlarge"), 768);
  EXPECT_DOUBLE_EQ(printed("trn2.48xlarge"), 1024);
  EXPECT_DOUBLE_EQ(printed("trn2u.48xlarge"), 1024 + 256);
  EXPECT_DOUBLE_EQ(printed("trn3-gen1"), 2048 * 1.073741824);
  EXPECT_DOUBLE_EQ(printed("trn3-gen2"), 2048 * 1.073741824);
}

}  // namespace
}  // namespace trellis::sim
