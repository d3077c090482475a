// A product does what follows it on its way out of PSUM, where Vector and Scalar read it anyhow.
// gelu(a b): both are made there. (a b) · gelu'(x): a b never lies in HBM.
// acc += a b, written as a product and an addition (gradients of weights over micro-batches),
// becomes one product with an addend where nothing else reads a b: the sum is made on the way out
// of PSUM, and a b never lies in HBM. Products that are cast first, to be summed in fp32, stay: the
// rounding before the cast is part of what the program says, and an addend in fp32 takes the room
// of the operands' blocks.
#include <algorithm>

#include "device/compiler/graph/scalars.h"
#include "device/compiler/rules/graph_editor.h"

namespace trellis::device {
namespace {

/// The only node that reads what `writer` alone writes to a temporary.
std::optional<std::uint32_t> only_reader(const GraphEditor& g, std::uint32_t writer) {
  const Node& node = g.node(writer);
  const std::uint32_t buffer = g.buffer(node.outputs[0]);
  const auto& uses = g.uses(buffer);
  const bool written_once = g.is_temporary(buffer) && g.is_whole(node.outputs[0]) &&
                            uses.size() == 2 && uses[0].node == writer && !uses[0].reads &&
                            !uses[1].writes;
  return written_once ? std::optional(uses[1].node) : std::nullopt;
}

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset;
}

TensorView transposed(TensorView view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

struct Sum {
  std::uint32_t product = 0, add = 0;    ///< nodes
  std::uint32_t addend = 0, result = 0;  ///< values
  bool transposed = false;               ///< the addition sees (a b)ᵀ
};

std::optional<Sum> match_sum(const GraphEditor& g, std::uint32_t product) {
  const Node& node = g.node(product);
  if (g.name(product) != "mm" || node.inputs.size() != 2 || node.outputs.size() != 1 ||
      g.view(node.outputs[0]).sizes.size() != 2)
    return std::nullopt;
  const auto reader = only_reader(g, product);
  if (!reader || g.name(*reader) != "add") return std::nullopt;
  Sum sum{product, *reader};
  const Node& add = g.node(sum.add);
  if (add.inputs.size() != 2 || add.outputs.size() != 1 ||
      Scalars(add.scalars).number("alpha", 1) != 1)
    return std::nullopt;
  const std::uint32_t term = g.buffer(node.outputs[0]);
  const std::size_t mine = g.buffer(add.inputs[0]) == term ? 0 : 1;
  sum.addend = add.inputs[1 - mine], sum.result = add.outputs[0];
  const TensorView &made = g.view(node.outputs[0]), &seen = g.view(add.inputs[mine]);
  if (g.buffer(sum.addend) == term || seen.sizes.size() != 2 ||
      g.view(sum.addend).sizes != seen.sizes || g.view(sum.result).sizes != seen.sizes)
    return std::nullopt;
  if (g.view(sum.addend).dtype != made.dtype || g.view(sum.result).dtype != made.dtype)
    return std::nullopt;
  sum.transposed = !same_shape(made, seen);
  if (sum.transposed && !same_shape(transposed(made), seen)) return std::nullopt;
  return sum;
}

/// Neither the addend nor the result is touched between the product and its addition, where the
/// product takes over both.
bool is_free(const GraphEditor& g, const Sum& sum) {
  for (const std::uint32_t value : {sum.addend, sum.result}) {
    const auto& uses = g.uses(g.buffer(value));
    const bool read_only = value == sum.addend && g.buffer(value) != g.buffer(sum.result);
    const bool touched = std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
      return use.node >= sum.product && use.node < sum.add && (use.writes || !read_only);
    });
    if (touched) return false;
  }
  return true;
}

bool is_whole_product(const GraphEditor& g, std::uint32_t node) {
  const bool product = g.name(node) == "mm" || g.name(node) == "addmm";
  return product && g.node(node).outputs.size() == 1 &&
         g.view(g.node(node).outputs[0]).sizes.size() == 2 && g.is_whole(g.node(node).outputs[0]);
}

