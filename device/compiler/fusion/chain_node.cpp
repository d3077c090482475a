#include <algorithm>
#include <numeric>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/fusion/fusion.h"

namespace trellis::device {
namespace {

/// Reductions whose result is not used again by the operation itself.
bool is_plain_reduction(const std::string& name) {
  static const std::vector<std::string> kNames{"sum", "mean", "amax", "amin",
                                               "any", "all",  "norm", "linalg_vector_norm"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}
bool sums(const Node& node, const std::string& name) {
  if (name == "sum" || name == "mean") return true;
  const Scalars scalars(node.scalars);
  const double order = scalars.has("ord") ? scalars.number("ord", 2) : scalars.number("p", 2);
  return name.ends_with("norm") && order == order && order < 1e30 && order > -1e30;
}

std::vector<bool> reduced_mask(const Node& node, const ChainOp& op, std::size_t rank) {
  std::vector<bool> mask(rank, false);
  const Scalars scalars(node.scalars);
  if (op.reduces == Reduces::kLastDims || op.reduces == Reduces::kLeadingDims) {
    const std::size_t n = std::max<std::size_t>(1, scalars.list("normalized_shape").size());
    for (std::size_t d = 0; d < rank; ++d)
      mask[d] = (d >= rank - std::min(n, rank)) == (op.reduces == Reduces::kLastDims);
  } else if (op.reduces == Reduces::kDims) {
    const auto dims = scalars.list("dim");
    if (dims.empty()) mask.assign(rank, true);
    for (std::int64_t d : dims) {
      if (rank > 0)
        mask[static_cast<std::size_t>(d < 0 ? d + static_cast<std::int64_t>(rank) : d)] = true;
    }
  }
  return mask;
}

/// Strides over `sizes` of a view that broadcasts to it (aligned at the last dimension).
std::vector<std::int64_t> broadcast_strides(const TensorView& view,
                                            const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> out(sizes.size(), 0);
  const std::size_t shift = sizes.size() - std::min(sizes.size(), view.sizes.size());
  for (std::size_t d = shift; d < sizes.size(); ++d) {
    const std::size_t v = d - shift;
    if (view.sizes[v] == sizes[d] && sizes[d] != 1) out[d] = view.strides[v];
  }
  return out;
}

/// Strides of a reduction's result: nothing moves along reduced dimensions, which may be left out
/// of the view.
std::vector<std::int64_t> result_strides(const TensorView& view,
                                         const std::vector<std::int64_t>& sizes,
                                         const std::vector<bool>& reduced) {
  if (view.sizes == sizes) return view.strides;
  std::vector<std::int64_t> out(sizes.size(), 0);
  const bool keeps = view.sizes.size() == sizes.size();
  std::size_t v = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (reduced[d]) {
      v += keeps ? 1 : 0;
    } else if (v < view.strides.size()) {
      out[d] = view.strides[v++];
    }
  }
  return out;
}

}  // namespace

std::optional<ChainNode> make_chain_node(const Graph& graph, const Node& node, std::uint32_t index,
                                         const ChainOp& op) {
  ChainNode out{&node, index, &op, {}, {}, false, {}, {}, {}, {}};
  if (node.outputs.empty()) return std::nullopt;
  const bool reduces = op.reduces != Reduces::kNothing;
  const TensorView& shape = graph.values[reduces ? node.inputs.at(0) : node.outputs[0]].view;
  out.sizes = shape.sizes;
  if (std::count(out.sizes.begin(), out.sizes.end(), 0) > 0) return std::nullopt;
  out.reduced = reduced_mask(node, op, out.sizes.size());
  for (std::uint32_t id : node.inputs) {
    const Value& v = graph.values[id];
    out.inputs.push_back({v.buffer, v.view.offset, broadcast_strides(v.view, out.sizes)});
    out.input_dtypes.push_back(device_dtype(v.view.dtype));
  }
  for (std::uint32_t id : node.outputs) {
    const Value& v = graph.values[id];
    out.outputs.push_back(
        {v.buffer, v.view.offset,
         reduces ? result_strides(v.view, out.sizes, out.reduced) : v.view.strides});
    out.output_dtypes.push_back(device_dtype(v.view.dtype));
  }
  // Size 1 says nothing.
  std::vector<std::size_t> kept;
  for (std::size_t d = 0; d < out.sizes.size(); ++d) {
    if (out.sizes[d] != 1) kept.push_back(d);
  }
  const auto keep = [&](auto& list) {
    auto old = list;
    list.clear();
    for (std::size_t d : kept) list.push_back(old[d]);
  };
  keep(out.sizes);
  keep(out.reduced);
  for (auto& a : out.inputs) keep(a.strides);
  for (auto& a : out.outputs) keep(a.strides);
  const std::string name = plain_name(node.op);
  out.terminal = op.reduces == Reduces::kLeadingDims &&
                 std::count(out.reduced.begin(), out.reduced.end(), true) > 0;
  if (reduces && is_plain_reduction(name) && !out.sizes.empty()) {
    const bool everything = std::count(out.reduced.begin(), out.reduced.end(), false) == 0;
    // The contiguous dimension stays: rows would be gathered element by element.
    std::size_t inner = 0;
    for (std::size_t d = 0; d < out.sizes.size(); ++d) {
      if (out.inputs[0].strides[d] != 0 &&
          (out.inputs[0].strides[inner] == 0 ||
           out.inputs[0].strides[d] <= out.inputs[0].strides[inner]))
        inner = d;
    }
    out.terminal = everything || (sums(node, name) && !out.reduced[inner]);
  }
  return out;
}

}  // namespace trellis::device
