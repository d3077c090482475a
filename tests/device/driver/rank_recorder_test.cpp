#include <gtest/gtest.h>

#include "device/driver/rank_stream.h"

namespace trellis::device {
namespace {

/// A recorder with a helper that records `aten::add` of two buffers into a new one.
class RankRecorderTest : public testing::Test {
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
  const Graph& graph(std::size_t instance) { return recorder.impl().graphs[step().instances[instance].graph]; }
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
  EXPECT_EQ(step().instances[0].graph, step().instances[1].graph) << "equal micro-batches share one graph";
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
  EXPECT_EQ(layers, (std::vector<std::string>{"model.layers.1", "model.layers.0", "model.layers.0", "", "", ""}));
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

}  // namespace
}  // namespace trellis::device
