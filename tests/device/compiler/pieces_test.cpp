#include "device/compiler/graph/pieces.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "device/compiler/compile.h"
#include "tests/device/compiler/graph_samples.h"
#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/test_core.h"

/// A graph cut into pieces does what the whole does; equal layers are equal pieces.
namespace trellis::device::testing {
namespace {

/// x ← x + gelu(x · w[l]) for each layer, an all-reduce of the product inside, a sum of all layers'
/// inputs at the end.
Graph layers(int count, std::int64_t width) {
  GraphMaker make;
  make.graph.name = "forward";
  auto x = make.tensor(fresh({width, width}), BufferRole::kExternal);
  const auto kept = x;
  for (int l = 0; l < count; ++l) {
    const Scope scope{"forward", -1, "model.layers." + std::to_string(l) + ".mlp"};
    const auto w = make.tensor(fresh({width, width}), BufferRole::kExternal);
    const auto product = make.tensor({width, width}), activated = make.tensor({width, width});
    const auto out = make.tensor(fresh({width, width}),
                                 l + 1 == count ? BufferRole::kOutput : BufferRole::kTemporary);
    make.op("mm", {x, w}, {product}).scope = scope;
    make.graph.comms.push_back(
        {sim::CollectiveKind::kAllReduce, "tp", 4, 1, 0, false, width * width, DType::kFp32});
    for (const auto kind : {Node::Kind::kCommStart, Node::Kind::kCommWait}) {
      Node& node = make.op("all_reduce", {}, {});
      node.kind = kind;
      node.comm = static_cast<std::uint32_t>(l);
      node.scope = scope;
    }
    make.graph.nodes[make.graph.nodes.size() - 2].inputs = {product};
    make.op("relu", {product}, {activated}).scope = scope;
    make.op("add.Tensor", {x, activated}, {out}).scope = scope;
    x = out;
  }
  const auto sum = make.tensor(fresh({width, width}), BufferRole::kOutput);
  make.op("add.Tensor", {x, kept}, {sum}).scope = {"forward", -1, "model.norm"};
  return make.graph;
}

std::vector<Graph> operations(const Graph& graph) {
  const PieceCutter cutter(graph);
  std::vector<Graph> all;
  for (const Piece& piece : cutter.pieces()) {
    if (!cutter.is_communication(piece)) all.push_back(cutter.extract(piece));
  }
  return all;
}

TEST(NumberedLayer, IsThePathUpToItsFirstNumber) {
  EXPECT_EQ(numbered_layer("model.layers.3.mlp.0"), "model.layers.3");
  EXPECT_EQ(numbered_layer("model.layers.31"), "model.layers.31");
  EXPECT_EQ(numbered_layer("0.linear"), "0");
  EXPECT_EQ(numbered_layer("model.layer3.mlp"), "");
  EXPECT_EQ(numbered_layer("model.norm"), "");
  EXPECT_EQ(numbered_layer(""), "");
}

TEST(PieceCutter, CutsAtCommunicationsAndLayersAndKeepsEveryNode) {
  const Graph graph = layers(3, 16);
  const PieceCutter cutter(graph);
  std::uint32_t next = 0;
  for (const Piece& piece : cutter.pieces()) {
    EXPECT_EQ(piece.first, next);
    EXPECT_LT(piece.first, piece.end);
    next = piece.end;
    const std::string_view layer = numbered_layer(graph.nodes[piece.first].scope.layer);
    for (std::uint32_t n = piece.first; n < piece.end; ++n) {
      EXPECT_EQ(graph.nodes[n].kind != Node::Kind::kOp, cutter.is_communication(piece));
      EXPECT_EQ(numbered_layer(graph.nodes[n].scope.layer), layer);
    }
    if (cutter.is_communication(piece)) {
      EXPECT_EQ(piece.end, piece.first + 1);
    }
  }
  EXPECT_EQ(next, graph.nodes.size());
  EXPECT_EQ(cutter.pieces().size(), 3u * 4 + 1);
}

TEST(PieceCutter, EqualLayersAreEqualPieces) {
  for (const int count : {4, 32}) {
    std::set<ContentHash> distinct;
    for (const Graph& piece : operations(layers(count, 16))) distinct.insert(piece.hash());
    // In: mm and its successor. The last layer's result outlives the graph as the others' outlive
    // their piece; the sum is alone.
    EXPECT_EQ(distinct.size(), 3u) << count;
  }
}

TEST(PieceCutter, RolesFollowWhatIsOutside) {
  const Graph graph = layers(2, 16);
  const PieceCutter cutter(graph);
  const Graph product = cutter.extract(cutter.pieces()[0]);
  ASSERT_EQ(product.buffers.size(), 3u);
  EXPECT_EQ(product.buffers[2].role, BufferRole::kOutput) << "the communication reads it";
  const Graph rest = cutter.extract(cutter.pieces()[3]);
  ASSERT_EQ(rest.nodes.size(), 2u);
  const auto role = [&](std::uint32_t value) {
    return rest.buffers[rest.values[value].buffer].role;
  };
  EXPECT_EQ(role(rest.nodes[0].inputs[0]), BufferRole::kExternal) << "made by the piece before";
  EXPECT_EQ(role(rest.nodes[0].outputs[0]), BufferRole::kTemporary);
  EXPECT_EQ(role(rest.nodes[1].outputs[0]), BufferRole::kOutput) << "the next layer reads it";
}

/// Runs a separate graph on numbers that live outside, by the whole graph's buffers.
void run(const Graph& graph, const std::vector<std::uint32_t>& whole_buffer,
         const sim::CoreConfig& core, std::map<std::uint32_t, Values>& memory) {
  const CompiledGraph compiled = compile(graph, core);
  const std::vector<std::int32_t> slots = buffer_slots(graph);
  Interpreter interpreter(compiled.program, core.limits, in_double(1));
  const auto each = [&](auto&& visit) {
    for (std::uint32_t b = 0; b < slots.size(); ++b) {
      for (std::uint32_t p = 0; p < compiled.program.buffers.size(); ++p) {
        if (slots[b] >= 0 && compiled.program.buffers[p].slot == slots[b])
          visit(p, whole_buffer[b]);
      }
    }
  };
  each([&](std::uint32_t p, std::uint32_t whole) {
    if (memory.contains(whole)) interpreter.write(p, DType::kFp32, memory.at(whole));
  });
  interpreter.run();
  each([&](std::uint32_t p, std::uint32_t whole) {
    memory[whole] = interpreter.read(p, DType::kFp32, compiled.program.buffers[p].bytes / 4);
  });
}

TEST(PieceCutter, PiecesInOrderComputeWhatTheWholeComputes) {
  const Graph graph = layers(3, 32);
  const sim::CoreConfig core = test_core();
  std::mt19937 random(5);
  std::uniform_int_distribution<int> number(-8, 8);
  std::map<std::uint32_t, Values> whole;
  for (std::uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].role != BufferRole::kExternal) continue;
    Values& values = whole[b];
    for (std::int64_t i = 0; i < graph.buffers[b].bytes / 4; ++i)
      values.push_back(number(random) / 16.0);
  }
  std::map<std::uint32_t, Values> in_pieces = whole;
  std::vector<std::uint32_t> same(graph.buffers.size());
  for (std::uint32_t b = 0; b < same.size(); ++b) same[b] = b;
  run(graph, same, core, whole);

  const PieceCutter cutter(graph);
  for (const Piece& piece : cutter.pieces()) {
    if (cutter.is_communication(piece)) continue;
    const Graph part = cutter.extract(piece);
    std::vector<std::uint32_t> buffers(part.buffers.size());
    for (std::uint32_t n = 0; n < part.nodes.size(); ++n) {
      const auto match = [&](const std::vector<std::uint32_t>& mine,
                             const std::vector<std::uint32_t>& theirs) {
        for (std::size_t i = 0; i < mine.size(); ++i)
          buffers[part.values[mine[i]].buffer] = graph.values[theirs[i]].buffer;
      };
      match(part.nodes[n].inputs, graph.nodes[piece.first + n].inputs);
      match(part.nodes[n].outputs, graph.nodes[piece.first + n].outputs);
    }
    run(part, buffers, core, in_pieces);
  }
  for (std::uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].role != BufferRole::kOutput) continue;
    ASSERT_EQ(in_pieces[b].size(), whole[b].size());
    for (std::size_t i = 0; i < whole[b].size(); ++i)
      EXPECT_NEAR(in_pieces[b][i], whole[b][i], 1e-4 * (1 + std::abs(whole[b][i])));
  }
}

}  // namespace
}  // namespace trellis::device::testing
