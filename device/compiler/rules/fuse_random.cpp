// Masks of dropout: a draw is an instruction, so that it is made where the mask is used, and pieces
// that a program draws one by one to join them are one draw.
#include <algorithm>

#include "device/compiler/graph/scalars.h"
#include "device/compiler/rules/graph_editor.h"

namespace trellis::device {
namespace {

constexpr const char* kMask = "random_mask";

/// "p=…" of a draw of zeros and ones with a number as probability; "" otherwise.
std::string probability(const GraphEditor& g, std::uint32_t n) {
  const Node& node = g.node(n);
  if (g.name(n) != "bernoulli" || node.outputs.size() != 1 || node.inputs.size() > 1) return "";
  const bool in_place =
      node.inputs.empty() || g.buffer(node.inputs[0]) == g.buffer(node.outputs[0]);
  const Scalars scalars(node.scalars);
  return in_place && scalars.has("p") ? "p=" + scalars.text("p") : "";
}

/// The draw that fills the whole of a buffer for node `reader` alone.
std::optional<std::uint32_t> private_draw(const GraphEditor& g, std::uint32_t value,
                                          std::uint32_t reader) {
  const std::uint32_t buffer = g.buffer(value);
  const auto& uses = g.uses(buffer);
  if (!g.is_temporary(buffer) || uses.size() != 2 || uses[1].node != reader ||
      probability(g, uses[0].node).empty())
    return std::nullopt;
  return uses[0].node;
}

bool join(GraphEditor& g, std::uint32_t cat) {
  const Node& node = g.node(cat);
  std::vector<std::uint32_t> draws;
  for (const std::uint32_t part : node.inputs) {
    const auto draw = private_draw(g, part, cat);
    if (!draw || probability(g, *draw) != probability(g, draws.empty() ? *draw : draws[0]))
      return false;
    draws.push_back(*draw);
  }
  if (draws.empty()) return false;
  const std::string scalars = probability(g, draws[0]);
  const std::vector<std::uint32_t> outputs = node.outputs;
  for (const std::uint32_t draw : draws) g.absorb(draw);
  g.replace(cat, kMask, scalars, {}, outputs);
  return true;
}

}  // namespace

bool fuse_random(GraphEditor& g) {
  bool changed = false;
  const auto count = static_cast<std::uint32_t>(g.graph().nodes.size());
  for (std::uint32_t n = 0; n < count; ++n) {
    if (g.name(n) == "cat") changed = join(g, n) || changed;
  }
  for (std::uint32_t n = 0; n < count; ++n) {
    const std::string scalars = probability(g, n);
    if (scalars.empty()) continue;
    g.replace(n, kMask, scalars, {}, std::vector<std::uint32_t>(g.node(n).outputs));
    changed = true;
  }
  return changed;
}

}  // namespace trellis::device
