// Stochastic rounding written as integer arithmetic on the bits of fp32 (noise is added to the
// lower half, which is then cut off) is a mode in which the engines write bf16: the arithmetic
// goes, the cast stays. A program cannot say which way a number was rounded.
#include <algorithm>

#include "device/compiler/graph/scalars.h"
#include "device/compiler/rules/graph_editor.h"

namespace trellis::device {
namespace {

constexpr double kUpperHalf = -65536;  ///< 0xffff0000

struct Rounding {
  std::uint32_t source = 0;  ///< value: the fp32 numbers seen as int32
  std::uint32_t cut = 0, cast = 0;
};

/// noisy = source.clone(); noisy rows += noise …; noisy &= 0xffff0000; result = cast(noisy as
/// fp32): node `cut` is the third.
std::optional<Rounding> match_rounding(const GraphEditor& g, std::uint32_t cut) {
  const Node& node = g.node(cut);
  if (g.name(cut) != "bitwise_and" || node.inputs.size() != 1 || node.outputs.size() != 1)
    return std::nullopt;
  const std::uint32_t noisy = g.buffer(node.outputs[0]);
  if (g.buffer(node.inputs[0]) != noisy || !g.is_temporary(noisy) || !g.is_whole(node.outputs[0]) ||
      g.view(node.outputs[0]).dtype != DType::kInt32 ||
      Scalars(node.scalars).number("other", 0) != kUpperHalf) {
    return std::nullopt;
  }
  const auto& uses = g.uses(noisy);
  if (uses.size() < 3 || uses[uses.size() - 2].node != cut) return std::nullopt;
  const std::uint32_t copy = uses.front().node, cast = uses.back().node;
  const auto from = g.copy_source(copy), of_cast = g.copy_source(cast);
  if (!from || !of_cast || !g.is_whole(g.node(copy).outputs[0])) return std::nullopt;
  const std::uint32_t source = g.node(copy).inputs[*from];
  const Node& last = g.node(cast);
  if (g.buffer(source) == noisy || g.view(source).dtype != DType::kInt32 ||
      g.view(source).elements() != g.view(node.outputs[0]).elements())
    return std::nullopt;
  for (std::size_t i = 1; i + 2 < uses.size(); ++i) {
    if (g.name(uses[i].node) != "add") return std::nullopt;
  }
  const bool to_bf16 =
      g.view(last.outputs[0]).dtype == DType::kBf16 && g.buffer(last.inputs[*of_cast]) == noisy;
  if (!to_bf16 || g.written_between(g.buffer(source), copy, cast)) return std::nullopt;
  return Rounding{source, cut, cast};
}

void fuse(GraphEditor& g, const Rounding& r) {
  TensorView view = g.view(r.source);
  view.dtype = DType::kFp32;
  const std::uint32_t numbers = g.add_value(g.buffer(r.source), view),
                      noisy = g.buffer(g.node(r.cut).outputs[0]);
  const auto uses = g.uses(noisy);
  for (const auto& use : uses) {
    if (use.node != r.cast) g.absorb(use.node);
  }
  const Node cast = g.node(r.cast);
  std::vector<std::uint32_t> inputs = cast.inputs;
  inputs[*g.copy_source(r.cast)] = numbers;
  g.replace(r.cast, cast.op, cast.scalars, inputs, cast.outputs);
}

}  // namespace

bool fuse_rounding(GraphEditor& g) {
  bool changed = false;
  for (std::uint32_t n = 0; n < g.graph().nodes.size(); ++n) {
    const auto found = match_rounding(g, n);
    if (!found) continue;
    fuse(g, *found);
    changed = true;
  }
  return changed;
}

}  // namespace trellis::device
