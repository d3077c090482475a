#include "device/driver/reports/rank_divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Ops = std::vector<std::string>;

/// A rank whose step runs the graphs `cuts` one after the other; each operation takes a tensor.
struct Rank {
  Rank(int number, const std::vector<Ops>& cuts) : rank(number) {
    for (const Ops& ops : cuts) {
      Graph graph;
      graph.name = "forward";
      for (const std::string& op : ops) {
        graph.values.push_back({0, {{4, 8}, {8, 1}, 0, DType::kFp32}});
        Node node;
        node.op = op;
        node.inputs = {static_cast<std::uint32_t>(graph.values.size() - 1)};
        node.scope.layer = "model.layers.7";
        graph.nodes.push_back(node);
      }
      GraphInstance instance;
      instance.graph = static_cast<std::uint32_t>(graphs.size());
      stream.instances.push_back(instance);
      graphs.push_back(std::move(graph));
    }
  }
  [[nodiscard]] RecordedRank recorded() const { return {rank, &stream, &graphs}; }

  int rank;
  StepStream stream;
  std::vector<Graph> graphs;
};

std::string divergence(const std::vector<Rank>& ranks, const std::vector<RankAxis>& axes = {}) {
  std::vector<RecordedRank> recorded;
  for (const Rank& rank : ranks) recorded.push_back(rank.recorded());
  return rank_divergence(recorded, axes);
}

const Ops kOps = {"mm", "add.Tensor", "gelu"};

TEST(RankDivergence, NamesTheFirstOperationTheLayerAndTheRanks) {
  EXPECT_THAT(divergence({{0, {kOps}}, {1, {kOps}}, {2, {{"mm", "select.int", "gelu"}}}}),
              AllOf(HasSubstr("rank 2 runs select.int(fp32[4, 8])"),
                    HasSubstr("rank 0 runs add.Tensor(fp32[4, 8])"),
                    HasSubstr("operation 2 of \"forward\" in model.layers.7")));
  EXPECT_THAT(divergence({{0, {kOps}}, {1, {{"mm", "add.Tensor"}}}}),
              AllOf(HasSubstr("rank 1 runs no further operation"), HasSubstr("operation 3")));
  EXPECT_THAT(divergence({{0, {kOps}}, {1, {{"mm"}}}, {2, {{"gelu"}}}}),
              HasSubstr("(2 of 3; the first:)"));
}

TEST(RankDivergence, CutsAndCopiesToTheHostAreNoDifference) {
  EXPECT_EQ(divergence({{0, {kOps}},
                        {1, {{"mm"}, {}, {"add.Tensor", "gelu"}}},
                        {2, {{"mm", "_copy_from", "add.Tensor", "gelu"}}}}),
            "");
}

TEST(RankDivergence, ShapesAreNotComparedTypesAndDimensionsAre) {
  const auto with_view = [](const TensorView& view) {
    Rank other(1, {kOps});
    other.graphs[0].values[1].view = view;
    return divergence({Rank(0, {kOps}), other});
  };
  EXPECT_EQ(with_view({{5, 8}, {8, 1}, 0, DType::kFp32}), "");
  EXPECT_THAT(with_view({{4, 8}, {8, 1}, 0, DType::kBf16}), HasSubstr("operation 2"));
  EXPECT_THAT(with_view({{32}, {1}, 0, DType::kFp32}), HasSubstr("operation 2"));
}

TEST(RankDivergence, StagesAreProgramsOfTheirOwn) {
  const std::vector<RankAxis> axes = {{"PP", 2, 2}, {"TP", 1, 2}};
  const std::vector<Rank> pipeline = {{0, {kOps}}, {1, {kOps}}, {2, {{"mm"}}}, {3, {{"mm"}}}};
  EXPECT_EQ(divergence(pipeline, axes), "");
  EXPECT_EQ(divergence(pipeline, {{"DP", 2, 2}, {"CP", 2, 2}}), "");
  EXPECT_NE(divergence(pipeline), "");
  EXPECT_THAT(divergence({{0, {kOps}}, {1, {kOps}}, {2, {{"mm"}}}, {3, {{"add.Tensor"}}}}, axes),
              AllOf(HasSubstr("rank 3 (PP 1, TP 1)"), HasSubstr("rank 2 (PP 1, TP 0)"),
                    Not(HasSubstr("rank 0"))));
}

TEST(RankDivergence, RanksThatSendMayBeStagesOfAProgramWithoutAxes) {
  Rank sender(0, {kOps});
  CommRequest send;
  send.kind = sim::CollectiveKind::kSendRecv;
  sender.stream.comms.push_back(send);
  EXPECT_EQ(divergence({sender, {1, {{"mm"}}}}), "");
}

}  // namespace
}  // namespace trellis::device
