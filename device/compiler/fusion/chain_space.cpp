#include "device/compiler/fusion/chain_space.h"

#include <algorithm>

namespace trellis::device {
namespace {

using Dimension = ChainSpace::Dimension;

std::vector<Dimension> collapsed(const Chain& chain,
                                 const std::vector<std::vector<std::int64_t>>& strides,
                                 bool reduced) {
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<std::int64_t>> kept(strides.size());
  for (std::size_t d = 0; d < chain.sizes.size(); ++d) {
    const bool is_reduced = !chain.reduced.empty() && chain.reduced[d];
    if (is_reduced != reduced || chain.sizes[d] == 1) continue;
    sizes.push_back(chain.sizes[d]);
    for (std::size_t v = 0; v < strides.size(); ++v) kept[v].push_back(strides[v][d]);
  }
  if (sizes.empty()) return {};
  collapse(sizes, kept);
  std::vector<Dimension> out(sizes.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    out[d].size = sizes[d];
    for (const auto& v : kept) out[d].strides.push_back(v[d]);
  }
  return out;
}

Dimension unit(std::size_t operands) { return {1, std::vector<std::int64_t>(operands, 0)}; }

constexpr std::int64_t kShortRow = 64;  // elements

/// Cuts a dimension into outer × inner.
std::pair<Dimension, Dimension> cut(const Dimension& d, std::int64_t inner) {
  Dimension outer{d.size / inner, d.strides}, rest{inner, d.strides};
  for (auto& s : outer.strides) s *= inner;
  return {outer, rest};
}

/// The dimension that fills the partitions best; the inner one among equals.
std::size_t best_rows(const std::vector<Dimension>& dims, std::size_t count) {
  std::size_t best = 0;
  for (std::size_t d = 0; d < count; ++d) {
    if (std::min(dims[d].size, kPartitions) >= std::min(dims[best].size, kPartitions)) best = d;
  }
  return best;
}

/// A flat space: rows of `w` elements, and what is left after them.
ChainSpace flat_space(const Dimension& d, std::int64_t widest) {
  ChainSpace space;
  const std::int64_t w = std::clamp<std::int64_t>((d.size + kPartitions - 1) / kPartitions,
                                                  std::min<std::int64_t>(d.size, 16), widest);
  std::tie(space.rows, std::ignore) = cut(d, w);
  space.columns = {{w, d.strides}};
  space.remainder_at = space.rows.size * w;
  space.remainder = d.size - space.remainder_at;
  return space;
}

std::int64_t even_cut(std::int64_t size, std::int64_t widest) {
  for (std::int64_t w = std::min(size / kPartitions, widest); w >= 64; --w) {
    if (size % w == 0) return w;
  }
  return 0;
}

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  while (most > 1 && of % most != 0) --most;
  return most;
}

/// With `next` around the columns an operand that has one element per row would have several, each
/// read for many columns: element by element.
bool breaks_row(const ChainSpace& space, const Dimension& next) {
  for (std::size_t v = 0; v < next.strides.size(); ++v) {
    const bool row = std::all_of(space.columns.begin(), space.columns.end(),
                                 [&](const Dimension& c) { return c.strides[v] == 0; });
    if (row && next.strides[v] != 0) return true;
  }
  return false;
}

/// Several rows of the innermost loop on a partition: each has its own number per row.
void group_loop(ChainSpace& space, std::vector<Dimension>& loops, std::int64_t most) {
  const std::int64_t part = largest_divisor(loops.back().size, most / space.width());
  if (part <= 1) return;
  const auto [outer, inner] = cut(loops.back(), part);
  space.group = inner;
  loops.back() = outer;
}

ChainSpace grid_space(std::vector<Dimension> dims, std::int64_t widest) {
  ChainSpace space;
  if (dims[best_rows(dims, dims.size() - 1)].size < 32) {
    if (const std::int64_t w = even_cut(dims.back().size, widest); w > 0) {
      const auto [outer, inner] = cut(dims.back(), w);
      dims.back() = outer;
      dims.push_back(inner);
    }
  }
  const std::size_t rows = best_rows(dims, dims.size() - 1);
  space.rows = dims[rows];
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(rows));
  space.columns = {dims.back()};
  dims.pop_back();
  const std::int64_t most = std::min<std::int64_t>(widest, 2048);
  while (!dims.empty() && space.columns.size() < 3 && space.width() * dims.back().size <= most &&
         !breaks_row(space, dims.back())) {
    space.columns.insert(space.columns.begin(), dims.back());
    dims.pop_back();
  }
  if (!dims.empty() && space.columns.size() < 3 && !breaks_row(space, dims.back())) {
    if (const std::int64_t part = largest_divisor(dims.back().size, most / space.width());
        part > 1) {
      const auto [outer, inner] = cut(dims.back(), part);
      dims.back() = outer;
      space.columns.insert(space.columns.begin(), inner);
    }
  }
  if (!dims.empty() && breaks_row(space, dims.back())) group_loop(space, dims, most);
  space.loops = std::move(dims);
  return space;
}

/// The kept dimension on the partitions. With short rows it is not the innermost one where another
/// one fills the partitions too: a group of neighbouring rows makes a long run then.
std::size_t rows_of_reduction(const std::vector<Dimension>& kept, std::int64_t width) {
  if (width < kShortRow && kept.size() > 1) {
    const std::size_t outer = best_rows(kept, kept.size() - 1);
    if (kept[outer].size >= kPartitions / 2) return outer;
  }
  return best_rows(kept, kept.size());
}

}  // namespace

std::int64_t ChainSpace::width() const {
  std::int64_t n = 1;
  for (const auto& c : columns) n *= c.size;
  return n;
}

void group_rows(ChainSpace& space, std::int64_t widest) {
  std::int64_t together = 1;
  while (2 * together * space.width() <= widest && space.rows.size % (2 * together) == 0 &&
         space.rows.size / (2 * together) >= kPartitions)
    together *= 2;
  const bool from_loop = !space.loops.empty() && space.width() < widest &&
                         (together == 1 || space.width() < kShortRow);
  if (from_loop) return group_loop(space, space.loops, widest);
  if (together > 1) std::tie(space.rows, space.group) = cut(space.rows, together);
}

std::vector<std::vector<std::int64_t>> operand_strides(const Chain& chain) {
  std::vector<std::vector<std::int64_t>> out;
  for (const auto& v : chain.values) {
    if (v.input) out.push_back(v.strides);
  }
  for (const auto& o : chain.outputs) out.push_back(o.strides);
  return out;
}

ChainSpace plan_space(const Chain& chain, std::int64_t widest) {
  const auto strides = operand_strides(chain);
  std::vector<Dimension> kept = collapsed(chain, strides, false);
  std::vector<Dimension> reduced = collapsed(chain, strides, true);
  if (reduced.empty()) {
    if (kept.empty()) kept.push_back(unit(strides.size()));
    if (kept.size() == 1) return flat_space(kept[0], widest);
    return grid_space(std::move(kept), widest);
  }
  ChainSpace space;
  space.columns = std::move(reduced);
  if (kept.empty()) kept.push_back(unit(strides.size()));
  const std::size_t rows = rows_of_reduction(kept, space.width());
  space.rows = kept[rows];
  kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(rows));
  space.loops = std::move(kept);
  return space;
}

}  // namespace trellis::device
