#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/session.h"

namespace trellis::device {
namespace {

using Impl = RankRecorder::Impl;

/// A recorder with a helper that records `aten::add` of two buffers into a new one.
class RankRecorderTest : public ::testing::Test {
 protected:
  RankRecorder recorder{1, 1, Bytes(1 << 20), true};

  std::uint64_t add(std::uint64_t a, std::uint64_t b) {
    const std::uint64_t out = recorder.new_buffer();
    const auto view = recorder.interned().view({{4}, {1}, 0, DType::kFp32});
    const std::array<Operand, 2> in{Operand{a, view}, Operand{b, view}};
    const std::array<Operand, 1> result{Operand{out, view}};
    const std::array<std::int64_t, 3> bytes{16, 16, 16};
    recorder.record("aten::add.Tensor", "alpha=1", in, result, bytes);
    return out;
  }
  const StepStream& step() { return recorder.impl().step; }
  const Graph& graph(std::size_t instance) {
    return recorder.impl().graphs[step().instances[instance].graph];
  }
};

TEST_F(RankRecorderTest, PhasesAndMicrobatchesCutGraphs) {
  const std::uint64_t x = recorder.new_buffer();
  recorder.push_scope("phase=forward");
  for (int mb = 0; mb < 2; ++mb) {
    const std::string scope = "microbatch=" + std::to_string(mb);
    recorder.push_scope(scope);
    add(x, x);
    recorder.pop_scope(scope);
  }
  recorder.pop_scope("phase=forward");
  ASSERT_EQ(step().instances.size(), 2u);
  EXPECT_EQ(step().instances[0].microbatch, 0);
  EXPECT_EQ(step().instances[1].microbatch, 1);
  EXPECT_EQ(step().instances[0].graph, step().instances[1].graph)
      << "equal micro-batches share one graph";
  EXPECT_EQ(graph(0).name, "forward");
}

TEST_F(RankRecorderTest, RolesFollowLifetimes) {
  const std::uint64_t x = recorder.new_buffer();
  recorder.cut("start");
  recorder.push_scope("phase=forward");
  const std::uint64_t temporary = add(x, x);
  const std::uint64_t kept = add(temporary, x);
  (void)kept;
  recorder.release_buffer(temporary);
  recorder.pop_scope("phase=forward");
  const Graph& g = graph(0);
  ASSERT_EQ(g.buffers.size(), 3u);
  EXPECT_EQ(g.buffers[0].role, BufferRole::kExternal);
  EXPECT_EQ(g.buffers[1].role, BufferRole::kTemporary);
  EXPECT_EQ(g.buffers[2].role, BufferRole::kOutput);
  EXPECT_EQ(g.nodes[0].op, "add.Tensor");
}

TEST_F(RankRecorderTest, BackwardIsChargedToTheLayerOfItsForward) {
  const std::uint64_t x = recorder.new_buffer();
  recorder.push_scope("phase=forward");
  recorder.push_scope("layer=model.layers.0");
  recorder.note_sequence(10);
  recorder.pop_scope("layer=model.layers.0");
  recorder.note_sequence(20);
  recorder.push_scope("layer=model.layers.1");
  recorder.note_sequence(20);
  recorder.pop_scope("layer=model.layers.1");
  recorder.note_sequence(30);
  recorder.pop_scope("phase=forward");
  recorder.push_scope("phase=backward");
  for (std::int64_t sequence : {25, 19, 10, 31, 5}) {
    recorder.set_backward_sequence(sequence);
    add(x, x);
    recorder.set_backward_sequence(-1);
  }
  add(x, x);
  recorder.pop_scope("phase=backward");
  const Graph& g = graph(0);
  std::vector<std::string> layers;
  for (const Node& node : g.nodes) layers.push_back(node.scope.layer);
  EXPECT_EQ(layers, (std::vector<std::string>{"model.layers.1", "model.layers.0", "model.layers.0",
                                              "", "", ""}));
}

TEST_F(RankRecorderTest, CommunicationsBecomePatterns) {
  CommRequest request{sim::CollectiveKind::kAllReduce, "dp", {1, 3, 5}, 7, 100, DType::kBf16};
  recorder.push_scope("phase=backward");
  const std::int64_t handle = recorder.comm_start(request, {}, {}, {});
  recorder.comm_wait(handle);
  recorder.pop_scope("phase=backward");
  const Graph& g = graph(0);
  ASSERT_EQ(g.comms.size(), 1u);
  EXPECT_EQ(g.comms[0].group_size, 3);
  EXPECT_EQ(g.comms[0].group_stride, 2);
  EXPECT_EQ(g.nodes[0].kind, Node::Kind::kCommStart);
  EXPECT_EQ(g.nodes[1].kind, Node::Kind::kCommWait);
  EXPECT_EQ(g.nodes[1].comm, 0u);
  EXPECT_EQ(step().instances[0].comms, (std::vector<std::uint32_t>{0}));
}

/// Each of `graphs` is recorded in both layers.
void forward_of_two_layers(RankRecorder& recorder,
                           const std::vector<std::function<void()>>& graphs) {
  recorder.push_scope("phase=forward");
  for (const char* layer : {"layer=model.layers.0", "layer=model.layers.1"}) {
    recorder.push_scope(layer);
    for (const auto& graph : graphs) {
      graph();
      recorder.cut("test");
    }
    recorder.pop_scope(layer);
  }
  recorder.pop_scope("phase=forward");
}

/// Differences of an open graph from an equal one; each must make a separate graph.
TEST_F(RankRecorderTest, OnlyEqualGraphsAreKnownAgain) {
  const std::uint64_t x = recorder.new_buffer(), y = recorder.new_buffer();
  const auto view = [&](std::int64_t offset) {
    return recorder.interned().view({{4}, {1}, offset, DType::kFp32});
  };
  const auto record = [&](std::uint64_t a, std::uint64_t b, std::string_view op,
                          std::string_view scalars, std::int64_t bytes, std::int64_t offset,
                          bool keep) {
    const std::uint64_t out = recorder.new_buffer();
    const std::array<Operand, 2> in{Operand{a, view(offset)}, Operand{b, view(0)}};
    const std::array<Operand, 1> result{Operand{out, view(0)}};
    const std::array<std::int64_t, 3> sizes{bytes, 16, 16};
    recorder.record(op, scalars, in, result, sizes);
    if (!keep) recorder.release_buffer(out);
  };
  const auto comm = [&](const std::string& axis, std::vector<int> ranks, std::int64_t elements,
                        std::uint64_t sequence) {
    recorder.comm_wait(recorder.comm_start(
        {sim::CollectiveKind::kAllReduce, axis, std::move(ranks), sequence, elements, DType::kBf16},
        {}, {}, {}));
  };
  const std::vector<std::function<void()>> variants{
      [&] { record(x, y, "aten::add.Tensor", "alpha=1", 16, 0, true); },
      [&] { record(x, x, "aten::add.Tensor", "alpha=1", 16, 0, true); },
      [&] { record(x, y, "aten::sub.Tensor", "alpha=1", 16, 0, true); },
      [&] { record(x, y, "aten::add.Tensor", "alpha=2", 16, 0, true); },
      [&] { record(x, y, "aten::add.Tensor", "alpha=1", 64, 0, true); },
      [&] { record(x, y, "aten::add.Tensor", "alpha=1", 64, 4, true); },
      [&] { record(x, y, "aten::add.Tensor", "alpha=1", 16, 0, false); },
      [&] { record(x, recorder.new_buffer(), "aten::add.Tensor", "alpha=1", 16, 0, true); },
      [&] {
        record(x, y, "aten::add.Tensor", "alpha=1", 16, 0, true),
            record(x, y, "aten::add.Tensor", "alpha=1", 16, 0, true);
      },
      [&] { comm("dp", {0, 1}, 8, 0); },
      [&] { comm("tp", {0, 1}, 8, 0); },
      [&] { comm("dp", {1, 3}, 8, 0); },
      [&] { comm("dp", {0, 1}, 9, 0); },
      [&] { comm("dp", {0, 1}, 8, 0), comm("dp", {0, 1}, 8, 1); },
  };
  recorder.cut("start");
  for (int round = 0; round < 3; ++round) forward_of_two_layers(recorder, variants);
  const std::size_t each = 2 * variants.size();
  ASSERT_EQ(step().instances.size(), 3 * each);
  EXPECT_EQ(recorder.impl().graphs.size(), each);
  for (std::size_t i = 0; i < 3 * each; ++i) EXPECT_EQ(step().instances[i].graph, i % each);
  EXPECT_EQ(recorder.impl().graph_runs, std::vector<std::int64_t>(each, 3));
  EXPECT_EQ(step().instances.back().comms.size(), 2u);
  EXPECT_EQ(step().instances.back().comms[1], step().comms.size() - 1);
}

TEST_F(RankRecorderTest, NumbersInWhichStepsDifferMakeNoNewGraph) {
  const std::uint64_t x = recorder.new_buffer();
  const auto run = [&](const std::string& scalars) {
    recorder.cut("test");
    const Operand operand{x, recorder.interned().view({{4}, {1}, 0, DType::kFp32})};
    recorder.record("aten::_foreach_addcdiv_.ScalarList", scalars, std::array{operand},
                    std::array{operand}, std::array<std::int64_t, 2>{16, 16});
    recorder.cut("test");
    return step().instances.back().graph;
  };
  const std::uint32_t first = run("value=-0.001 scalars=[0.3,1e-05]");
  EXPECT_EQ(run("value=-0.00099 scalars=[0.29,1.7]"), first);
  EXPECT_EQ(graph(0).nodes[0].scalars, "value=-0.001 scalars=[0.3,1e-05]")
      << "the graph is the first one's, with its numbers";
  // Differences that may choose another program: a sign, whole numbers and halves, how many there
  // are, other arguments.
  std::set<std::uint32_t> graphs{first};
  for (const char* other : {"value=0.001 scalars=[0.3,1e-05]", "value=-1 scalars=[0.3,1e-05]",
                            "value=-0.5 scalars=[0.3,1e-05]", "value=-0.001 scalars=[0.3]",
                            "value=-0.001 scalars=[0.3,inf]", "value=-0.001 dim=[0.3,1e-05]",
                            "value=-0.001+2j scalars=[0.3,1e-05]"}) {
    EXPECT_TRUE(graphs.insert(run(other)).second) << other;
  }
}

TEST_F(RankRecorderTest, AStepThatNeverEndsIsForgottenAndRefused) {
  Session session(SessionOptions{.instance = "trn2.48xlarge", .world_size = 1});
  RankRecorder& rank = session.rank(0);
  const std::uint64_t x = rank.new_buffer();
  rank.cut("start");
  const std::size_t runs = Impl::kMostRuns + 10;
  std::int64_t handle = 0;
  for (std::size_t i = 0; i < runs; ++i) {
    const Operand operand{x, rank.interned().view({{4}, {1}, 0, DType::kFp32})};
    handle = rank.comm_start({sim::CollectiveKind::kAllReduce, "dp", {0}, i, 4, DType::kFp32},
                             std::array{operand}, {}, std::array<std::int64_t, 1>{16});
    if (i % 3 == 2)
      rank.comm_wait(handle - 1);  // started in the graph before, which may be forgotten
    rank.cut("test");
  }
  EXPECT_LT(rank.impl().step.instances.size(), Impl::kMostRuns);
  EXPECT_LT(rank.impl().step.comms.size(), Impl::kMostRuns);
  EXPECT_EQ(
      rank.impl().step.forgotten + static_cast<std::int64_t>(rank.impl().step.instances.size()),
      static_cast<std::int64_t>(runs));
  EXPECT_EQ(rank.uses().uses().begin()->second.count, static_cast<std::int64_t>(runs))
      << "counted all the same";
  session.end_step(0, 0);
  try {
    static_cast<void>(session.simulate_step(0));
    FAIL() << "a part of a step was simulated as the whole";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("end steps more often"), std::string::npos)
        << error.what();
  }
  rank.discard();
  session.end_step(0, 1);
  EXPECT_NO_THROW(static_cast<void>(session.simulate_step(1)));
}

TEST_F(RankRecorderTest, GraphsThatNeverRepeatAreForgottenWhenTheirStepsHaveEnded) {
  constexpr std::int64_t kNodes = 2000, kGraphs = 3 * Impl::kMostNodes / kNodes;
  for (std::int64_t g = 0; g < kGraphs; ++g) {
    const std::uint64_t x = recorder.new_buffer();
    const Operand operand{x, recorder.interned().view({{g + 1}, {1}, 0, DType::kFp32})};
    for (std::int64_t i = 0; i < kNodes; ++i)
      recorder.record("aten::neg", "", std::array{operand}, std::array{operand},
                      std::array{4 * (g + 1), 4 * (g + 1)});
    recorder.end_step();
    EXPECT_LE(recorder.impl().graph_nodes, Impl::kMostNodes + kNodes);
    const StepStream& finished = recorder.impl().finished;
    ASSERT_EQ(finished.instances.size(), 1u);
    EXPECT_EQ(recorder.impl().graphs[finished.instances[0].graph].values[0].view.sizes[0], g + 1)
        << "the last step's graph stays, under its number";
  }
  EXPECT_EQ(recorder.uses().uses().begin()->second.count, kNodes * kGraphs);
}

TEST_F(RankRecorderTest, TextsAndViewsAreForgottenAndGraphsKnownAgain) {
  const auto run = [&](std::int64_t offset, const std::string& scalars) {
    const std::uint64_t x = recorder.new_buffer();
    recorder.cut("test");
    const Operand operand{x, recorder.interned().view({{4}, {1}, offset, DType::kFp32})};
    recorder.record("aten::neg", scalars, std::array{operand}, std::array{operand},
                    std::array<std::int64_t, 2>{16, 16});
    recorder.cut("test");
    return step().instances.back().graph;
  };
  const std::uint32_t first = run(3, "dim=3");
  for (std::size_t i = 0; i <= InternTable::kManyEntries; ++i)
    static_cast<void>(recorder.interned().text("dim=" + std::to_string(i)));
  recorder.cut("test");
  EXPECT_EQ(recorder.interned().generation(), 1u);
  EXPECT_NE(run(4, "dim=4"), first) << "its numbers are those that the first one's had";
  EXPECT_EQ(run(3, "dim=3"), first);
}

TEST_F(RankRecorderTest, ScopesBeyondTheMostShareOne) {
  InternTable table;
  for (std::size_t i = 1; i < InternTable::kMostScopes; ++i)
    EXPECT_EQ(table.scope({"forward", -1, "layer " + std::to_string(i)}), i);
  const std::uint32_t further = table.scope({"forward", -1, "one more"});
  EXPECT_EQ(table.scope({"backward", -1, "and another"}), further);
  EXPECT_EQ(table.scope(further).layer, InternTable::kFurtherScopes);
  EXPECT_EQ(table.scope({"forward", -1, "layer 7"}), 7u);
}

TEST_F(RankRecorderTest, BuildingTheModelIsNoPartOfAStep) {
  recorder.push_scope("phase=init");
  add(recorder.new_buffer(), recorder.new_buffer());
  recorder.pop_scope("phase=init");
  EXPECT_TRUE(step().instances.empty());
}

TEST_F(RankRecorderTest, NothingIsKeptWhenOff) {
  RankRecorder off(0, 0, Bytes(100), false);
  off.push_scope("phase=forward");
  off.record("aten::add.Tensor", "", {}, {}, {});
  off.pop_scope("phase=forward");
  EXPECT_TRUE(off.impl().step.instances.empty());
}

/// The warnings of steps whose input has these lengths, one graph each.
std::vector<std::string> warnings_of_lengths(const std::vector<std::int64_t>& lengths) {
  RankRecorder rank(0, 0, Bytes(1 << 20), true);
  std::vector<std::string> warnings;
  const LogTap tap([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  rank.push_scope("phase=forward");
  for (const std::int64_t length : lengths) {
    const std::array<std::int64_t, 2> bytes{4 * length, 4 * length};
    const auto view = rank.interned().view({{1, length}, {length, 1}, 0, DType::kFp32});
    const std::array<Operand, 1> in{Operand{rank.new_buffer(), view}};
    const std::array<Operand, 1> out{Operand{rank.new_buffer(), view}};
    rank.record("aten::relu", "", in, out, bytes);
    rank.end_step();
  }
  return warnings;
}

TEST(ShapeChurn, StepsThatGoOnToBringShapesAreNamedWithTheTensor) {
  EXPECT_TRUE(warnings_of_lengths({8, 8, 9, 8, 9, 10, 10, 10, 8, 11}).empty()) << "three new ones";
  const auto warnings = warnings_of_lengths({8, 9, 10, 10, 11, 12, 13, 14, 15});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "4 steps have brought 4 graphs that differ from earlier ones only in shapes, and the "
            "device compiles each, for minutes: the newest is number 5 of \"forward\": tensor 0 of "
            "\"relu\" has shape [1, 12], [1, 11] before: pad inputs to a few lengths, "
            "and give a dropless mixture a capacity_factor");
  EXPECT_EQ(warnings_of_lengths({1, 2, 3, 4, 5, 6, 7, 8, 9}).size(), 2U)
      << "the fourth, the eighth";
}

}  // namespace
}  // namespace trellis::device
