#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/compiler/compile.h"
#include "device/driver/timing/program_timer.h"
#include "sim/config/load_system.h"
#include "tests/device/driver/layered_graph.h"

/// Equal layers cost one compilation and one timing, whatever their number.
namespace trellis::device {
namespace {

using testing::fresh;
using testing::GraphMaker;
using testing::layered_graph;

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
  const TimedProgram& few = timer.time(layered_graph(3));
  const TimedProgram& many = timer.time(layered_graph(30));
  EXPECT_EQ(distinct(few), distinct(many));
  EXPECT_EQ(distinct(few).size(), 3u) << "embedding, product (the head is another one), update";
  const TimedProgram& one = timer.time(layered_graph(1));
  EXPECT_EQ((busy(many) - busy(few)) * 2, (busy(few) - busy(one)) * 27)
      << "layers cost the same, each";
}

/// gradient[at + distance…] += a · b and gradient[at…] += a · b, in one buffer of all layers.
void accumulate(GraphMaker& make, std::uint32_t buffer, std::int64_t at, std::int64_t distance,
                const std::string& layer) {
  constexpr std::int64_t kWidth = 320;
  for (const std::int64_t offset : {at + distance, at}) {
    TensorView view = fresh({kWidth, kWidth});
    view.offset = offset;
    const auto gradient = make.value(buffer, view);
    const auto product = make.tensor(fresh({kWidth, kWidth}));
    const auto a = make.tensor(fresh({kWidth, kWidth}), BufferRole::kExternal);
    make.op("mm", {a, a}, {product}).scope = {"backward", -1, layer};
    make.op("add.Tensor", {gradient, product}, {gradient}).scope = {"backward", -1, layer};
  }
}

TEST_F(ProgramTimerTest, WhereInABufferALayerWorksChangesNothing) {
  constexpr std::int64_t kDistance = 1 << 20, kLast = 9'000'001;
  const auto alone = [](std::int64_t at, std::int64_t distance) {
    GraphMaker make;
    make.graph.name = "backward";
    make.graph.buffers.push_back({BufferRole::kExternal, 4 * (kLast + (std::int64_t{1} << 21))});
    accumulate(make, 0, at, distance, "model.layers.0");
    return make.graph;
  };
  GraphMaker make;
  make.graph.name = "backward";
  make.graph.buffers.push_back({BufferRole::kExternal, 4 * (kLast + (std::int64_t{1} << 21))});
  const std::vector<std::int64_t> places = {0, 64, 4099, kLast};
  for (std::size_t l = 0; l < places.size(); ++l)
    accumulate(make, 0, places[l], kDistance, "model.layers." + std::to_string(l));
  accumulate(make, 0, 0, 2 * kDistance, "model.layers.9");
  {
    ProgramTimer timer(system);
    EXPECT_EQ(distinct(timer.time(make.graph)).size(), 2u) << "two distances";
  }
  // The compiler itself, with the places as they are.
  sim::Simulator machine(system);
  const auto segments = [&](std::int64_t at) {
    const CompiledGraph compiled = compile(alone(at, kDistance), system.chip.core);
    std::vector<std::int64_t> times;
    for (const sim::SegmentTiming& s : machine.time_program(compiled.program).segments)
      times.insert(times.end(), {s.duration.value, s.tensor_active.value, s.compute_only.value,
                                 s.dma_only.value});
    return times;
  };
  for (const std::int64_t at : places) EXPECT_EQ(segments(at), segments(0)) << at;
}

TEST_F(ProgramTimerTest, EqualGraphsAreOneProgramWhateverTheirLayersAreCalled) {
  ProgramTimer timer(system);
  Graph renamed = layered_graph(3);
  for (Node& node : renamed.nodes) {
    if (node.scope.layer == "model.layers.1") node.scope.layer = "model.layers.7";
  }
  EXPECT_EQ(&timer.time(layered_graph(3)), &timer.time(renamed));
}

TEST_F(ProgramTimerTest, ProgramsBeyondTheMostAreForgottenExceptForThoseInUse) {
  ProgramTimer timer(system, 1, std::nullopt, /*most_programs=*/2);
  const std::shared_ptr<const TimedProgram> used = timer.share(layered_graph(3), Unknown::kRefuse);
  std::weak_ptr<const TimedProgram> unused = timer.share(layered_graph(0), Unknown::kRefuse);
  const std::set<const TimedPiece*> pieces = distinct(*used);
  const Picoseconds before = busy(*used);
  static_cast<void>(timer.time(layered_graph(2)));
  EXPECT_TRUE(unused.expired());
  EXPECT_EQ(busy(*used), before);
  const std::shared_ptr<const TimedProgram> again = timer.share(layered_graph(3), Unknown::kRefuse);
  EXPECT_NE(again, used);
  EXPECT_EQ(distinct(*again), pieces) << "its pieces were in use";
}

TEST_F(ProgramTimerTest, StepsAreTheGraphsNodesInOrder) {
  system.chip.core.compiler.overlapped_tp = true;
  ProgramTimer timer(system);
  const Graph graph = layered_graph(2);
  std::vector<std::uint32_t> slots;
  std::uint32_t last = 0;
  for (const TimedProgram::Step& step : timer.time(graph).steps) {
    EXPECT_GE(step.node, last);
    last = step.node;
    if (step.piece == nullptr) {
      slots.push_back(step.comm.slot);
      EXPECT_EQ(graph.nodes[step.node].kind == Node::Kind::kCommStart,
                step.comm.action == sim::isa::CommAction::kStart);
      continue;
    }
    for (const sim::isa::Kernel& kernel : step.piece->kernels)
      EXPECT_EQ(graph.nodes[step.node + kernel.node].kind, Node::Kind::kOp);
  }
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{0, 0, 1, 1}));
}

