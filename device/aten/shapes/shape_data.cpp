#include <ATen/ExpandUtils.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/t.h>

#include "device/aten/shapes/kernel_tables.h"
#include "device/aten/shapes/shape_policy.h"
#include "device/aten/shapes/shape_tables.h"

/// Operators whose result sizes depend on data: refused, or given their upper bound
/// (shape_policy.h).
namespace trellis::device {
namespace {

using at::Tensor;

constexpr const char* kMaskHint =
    "compute with the mask itself (where, multiplication) instead of selecting by it, or accept "
    "upper bounds (shape_policy)";
constexpr const char* kUniqueHint =
    "run this step in materialised mode, or accept upper bounds (shape_policy)";

Tensor nonzero(const Tensor& self) {
  accept_upper_bound(kMaskHint);
  return at::empty({self.dim(), self.numel()}, self.options().dtype(c10::kLong))
      .t();  // the CPU fills a coordinate at a time
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  accept_upper_bound(kMaskHint);
  std::int64_t count = 1;
  for (const std::int64_t size : at::infer_size_dimvector(self.sizes(), mask.sizes()))
    count *= size;
  return at::empty({count}, self.options());
}

bool is_mask(const Tensor& index) {
  return index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte;
}

/// A mask of k dimensions selects like k vectors of positions.
Tensor indexed(const Tensor& self, const c10::List<std::optional<Tensor>>& indices) {
  c10::List<std::optional<Tensor>> positions;
  for (const std::optional<Tensor> one : indices) {
    if (!one.has_value() || !one->defined() || !is_mask(*one)) {
      positions.push_back(one);
      continue;
    }
    accept_upper_bound(kMaskHint);
    const Tensor all = at::empty({one->numel()}, one->options().dtype(c10::kLong));
    for (std::int64_t d = 0; d < one->dim(); ++d) positions.push_back(all);
  }
  return at::index(self, positions);
}

Tensor& index_out(const Tensor& self, const c10::List<std::optional<Tensor>>& indices,
                  Tensor& out) {
  return out.resize_(indexed(self, indices).sizes()), out;
}

/// values, inverse, counts of the elements of `self`.
std::tuple<Tensor, Tensor, Tensor> unique_elements(const Tensor& self, bool inverse, bool counts) {
  accept_upper_bound(kUniqueHint);
  const auto positions = self.options().dtype(c10::kLong);
  const at::IntArrayRef none = {0};
  return {at::empty({self.numel()}, self.options()),
          at::empty(inverse ? self.sizes() : none, positions),
          at::empty({counts ? self.numel() : 0}, positions)};
}

std::tuple<Tensor, Tensor> unique(const Tensor& self, bool, bool inverse) {
  const auto [values, positions, counts] = unique_elements(self, inverse, false);
  return {values, positions};
}
std::tuple<Tensor, Tensor, Tensor> unique2(const Tensor& self, bool, bool inverse, bool counts) {
  return unique_elements(self, inverse, counts);
}

/// … of the slices along a dimension.
std::tuple<Tensor, Tensor, Tensor> unique_slices(const Tensor& self, std::int64_t dim) {
  accept_upper_bound(kUniqueHint);
  const auto positions = self.options().dtype(c10::kLong);
  return {at::empty(self.sizes(), self.options()), at::empty({self.size(dim)}, positions),
          at::empty({self.size(dim)}, positions)};
}
std::tuple<Tensor, Tensor, Tensor> unique_dim(const Tensor& self, std::int64_t dim, bool, bool,
                                              bool) {
  return unique_slices(self, dim);
}
std::tuple<Tensor, Tensor, Tensor> unique_dim_consecutive(const Tensor& self, std::int64_t dim,
                                                          bool, bool) {
  return unique_slices(self, dim);
}
std::tuple<Tensor, Tensor, Tensor> unique_consecutive(const Tensor& self, bool inverse, bool counts,
                                                      std::optional<std::int64_t> dim) {
  return dim.has_value() ? unique_slices(self, *dim) : unique_elements(self, inverse, counts);
}

[[noreturn]] void refuse(const char* hint) { throw DataDependent{hint}; }

Tensor repeat_interleave(const Tensor& repeats, std::optional<std::int64_t> output_size) {
  if (!output_size.has_value()) refuse("pass output_size");
  return at::empty({*output_size}, repeats.options());
}
Tensor bincount(const Tensor&, const std::optional<Tensor>&, c10::SymInt) {
  refuse("count with scatter_add into a tensor of known size");
}
bool equal(const Tensor&, const Tensor&) {
  refuse("compare on the CPU, or skip the comparison in shape-only mode");
}

}  // namespace

void add_data_dependent_shapes(ShapeTable& table) {
  table.add("aten::nonzero", &nonzero);
  table.add("aten::masked_select", &masked_select);
  table.add("aten::index.Tensor", &indexed);
  table.add("aten::index.Tensor_out", &index_out);
  table.add("aten::_unique", &unique);
  table.add("aten::_unique2", &unique2);
  table.add("aten::unique_dim", &unique_dim);
  table.add("aten::unique_consecutive", &unique_consecutive);
  table.add("aten::unique_dim_consecutive", &unique_dim_consecutive);
  table.add("aten::repeat_interleave.Tensor", &repeat_interleave);
  table.add("aten::bincount", &bincount);
  table.add("aten::equal", &equal);
}

}  // namespace trellis::device
