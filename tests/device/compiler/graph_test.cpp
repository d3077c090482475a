#include "device/compiler/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "device/compiler/compile.h"
#include "tests/device/compiler/graph_samples.h"

namespace trellis::device::testing {
namespace {

using ::testing::HasSubstr;

/// y = all_reduce(x · w) + y, with a transposed weight.
Graph sample() {
  GraphMaker make;
  make.graph.name = "forward";
  make.graph.cut_reason = "phase border";
  const auto x = make.tensor(fresh({4, 8}, DType::kBf16), BufferRole::kExternal);
  const auto w = make.tensor(TensorView{{8, 16}, {1, 8}, 0, DType::kBf16}, BufferRole::kExternal);
  const auto product = make.tensor({4, 16}, DType::kBf16);
  const auto y = make.tensor(fresh({4, 16}, DType::kBf16), BufferRole::kOutput);
  make.graph.comms.push_back(
      {sim::CollectiveKind::kAllReduce, "tp", 4, 1, 0, false, 64, DType::kBf16});
  make.graph.comms.push_back(
      {sim::CollectiveKind::kSendRecv, "pp", 2, 1, 1, true, 64, DType::kBf16});
  make.op("mm", {x, w}, {product}).scope = {"forward", 0, "model.layers.0"};
  make.op("all_reduce", {product}, {product}).kind = Node::Kind::kCommStart;
  make.graph.nodes.back().comm = 0;
  make.op("all_reduce", {}, {}).kind = Node::Kind::kCommWait;
  make.graph.nodes.back().comm = 0;
  make.op("add_.Tensor", {y, product}, {y}, "alpha=0.5");
  make.op("send", {y}, {}).kind = Node::Kind::kCommStart;
  make.graph.nodes.back().comm = 1;
  return make.graph;
}

/// Moves buffers, values and communications to other ids, without a change of meaning.
Graph renumbered(const Graph& graph, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto permutation = [&](std::size_t n) {
    std::vector<std::uint32_t> to(n);
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<std::uint32_t>(i);
    std::shuffle(to.begin(), to.end(), random);
    return to;
  };
  const auto buffer = permutation(graph.buffers.size()), value = permutation(graph.values.size()),
             comm = permutation(graph.comms.size());
  Graph out = graph;
  for (std::size_t i = 0; i < buffer.size(); ++i) out.buffers[buffer[i]] = graph.buffers[i];
  for (std::size_t i = 0; i < comm.size(); ++i) out.comms[comm[i]] = graph.comms[i];
  for (std::size_t i = 0; i < value.size(); ++i)
    out.values[value[i]] = {buffer[graph.values[i].buffer], graph.values[i].view};
  for (Node& node : out.nodes) {
    for (auto& v : node.inputs) v = value[v];
    for (auto& v : node.outputs) v = value[v];
    if (node.comm != kNoComm) node.comm = comm[node.comm];
  }
  return out;
}

TEST(GraphHash, DoesNotDependOnNumbers) {
  const Graph graph = sample();
  for (std::uint32_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(renumbered(graph, seed).hash(), graph.hash());
}

TEST(GraphHash, DoesNotDependOnPlaces) {
  Graph graph = sample();
  const ContentHash before = graph.hash();
  for (Node& node : graph.nodes) node.scope = {"other", 7, "model.layers.9"};
  graph.cut_reason = "end of step";
  graph.buffers.push_back({BufferRole::kExternal, 99});  // used by none
  EXPECT_EQ(graph.hash(), before);
}

TEST(GraphHash, DoesNotDependOnHowOftenAValueIsListed) {
  Graph graph = sample();
  const ContentHash before = graph.hash();
  graph.values.push_back(graph.values[2]);
  graph.nodes[3].inputs[1] = static_cast<std::uint32_t>(graph.values.size() - 1);
  EXPECT_EQ(graph.hash(), before);
}

struct Change {
  const char* what;
  std::function<void(Graph&)> apply;
};

class GraphHashChange : public ::testing::TestWithParam<Change> {};

TEST_P(GraphHashChange, ChangesTheHash) {
  Graph graph = sample();
  const ContentHash before = graph.hash();
  GetParam().apply(graph);
  EXPECT_NE(graph.hash(), before);
}

const Change kChanges[] = {
    {"name", [](Graph& g) { g.name = "backward"; }},
    {"op", [](Graph& g) { g.nodes[0].op = "bmm"; }},
    {"scalar", [](Graph& g) { g.nodes[3].scalars = "alpha=2"; }},
    {"size", [](Graph& g) { g.values[0].view.sizes[0] = 3; }},
    {"stride", [](Graph& g) { g.values[1].view.strides = {16, 1}; }},
    {"offset", [](Graph& g) { g.values[2].view.offset = 1; }},
    {"dtype", [](Graph& g) { g.values[2].view.dtype = DType::kFp16; }},
    {"role", [](Graph& g) { g.buffers[2].role = BufferRole::kOutput; }},
    {"bytes", [](Graph& g) { g.buffers[2].bytes += 2; }},
    {"alias", [](Graph& g) { g.values[2].buffer = 3; }},
    {"operand_order", [](Graph& g) { std::swap(g.nodes[3].inputs[0], g.nodes[3].inputs[1]); }},
    {"input_becomes_output", [](Graph& g) { g.nodes[4].outputs.swap(g.nodes[4].inputs); }},
    {"comm_kind", [](Graph& g) { g.comms[0].kind = sim::CollectiveKind::kAllGather; }},
    {"comm_axis", [](Graph& g) { g.comms[0].axis = "dp"; }},
    {"comm_group_size", [](Graph& g) { g.comms[0].group_size = 8; }},
    {"comm_group_stride", [](Graph& g) { g.comms[0].group_stride = 2; }},
    {"comm_peer", [](Graph& g) { g.comms[1].peer_offset = -1; }},
    {"comm_direction", [](Graph& g) { g.comms[1].is_send = false; }},
    {"comm_elements", [](Graph& g) { g.comms[0].elements = 32; }},
    {"comm_dtype", [](Graph& g) { g.comms[0].dtype = DType::kFp32; }},
    {"comm_pairing", [](Graph& g) { g.nodes[2].comm = 1; }},
    {"wait_moves", [](Graph& g) { std::swap(g.nodes[2], g.nodes[3]); }},
    {"wait_is_gone", [](Graph& g) { g.nodes.erase(g.nodes.begin() + 2); }},
};
INSTANTIATE_TEST_SUITE_P(Each, GraphHashChange, ::testing::ValuesIn(kChanges),
                         [](const auto& change) { return change.param.what; });

TEST(GraphText, ShowsWhatIsThere) {
  const std::string text = print(sample());
  EXPECT_THAT(
      text,
      HasSubstr("graph forward: 4 buffers, 5 nodes, 2 communications, ended by phase border"));
  EXPECT_THAT(text, HasSubstr("b1 external 256 bytes"));
  EXPECT_THAT(text, HasSubstr("n0 mm (b0 bf16[4, 8], b1 bf16[8, 16] strides [1, 8]) -> (b2 bf16[4, "
                              "16])  @ forward, micro-batch 0, model.layers.0"));
  EXPECT_THAT(text, HasSubstr("n2 wait c0"));
  EXPECT_THAT(text, HasSubstr("{alpha=0.5}"));
  EXPECT_THAT(text, HasSubstr("send to peer +1"));
}

TEST(GraphText, DotDrawsDataFlow) {
  const std::string dot = to_dot(sample());
  EXPECT_TRUE(dot.starts_with("digraph \"forward\" {"));
  EXPECT_THAT(dot, HasSubstr("b0 -> n0 [label=\"bf16[4, 8]\"]"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1"));
  EXPECT_THAT(dot, HasSubstr("n1 -> n2 [style=dashed]"));
  EXPECT_THAT(dot, HasSubstr("n1 -> n3"));
  EXPECT_THAT(dot, HasSubstr("n3 -> r3"));
}

TEST(UnsupportedOp, NamesTheCallAndItsPlace) {
  GraphMaker make;
  const auto a = make.tensor({256, 256}, DType::kBf16), u = make.tensor({256, 256}, DType::kBf16),
             s = make.tensor({256}, DType::kBf16);
  make.op("linalg_svd", {a}, {u, s}, "full_matrices=0").scope = {"forward", 0, "model.layers.0"};
  const UnsupportedOp error(make.graph, make.graph.nodes[0]);
  EXPECT_EQ(error.code(), ExitCode::kConfig);
  EXPECT_STREQ(error.what(),
               "the compiler cannot lower aten::linalg_svd(bf16[256, 256], full_matrices=0) -> "
               "(bf16[256, 256], bf16[256]), called in phase forward, "
               "micro-batch 0, layer model.layers.0: it has neither a lowering nor an estimate. "
               "Use other operators there, or add a lowering "
               "(CONTRIBUTING.md, \"How to add an operator\").");
}

TEST(UnsupportedOp, WithoutAPlace) {
  GraphMaker make;
  make.op("nonsense", {}, {make.tensor({3})});
  EXPECT_THAT(UnsupportedOp(make.graph, make.graph.nodes[0]).what(),
              HasSubstr("aten::nonsense() -> fp32[3]: it has neither"));
}

}  // namespace
}  // namespace trellis::device::testing
