// Operations that place tensors inside others, and what has a cost but no executable form.
#include <algorithm>

#include "device/compiler/emit/relayout.h"
#include "device/compiler/fusion/chain.h"
#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/index_tiles.h"
#include "device/compiler/ops/join_rows.h"
#include "device/compiler/ops/lowering.h"

namespace trellis::device {
namespace {

using isa::DType;
using isa::Engine;
using isa::Opcode;

std::size_t dimension(std::int64_t d, std::size_t rank) {
  return static_cast<std::size_t>(d < 0 ? d + static_cast<std::int64_t>(rank) : d);
}

HbmView slice(HbmView v, std::size_t dim, std::int64_t start, std::int64_t size,
              std::int64_t step = 1) {
  v.offset += start * v.strides[dim];
  v.sizes[dim] = size;
  v.strides[dim] *= step;
  return v;
}

HbmView without(HbmView v, std::size_t dim) {
  v.sizes.erase(v.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  v.strides.erase(v.strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return v;
}

/// Elements of one step along a dimension of a dense tensor.
std::int64_t inner_elements(const HbmView& v, std::size_t dim) {
  std::int64_t n = 1;
  for (std::size_t d = dim + 1; d < v.rank(); ++d) n *= v.sizes[d];
  return n;
}

/// True when runs of `run` elements of `out` are better put together on chip.
bool is_joined(const HbmView& out, std::size_t dim, std::int64_t run) {
  const int size = isa::size_bytes(out.dtype);
  return flat_stride(out) == 1 && out.elements() >= kWorthLayout && run * size < kShortRun &&
         out.sizes[dim] * inner_elements(out, dim) * size <= kLongestJoinedRow;
}

/// Parts that are short runs of each row: interleaved pairs, a column next to others. False: they
/// are long enough to be written by themselves.
bool join_parts(Lowering& lowering, const Node& node, std::uint32_t kernel, const HbmView& out,
                std::size_t dim) {
  const bool stacks = plain_name(node.op) == "stack";
  const std::int64_t inner = inner_elements(out, dim);
  std::vector<RowPart> parts;
  std::int64_t at = 0, shortest = out.elements();
  for (std::uint32_t id : node.inputs) {
    const HbmView part = lowering.view(id);
    if (part.elements() == 0) continue;
    const std::int64_t run = (stacks ? 1 : part.sizes[dim]) * inner;
    parts.push_back({part, at, {{1, static_cast<std::int32_t>(run)}}});
    at += run;
    shortest = std::min(shortest, run);
  }
  if (parts.empty() || !is_joined(out, dim, shortest)) return false;
  join_rows(lowering, kernel, out, at, parts, std::nullopt);
  return true;
}

}  // namespace

void lower_cat(Lowering& lowering, const Node& node, std::uint32_t index) {
  const std::string name = plain_name(node.op);
  const HbmView out = lowering.output(node, 0);
  const auto kernel = lowering.kernel(name, index, 0);
  const std::size_t dim = dimension(Scalars(node.scalars).integer("dim", 0), out.rank());
  if (join_parts(lowering, node, kernel, out, dim)) return;
  std::int64_t at = 0;
  for (std::uint32_t id : node.inputs) {
    const HbmView part = lowering.view(id);
    if (part.elements() == 0) continue;
    const std::int64_t size = name == "stack" ? 1 : part.sizes[dim];
    const HbmView place = slice(out, dim, at, size);
    copy_view(lowering, kernel, name == "stack" ? without(place, dim) : place, part);
    at += size;
  }
}

namespace {

/// Where slice_backward and select_backward put their input.
struct Slice {
  std::size_t dim = 0;
  std::int64_t start = 0, size = 1, step = 1;
};
Slice slice_of(const Node& node, const HbmView& out, const HbmView& in) {
  const Scalars scalars(node.scalars);
  const bool selects = plain_name(node.op) == "select_backward";
  Slice place;
  place.dim = dimension(scalars.integer("dim", 0), out.rank());
  place.start = scalars.integer(selects ? "index" : "start", 0);
  if (place.start < 0) place.start += out.sizes[place.dim];
  if (selects) return place;
  place.size = in.sizes[place.dim];
  place.step = scalars.integer("step", 1);
  return place;
}

/// A slice of short runs is put into rows of zeros on chip. False: it is written by itself.
bool join_slice(Lowering& lowering, const Node& node, std::uint32_t kernel) {
  const HbmView out = lowering.output(node, 0), in = lowering.input(node, 0);
  const Slice place = slice_of(node, out, in);
  const std::int64_t inner = inner_elements(out, place.dim);
  const std::int64_t run = place.step == 1 ? place.size * inner : inner;
  if (!is_joined(out, place.dim, run)) return false;
  const RowPart part{in,
                     place.start * inner,
                     {{place.step * inner, static_cast<std::int32_t>(place.size)},
                      {1, static_cast<std::int32_t>(inner)}}};
  join_rows(lowering, kernel, out, out.sizes[place.dim] * inner, {part}, 0.0);
  return true;
}

}  // namespace

/// slice_backward, select_backward, constant_pad_nd: a fill, then the input into its place.
void lower_padded(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const std::string name = plain_name(node.op);
  const HbmView out = lowering.output(node, 0), in = lowering.input(node, 0);
  const auto kernel = lowering.kernel(name, index, 0);
  if (name != "constant_pad_nd" && in.elements() > 0 && join_slice(lowering, node, kernel)) return;
  fill_view(lowering, kernel, out, name == "constant_pad_nd" ? scalars.number("value", 0) : 0);
  if (in.elements() == 0) return;
  if (name == "constant_pad_nd") {
    const auto pad = scalars.list("pad");
    HbmView place = out, part = in;
    for (std::size_t d = 0; d < out.rank(); ++d) {
      const std::size_t p = 2 * (out.rank() - 1 - d);
      const std::int64_t before = p < pad.size() ? pad[p] : 0;
      const std::int64_t skip = std::max<std::int64_t>(-before, 0),
                         start = std::max<std::int64_t>(before, 0);
      const std::int64_t size = std::min(in.sizes[d] - skip, out.sizes[d] - start);
      place = slice(place, d, start, size);
      part = slice(part, d, skip, size);
    }
    return copy_view(lowering, kernel, place, part);
  }
  const Slice place = slice_of(node, out, in);
  const HbmView target = slice(out, place.dim, place.start, place.size, place.step);
  copy_view(lowering, kernel, name == "select_backward" ? without(target, place.dim) : target, in);
}

/// out seen as [times₀, size₀, times₁, size₁, …] is the input with stride 0 over the times.
void lower_repeat(Lowering& lowering, const Node& node, std::uint32_t index) {
  const HbmView out = lowering.output(node, 0), in = lowering.input(node, 0);
  HbmView target = out, source = in;
  target.sizes.clear(), target.strides.clear(), source.sizes.clear(), source.strides.clear();
  for (std::size_t d = 0; d < out.rank(); ++d) {
    const bool has = d + in.rank() >= out.rank();
    const std::size_t i = has ? d + in.rank() - out.rank() : 0;
    const std::int64_t size = has ? in.sizes[i] : 1;
    target.sizes.insert(target.sizes.end(), {out.sizes[d] / size, size});
    target.strides.insert(target.strides.end(), {out.strides[d] * size, out.strides[d]});
    source.strides.insert(source.strides.end(), {0, has ? in.strides[i] : 0});
  }
  source.sizes = target.sizes;
  copy_view(lowering, lowering.kernel(plain_name(node.op), index, 0), target, source);
}

/// arange: kIota counts along a tile; tiles that do not start at 0 start at their first value.
void lower_range(Lowering& lowering, const Node& node, std::uint32_t index) {
  const HbmView out = lowering.output(node, 0);
  const Scalars scalars(node.scalars);
  const double start = scalars.number("start", 0), step = scalars.number("step", 1);
  const auto kernel = lowering.kernel(plain_name(node.op), index, 0);
  Phase phase(kernel);
  constexpr std::int64_t kWidth = 2048;
  const std::int64_t n = out.elements(), stride = out.strides.empty() ? 1 : out.strides[0];
  for (std::int64_t at = 0; at < n;) {
    const std::int64_t width = std::min(std::max<std::int64_t>((n - at) / kP, 1), kWidth);
    const int rows = static_cast<int>(std::min(kP, (n - at) / width));
    phase.scope([&] {
      const Ref tile = phase.at(phase.sbuf(width * 4), out.dtype, rows, row(width));
      auto& iota = phase.emit(Engine::kGpSimd, Opcode::kIota, tile);
      iota.imm0 = start + step * static_cast<double>(at);
      iota.imm1 = step;
      phase.store(
          Phase::hbm(out.buffer, out.dtype, rows, width * stride,
                     {{stride, static_cast<std::int32_t>(width)}}, Index(out.offset + at * stride)),
          tile);
    });
    at += rows * width;
  }
  lowering.builder().append(std::move(phase));
}

/// item(): the host reads one element; on the device it is a small transfer to a place that the
/// host can see.
void lower_to_host(Lowering& lowering, const Node& node, std::uint32_t index) {
  const HbmView in = lowering.input(node, 0);
  Phase phase(lowering.kernel(plain_name(node.op), index, 0));
  const auto mailbox = lowering.builder().scratch(isa::size_bytes(in.dtype));
  phase.store(Phase::hbm(mailbox, in.dtype, 1, 0, row(1), Index(0)),
              Phase::hbm(in.buffer, in.dtype, 1, 0, row(1), Index(in.offset)));
  lowering.builder().append(std::move(phase));
}

void lower_estimate(Lowering& lowering, const Node& node, std::uint32_t index, double passes) {
  const std::string name = plain_name(node.op);
  const auto kernel = lowering.kernel(name, index, node_flops(lowering.graph(), node), true);
  Phase phase(kernel);
  constexpr std::int64_t kWidth = 2048;
  // Every operand once through SBUF, and the passes over the largest one.
  const auto whole = [&](const HbmView& v, bool writes, double here) {
    const std::int64_t n = v.elements(), size = isa::size_bytes(v.dtype);
    if (n == 0) return;
    const auto tile = [&](const Index& at, int rows, std::int64_t width) {
      const Ref t = phase.at(phase.sbuf(width * size, 2), v.dtype, rows, row(width));
      const Ref memory = Phase::hbm(v.buffer, v.dtype, rows, width, row(width), at);
      if (!writes) phase.load(t, memory);
      if (here > 0)
        phase.emit(Engine::kGpSimd, Opcode::kGeneric, t, writes ? Ref{} : t).imm0 = here;
      if (writes && here == 0) phase.memset(t, 0);
      if (writes) phase.store(memory, t);
    };
    // The bytes count, not their order: a strided view is walked as if it were dense, inside what
    // it reaches.
    const std::int64_t first = v.offset;
    std::int64_t reach = 1;
    for (std::size_t d = 0; d < v.rank(); ++d) reach += v.strides[d] * (v.sizes[d] - 1);
    const std::int64_t count = std::min(n, reach), block = kP * kWidth;
    phase.loop(count / block, [&](const Index& i) { tile(Index(first) + i * block, kP, kWidth); });
    const std::int64_t done = count / block * block, rest = count - done;
    if (rest >= kP) phase.scope([&] { tile(first + done, kP, rest / kP); });
    const std::int64_t last = done + (rest >= kP ? rest / kP * kP : 0);
    if (last < count) phase.scope([&] { tile(first + last, 1, count - last); });
  };
  std::int64_t most_in = 0, most_out = 0;
  for (std::uint32_t v : node.inputs) most_in = std::max(most_in, lowering.view(v).elements());
  for (std::uint32_t v : node.outputs) most_out = std::max(most_out, lowering.view(v).elements());
  double left = passes;
  const auto spend = [&](std::int64_t elements, std::int64_t most) {
    return elements == most ? std::exchange(left, 0.0) : 0.0;
  };
  for (std::uint32_t v : node.inputs)
    whole(lowering.view(v), false,
          most_in >= most_out ? spend(lowering.view(v).elements(), most_in) : 0);
  for (std::uint32_t v : node.outputs)
    whole(lowering.view(v), true,
          most_in < most_out ? spend(lowering.view(v).elements(), most_out) : 0);
  lowering.estimated().push_back(name);
  if (phase.entries().empty()) return;
  lowering.builder().append(std::move(phase));
}

}  // namespace trellis::device
