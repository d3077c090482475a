#pragma once

#include <string>
#include <string_view>

#include "tests/device/compiler/graph_samples.h"

namespace trellis::device::testing {

/// Layers of a product, an all-reduce and an update, between an embedding and a head.
inline Graph layered_graph(int layers, std::string_view op = "relu") {
  constexpr std::int64_t kWidth = 256;
  GraphMaker make;
  make.graph.name = "forward";
  const auto tensor = [&](BufferRole role) {
    return make.tensor(fresh({kWidth, kWidth}, DType::kBf16), role);
  };
  auto x = tensor(BufferRole::kExternal);
  const auto embedded = tensor(BufferRole::kTemporary);
  make.op("mul.Tensor", {x, x}, {embedded}).scope = {"forward", -1, "model.embed_tokens"};
  x = embedded;
  for (int l = 0; l < layers; ++l) {
    const Scope scope{"forward", -1, "model.layers." + std::to_string(l)};
    const auto w = tensor(BufferRole::kExternal), product = tensor(BufferRole::kTemporary),
               sum = tensor(BufferRole::kTemporary);
    make.op("mm", {x, w}, {product}).scope = scope;
    make.graph.comms.push_back(
        {sim::CollectiveKind::kAllReduce, "tp", 4, 1, 0, false, kWidth * kWidth, DType::kBf16});
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
  make.op("mm", {x, tensor(BufferRole::kExternal)}, {tensor(BufferRole::kOutput)}).scope = {
      "forward", -1, "lm_head"};
  return make.graph;
}

}  // namespace trellis::device::testing
