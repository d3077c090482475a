// The result of a product of heads that is only copied into another order (heads next to each other
// in a token's row) is written in that order: a store with strides costs less than a pass over HBM.
#include <algorithm>

#include "device/compiler/rules/graph_editor.h"

namespace trellis::device {
namespace {

/// One dimension of a copy, with its strides on both sides.
struct CopiedDim {
  std::int64_t size = 1, from = 0, to = 0;
};

/// The dimensions in the order of the source, which they must fill without gaps; empty: they do
/// not.
std::vector<CopiedDim> in_order_of_source(const TensorView& from, const TensorView& to) {
  std::vector<CopiedDim> dims;
  for (std::size_t d = 0; d < from.sizes.size(); ++d) {
    if (from.sizes[d] != 1) dims.push_back({from.sizes[d], from.strides[d], to.strides[d]});
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const CopiedDim& a, const CopiedDim& b) { return a.from > b.from; });
  std::int64_t expected = 1;
  for (std::size_t d = dims.size(); d-- > 0; expected *= dims[d].size) {
    if (dims[d].from != expected) return {};
  }
  return dims;
}

/// Where the copy puts element [i, j, …] of a tensor of `sizes` that fills the source; nullopt when
/// that takes more strides than dimensions.
std::optional<std::vector<std::int64_t>> strides_in_copy(const std::vector<std::int64_t>& sizes,
                                                         const std::vector<CopiedDim>& dims) {
  std::vector<std::int64_t> strides;
  std::size_t next = 0;
  for (const std::int64_t size : sizes) {
    std::int64_t taken = 1, stride = 0;
    for (; taken < size && next < dims.size(); ++next) {
      if (taken > 1 && stride != dims[next].to * dims[next].size) return std::nullopt;
      taken *= dims[next].size;
      stride = dims[next].to;
    }
    if (taken != size) return std::nullopt;
    strides.push_back(stride);
  }
  return next == dims.size() ? std::optional(strides) : std::nullopt;
}

bool fold(GraphEditor& g, std::uint32_t product) {
  const Node& node = g.node(product);
  if (node.outputs.size() != 1 || !g.is_whole(node.outputs[0]) ||
      !g.is_temporary(g.buffer(node.outputs[0])))
    return false;
  const auto& uses = g.uses(g.buffer(node.outputs[0]));
  if (uses.size() != 2 || uses[0].node != product || uses[0].reads) return false;
  const std::uint32_t copy = uses[1].node;
  const auto source = g.copy_source(copy);
  if (!source || g.buffer(g.node(copy).inputs[*source]) != g.buffer(node.outputs[0])) return false;
  const std::uint32_t result = g.node(copy).outputs[0];
  const TensorView &made = g.view(node.outputs[0]), &from = g.view(g.node(copy).inputs[*source]),
                   to = g.view(result);
  if (from.offset != 0 || from.sizes != to.sizes || from.dtype != made.dtype ||
      to.dtype != made.dtype || from.elements() != made.elements())
    return false;
  const auto& others = g.uses(g.buffer(result));
  if (std::any_of(others.begin(), others.end(),
                  [&](const auto& use) { return use.node >= product && use.node < copy; }))
    return false;
  const auto strides = strides_in_copy(made.sizes, in_order_of_source(from, to));
  if (!strides || strides->back() != 1) return false;
  const std::uint32_t there =
      g.add_value(g.buffer(result), {made.sizes, *strides, to.offset, to.dtype});
  const std::vector<std::uint32_t> sides = g.node(product).inputs;
  const std::string op = g.node(product).op, scalars = g.node(product).scalars;
  g.absorb(copy);
  g.replace(product, op, scalars, sides, {there});
  return true;
}

}  // namespace

bool fuse_layouts(GraphEditor& g) {
  bool changed = false;
  for (std::uint32_t n = 0; n < g.graph().nodes.size(); ++n) {
    if (g.name(n) == "bmm") changed = fold(g, n) || changed;
  }
  return changed;
}

}  // namespace trellis::device
