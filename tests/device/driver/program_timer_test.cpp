#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/driver/program_timer.h"
#include "tests/device/compiler/graph_samples.h"

/// What equal layers cost: one compilation and one timing, whatever their number.
namespace trellis::device {
namespace {

using testing::fresh;
using testing::GraphMaker;

/// Layers of a product, an all-reduce and an update, between an embedding and a head.
Graph model(int layers, std::string_view op = "relu") {
  constexpr std::int64_t kWidth = 256;
  GraphMaker make;
  make.graph.name = "forward";
  const auto tensor = [&](BufferRole role) { return make.tensor(fresh({kWidth, kWidth}, DType::kBf16), role); };
  auto x = tensor(BufferRole::kExternal);
  const auto embedded = tensor(BufferRole::kTemporary);
  make.op("mul.Tensor", {x, x}, {embedded}).scope = {"forward", -1, "model.embed_tokens"};
  x = embedded;
  for (int l = 0; l < layers; ++l) {
    const Scope scope{"forward", -1, "model.layers." + std::to_string(l)};
    const auto w = tensor(BufferRole::kExternal), product = tensor(BufferRole::kTemporary), sum = tensor(BufferRole::kTemporary);
    make.op("mm", {x, w}, {product}).scope = scope;
    make.graph.comms.push_back({sim::CollectiveKind::kAllReduce, "tp", 4, 1, 0, false, kWidth * kWidth, DType::kBf16});
    for (const auto kind : {Node::Kind::kCommStart, Node::Kind::kCommWait}) {
      Node& node = make.op("all_reduce", {product}, {product});
      node.kind = kind;
      node.comm = static_cast<std::uint32_t>(l);
      node.scope = scope;
    }
    const auto activated = tensor(BufferRole::kTemporary);
    make.op(std::string(op), {product}, {activated}).scope = scope;
    make.op("add.Tensor", {x, activated}, {sum}).scope = scope;
    x = sum;
  }
  make.op("mm", {x, tensor(BufferRole::kExternal)}, {tensor(BufferRole::kOutput)}).scope = {"forward", -1, "lm_head"};
  return make.graph;
}

std::set<const TimedPiece*> distinct(const TimedProgram& program) {
  std::set<const TimedPiece*> pieces;
  for (const TimedProgram::Step& step : program.steps) pieces.insert(step.piece);
  pieces.erase(nullptr);
  return pieces;
}

Picoseconds busy(const TimedProgram& program) {
  Picoseconds sum;
  for (const TimedProgram::Step& step : program.steps) {
    if (step.piece != nullptr) sum += step.piece->segment().duration;
  }
  return sum;
}

class ProgramTimerTest : public ::testing::Test {
 protected:
  sim::SystemConfig system = sim::load_system("trn2.48xlarge");
};

TEST_F(ProgramTimerTest, EqualLayersAreTimedOnceHoweverManyThereAre) {
  ProgramTimer timer(system);
  const TimedProgram& few = timer.time(model(3));
  const TimedProgram& many = timer.time(model(30));
  EXPECT_EQ(distinct(few), distinct(many));
  EXPECT_EQ(distinct(few).size(), 3u) << "embedding, product (the head is another one), update";
  const TimedProgram& none = timer.time(model(0));
  const TimedProgram& one = timer.time(model(1));
  EXPECT_EQ(busy(many) - busy(none), (busy(one) - busy(none)) * 30) << "layers cost the same, each";
}

TEST_F(ProgramTimerTest, EqualGraphsAreOneProgramWhateverTheirLayersAreCalled) {
  ProgramTimer timer(system);
  Graph renamed = model(3);
  for (Node& node : renamed.nodes) {
    if (node.scope.layer == "model.layers.1") node.scope.layer = "model.layers.7";
  }
  EXPECT_EQ(&timer.time(model(3)), &timer.time(renamed));
}

TEST_F(ProgramTimerTest, StepsAreTheGraphsNodesInOrder) {
  ProgramTimer timer(system);
  const Graph graph = model(2);
  std::vector<std::uint32_t> slots;
  std::uint32_t last = 0;
  for (const TimedProgram::Step& step : timer.time(graph).steps) {
    EXPECT_GE(step.node, last);
    last = step.node;
    if (step.piece == nullptr) {
      slots.push_back(step.comm.slot);
      EXPECT_EQ(graph.nodes[step.node].kind == Node::Kind::kCommStart, step.comm.action == sim::isa::CommAction::kStart);
      continue;
    }
    for (const sim::isa::Kernel& kernel : step.piece->kernels) EXPECT_EQ(graph.nodes[step.node + kernel.node].kind, Node::Kind::kOp);
  }
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{0, 0, 1, 1}));
}

TEST_F(ProgramTimerTest, ThreadsChangeNothing) {
  std::vector<std::vector<sim::SegmentTiming>> timings;
  for (const int threads : {1, 4}) {
    ProgramTimer timer(system, threads);
    std::vector<sim::SegmentTiming>& segments = timings.emplace_back();
    for (const TimedProgram::Step& step : timer.time(model(4)).steps) {
      if (step.piece != nullptr) segments.push_back(step.piece->segment());
    }
  }
  EXPECT_EQ(timings[0], timings[1]);
}

TEST_F(ProgramTimerTest, WhatIsRefusedIsNamedAndMayBeEstimated) {
  for (const int threads : {1, 4}) {
    ProgramTimer timer(system, threads);
    const Graph graph = model(4, "linalg_svd");
    try {
      (void)timer.time(graph);
      FAIL() << "must name the operator";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("linalg_svd"), ::testing::HasSubstr("model.layers.0")));
    }
    const TimedProgram& estimated = timer.time_or_estimate(graph);
    EXPECT_EQ(estimated.estimated, std::vector<std::string>{"linalg_svd"});
    EXPECT_EQ(estimated.coverage.estimated_ops, 4);
    EXPECT_GT(busy(estimated).value, 0);
    EXPECT_THROW((void)timer.time(graph), Error) << "an estimate is no exact program";
  }
}

}  // namespace
}  // namespace trellis::device
