#include <algorithm>

#include <ATen/WrapDimUtils.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

namespace trellis::device {
namespace {

using at::Tensor;
using Indices = c10::List<std::optional<Tensor>>;

at::DimVector selected_sizes(const Tensor& self, std::int64_t dim, const Tensor& index) {
  at::DimVector sizes(self.sizes());
  if (!sizes.empty())
    sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return sizes;
}

Tensor index_select(const Tensor& self, std::int64_t dim, const Tensor& index) {
  return at::empty(selected_sizes(self, dim, index), self.options());
}

Tensor& index_select_out(const Tensor& self, std::int64_t dim, const Tensor& index, Tensor& out) {
  return out.resize_(selected_sizes(self, dim, index)), out;
}

Tensor& index_put_(Tensor& self, const Indices&, const Tensor&, bool) { return self; }
Tensor& index_put_impl_(Tensor& self, const Indices&, const Tensor&, bool, bool) { return self; }

Tensor take(const Tensor& self, const Tensor& index) {
  return at::empty(index.sizes(), self.options());
}

Tensor flip(const Tensor& self, at::IntArrayRef) {
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

Tensor roll(const Tensor& self, at::IntArrayRef, at::IntArrayRef) {
  return at::empty_like(
      self, self.numel() == 0 ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous);
}

Tensor& randperm_out(std::int64_t n, std::optional<at::Generator>, Tensor& out) {
  return out.resize_({n}), out;
}

Tensor multinomial(const Tensor& self, std::int64_t samples, bool, std::optional<at::Generator>) {
  at::DimVector sizes(self.sizes());
  sizes.back() = samples;
  return at::empty(sizes, self.options().dtype(c10::kLong));
}

Tensor histc(const Tensor& self, std::int64_t bins, const at::Scalar&, const at::Scalar&) {
  return at::empty({bins}, self.options());
}

Tensor searchsorted(const Tensor&, const Tensor& self, bool out_int32, bool,
                    std::optional<std::string_view>, const std::optional<Tensor>&) {
  return at::empty(self.sizes(), self.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}

Tensor bucketize(const Tensor& self, const Tensor&, bool out_int32, bool) {
  return at::empty(self.sizes(), self.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}

Tensor search_scalar(const Tensor& boundaries, bool out_int32) {
  return at::empty({}, boundaries.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}
Tensor searchsorted_scalar(const Tensor& sorted, const at::Scalar&, bool out_int32, bool,
                           std::optional<std::string_view>, const std::optional<Tensor>&) {
  return search_scalar(sorted, out_int32);
}
Tensor bucketize_scalar(const at::Scalar&, const Tensor& boundaries, bool out_int32, bool) {
  return search_scalar(boundaries, out_int32);
}

Tensor nonzero_static(const Tensor& self, c10::SymInt size, std::int64_t) {
  return at::empty({size.expect_int(), self.dim()}, self.options().dtype(c10::kLong));
}

Tensor unfold_backward(const Tensor& grad, at::IntArrayRef input_sizes, std::int64_t, std::int64_t,
                       std::int64_t) {
  return at::empty(input_sizes, grad.options());
}

std::tuple<Tensor, Tensor> histogram(const Tensor& self, std::int64_t bins,
                                     std::optional<at::ArrayRef<double>>,
                                     const std::optional<Tensor>&, bool) {
  return {at::empty({bins}, self.options()), at::empty({bins + 1}, self.options())};
}
std::tuple<Tensor, Tensor> histogram_of_edges(const Tensor& self, const Tensor& edges,
                                              const std::optional<Tensor>&, bool) {
  return {at::empty({edges.numel() - 1}, self.options()),
          at::empty(edges.sizes(), edges.options())};
}
std::vector<Tensor> histogramdd_edges(const Tensor& self, at::IntArrayRef bins,
                                      std::optional<at::ArrayRef<double>>,
                                      const std::optional<Tensor>&, bool) {
  std::vector<Tensor> edges;
  for (const std::int64_t count : bins) edges.push_back(at::empty({count + 1}, self.options()));
  return edges;
}
Tensor histogramdd(const Tensor& self, at::IntArrayRef bins, std::optional<at::ArrayRef<double>>,
                   const std::optional<Tensor>&, bool) {
  return at::empty(bins, self.options());
}
Tensor histogramdd_of_edges(const Tensor& self, at::TensorList edges, const std::optional<Tensor>&,
                            bool) {
  at::DimVector sizes;
  for (const Tensor& edge : edges) sizes.push_back(edge.numel() - 1);
  return at::empty(sizes, self.options());
}

/// One row per segment along `axis`, which the last dimension of the lengths (or borders) shows.
Tensor segment_reduce(const Tensor& data, std::string_view, const std::optional<Tensor>& lengths,
                      const std::optional<Tensor>&, const std::optional<Tensor>& offsets,
                      std::int64_t axis, bool, const std::optional<at::Scalar>&) {
  at::DimVector sizes(data.sizes());
  const std::int64_t dim = at::maybe_wrap_dim(axis, data.dim());
  sizes[static_cast<std::size_t>(dim)] =
      lengths.has_value() ? lengths->size(dim) : offsets->size(dim) - 1;
  return at::empty(sizes, data.options());
}

/// Elements of the triangle of a row × column matrix below (above) the diagonal at `offset`.
std::int64_t triangle(std::int64_t rows, std::int64_t columns, std::int64_t offset) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    count += std::clamp<std::int64_t>(row + offset + 1, 0, columns);
  return count;
}

// LibTorch's Meta kernels look at positions of a dimension that may have none.
Tensor& index_add_out(const Tensor& self, std::int64_t, const Tensor&, const Tensor&,
                      const at::Scalar&, Tensor& out) {
  return out.resize_(self.sizes()), out;
}
Tensor& index_reduce_(Tensor& self, std::int64_t, const Tensor&, const Tensor&, std::string_view,
                      bool) {
  return self;
}

Tensor pairs(std::int64_t count, std::optional<c10::ScalarType> type) {
  return at::empty({2, count}, at::TensorOptions(type.value_or(c10::kLong)).device(c10::kMeta));
}

Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset,
                    std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                    std::optional<c10::Device>, std::optional<bool>) {
  return pairs(triangle(rows, columns, offset), type);
}

Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset,
                    std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                    std::optional<c10::Device>, std::optional<bool>) {
  return pairs(rows * columns - triangle(rows, columns, offset - 1), type);
}

}  // namespace

void add_indexing_shapes(ShapeTable& table) {
  table.add("aten::index_select", &index_select);
  table.add("aten::index_select.out", &index_select_out);
  table.add("aten::index_put_", &index_put_);
  table.add("aten::_index_put_impl_", &index_put_impl_);
  table.add("aten::index_add.out", &index_add_out);
  table.add("aten::index_reduce_", &index_reduce_);
  table.add("aten::take", &take);
  table.add("aten::flip", &flip);
  table.add("aten::roll", &roll);
  table.add("aten::randperm.generator_out", &randperm_out);
  table.add("aten::multinomial", &multinomial);
  table.add("aten::histc", &histc);
  table.add("aten::searchsorted.Tensor", &searchsorted);
  table.add("aten::bucketize.Tensor", &bucketize);
  table.add("aten::searchsorted.Scalar", &searchsorted_scalar);
  table.add("aten::bucketize.Scalar", &bucketize_scalar);
  table.add("aten::nonzero_static", &nonzero_static);
  table.add("aten::unfold_backward", &unfold_backward);
  table.add("aten::histogram.bin_ct", &histogram);
  table.add("aten::histogram.bins_tensor", &histogram_of_edges);
  table.add("aten::_histogramdd_bin_edges", &histogramdd_edges);
  table.add("aten::_histogramdd_from_bin_cts", &histogramdd);
  table.add("aten::_histogramdd_from_bin_tensors", &histogramdd_of_edges);
  table.add("aten::segment_reduce", &segment_reduce);
  table.add("aten::tril_indices", &tril_indices);
  table.add("aten::triu_indices", &triu_indices);
}

}  // namespace trellis::device