/// `value` as the product's result lies: it is whole, of the same dtype, and no one touches it from
/// the product to `reader`, where `written`.
std::optional<std::uint32_t> epilogue_operand(GraphEditor& g, std::uint32_t product,
                                              std::uint32_t reader, std::uint32_t value,
                                              bool written) {
  const TensorView made = g.view(g.node(product).outputs[0]);
  if (!g.is_whole(value) || g.view(value).dtype != made.dtype ||
      g.view(value).elements() != made.elements())
    return std::nullopt;
  const auto& uses = g.uses(g.buffer(value));
  const bool touched = std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
    return use.node >= product && use.node < reader && (written || use.writes);
  });
  return touched ? std::nullopt : std::optional(g.add_value(g.buffer(value), made));
}

bool fuse_gelu(GraphEditor& g, std::uint32_t product) {
  const std::uint32_t made = g.node(product).outputs[0];
  for (const auto& use : g.uses(g.buffer(made))) {
    if (use.node <= product) continue;
    if (use.writes) return false;
    const Node& gelu = g.node(use.node);
    if (g.name(use.node) != "gelu" || gelu.outputs.size() != 1 || !g.is_whole(gelu.inputs[0]))
      continue;
    const auto result = epilogue_operand(g, product, use.node, gelu.outputs[0], true);
    if (!result) continue;
    const std::vector<std::uint32_t> inputs = g.node(product).inputs;
    const std::string op = g.name(product) + "_gelu", scalars = g.node(product).scalars;
    g.absorb(use.node);
    g.replace(product, op, scalars, inputs, {made, *result});
    return true;
  }
  return false;
}

bool fuse_gelu_backward(GraphEditor& g, std::uint32_t product) {
  if (g.name(product) != "mm") return false;
  const auto reader = only_reader(g, product);
  if (!reader || g.name(*reader) != "gelu_backward" || g.node(*reader).inputs.size() != 2 ||
      g.node(*reader).outputs.size() != 1)
    return false;
  const std::vector<std::uint32_t> read = g.node(*reader).inputs;
  if (g.buffer(read[0]) != g.buffer(g.node(product).outputs[0]) ||
      g.buffer(read[1]) == g.buffer(read[0]))
    return false;
  const std::uint32_t written = g.node(*reader).outputs[0];
  if (g.buffer(written) == g.buffer(read[1])) return false;
  const auto point = epilogue_operand(g, product, *reader, read[1], false),
             result = epilogue_operand(g, product, *reader, written, true);
  if (!point || !result) return false;
  std::vector<std::uint32_t> inputs = g.node(product).inputs;
  inputs.push_back(*point);
  g.absorb(*reader);
  g.replace(product, "mm_gelu_backward", "", inputs, {*result});
  return true;
}

}  // namespace

bool fuse_results(GraphEditor& g) {
  bool changed = false;
  for (std::uint32_t n = 0; n < g.graph().nodes.size(); ++n) {
    if (g.name(n) != "mm") continue;
    const auto sum = match_sum(g, n);
    if (!sum || !is_free(g, *sum)) continue;
    const auto as_product = [&](std::uint32_t value) {
      return sum->transposed ? g.add_value(g.buffer(value), transposed(g.view(value))) : value;
    };
    const std::uint32_t addend = as_product(sum->addend), result = as_product(sum->result);
    const std::vector<std::uint32_t> sides = g.node(n).inputs;
    g.absorb(sum->add);
    g.replace(n, "addmm", "", {addend, sides[0], sides[1]}, {result});
    changed = true;
  }
  for (std::uint32_t n = 0; n < g.graph().nodes.size(); ++n) {
    if (is_whole_product(g, n)) changed = fuse_gelu(g, n) || fuse_gelu_backward(g, n) || changed;
  }
  return changed;
}

}  // namespace trellis::device