TEST_F(ProgramTimerTest, CollectivesInsideALayerAreWaitedForWhereTheyStart) {
  ASSERT_FALSE(system.chip.core.compiler.overlapped_tp);
  ProgramTimer timer(system);
  Graph graph = layered_graph(2);
  const auto waits = [&] {
    int at_once = 0, all = 0;
    const std::vector<TimedProgram::Step>& steps = timer.time(graph).steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].piece != nullptr || steps[i].comm.action != sim::isa::CommAction::kWait)
        continue;
      ++all;
      at_once += i > 0 && steps[i - 1].piece == nullptr &&
                 steps[i - 1].comm.slot == steps[i].comm.slot && steps[i - 1].node == steps[i].node;
    }
    EXPECT_EQ(all, 2) << "each communication once";
    return at_once;
  };
  EXPECT_EQ(waits(), 2);
  for (CommNode& comm : graph.comms) comm.axis = "dp";
  EXPECT_EQ(waits(), 0) << "gradients move concurrently with the computation";
}

TEST_F(ProgramTimerTest, ThreadsChangeNothing) {
  std::vector<std::vector<sim::SegmentTiming>> timings;
  for (const int threads : {1, 4}) {
    ProgramTimer timer(system, threads);
    std::vector<sim::SegmentTiming>& segments = timings.emplace_back();
    for (const TimedProgram::Step& step : timer.time(layered_graph(4)).steps) {
      if (step.piece != nullptr) segments.push_back(step.piece->segment());
    }
  }
  EXPECT_EQ(timings[0], timings[1]);
}

TEST_F(ProgramTimerTest, WhatIsRefusedIsNamedAndMayBeEstimated) {
  for (const int threads : {1, 4}) {
    ProgramTimer timer(system, threads);
    const Graph graph = layered_graph(4, "linalg_svd");
    try {
      (void)timer.time(graph);
      FAIL() << "must name the operator";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("linalg_svd"),
                                                 ::testing::HasSubstr("model.layers.0")));
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
