#include <algorithm>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index.h>

#include "device/aten/kernel_tables.h"
#include "device/aten/shape_tables.h"

namespace trellis::device {
namespace {

using at::Tensor;
using Indices = c10::List<std::optional<Tensor>>;

at::DimVector selected_sizes(const Tensor& self, std::int64_t dim, const Tensor& index) {
  at::DimVector sizes(self.sizes());
  if (!sizes.empty()) sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return sizes;
}

Tensor index_select(const Tensor& self, std::int64_t dim, const Tensor& index) {
  return at::empty(selected_sizes(self, dim, index), self.options());
}

Tensor& index_select_out(const Tensor& self, std::int64_t dim, const Tensor& index, Tensor& out) {
  return out.resize_(selected_sizes(self, dim, index)), out;
}

bool is_mask(const std::optional<Tensor>& index) {
  return index.has_value() && index->defined() && (index->scalar_type() == c10::kBool || index->scalar_type() == c10::kByte);
}

Tensor index(const Tensor& self, const Indices& indices) {
  for (const std::optional<Tensor> one : indices) {
    if (is_mask(one)) throw DataDependent{"compute with the mask itself (where, multiplication) instead of selecting by it"};
  }
  return at::index(self, indices);
}

Tensor& index_put_(Tensor& self, const Indices&, const Tensor&, bool) { return self; }
Tensor& index_put_impl_(Tensor& self, const Indices&, const Tensor&, bool, bool) { return self; }

Tensor take(const Tensor& self, const Tensor& index) { return at::empty(index.sizes(), self.options()); }

Tensor flip(const Tensor& self, at::IntArrayRef) { return at::empty_like(self, at::MemoryFormat::Preserve); }

Tensor roll(const Tensor& self, at::IntArrayRef, at::IntArrayRef) {
  return at::empty_like(self, self.numel() == 0 ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous);
}

Tensor& randperm_out(std::int64_t n, std::optional<at::Generator>, Tensor& out) { return out.resize_({n}), out; }

Tensor multinomial(const Tensor& self, std::int64_t samples, bool, std::optional<at::Generator>) {
  at::DimVector sizes(self.sizes());
  sizes.back() = samples;
  return at::empty(sizes, self.options().dtype(c10::kLong));
}

Tensor histc(const Tensor& self, std::int64_t bins, const at::Scalar&, const at::Scalar&) { return at::empty({bins}, self.options()); }

Tensor searchsorted(const Tensor&, const Tensor& self, bool out_int32, bool, std::optional<std::string_view>,
                    const std::optional<Tensor>&) {
  return at::empty(self.sizes(), self.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}

Tensor bucketize(const Tensor& self, const Tensor&, bool out_int32, bool) {
  return at::empty(self.sizes(), self.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<std::int64_t> output_size) {
  if (!output_size.has_value()) throw DataDependent{"pass output_size"};
  return at::empty({*output_size}, repeats.options());
}

/// Elements of the triangle of a row × column matrix below (above) the diagonal at `offset`.
std::int64_t triangle(std::int64_t rows, std::int64_t columns, std::int64_t offset) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row) count += std::clamp<std::int64_t>(row + offset + 1, 0, columns);
  return count;
}

Tensor pairs(std::int64_t count, std::optional<c10::ScalarType> type) {
  return at::empty({2, count}, at::TensorOptions(type.value_or(c10::kLong)).device(c10::kMeta));
}

Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, std::optional<c10::ScalarType> type,
                    std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return pairs(triangle(rows, columns, offset), type);
}

Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, std::optional<c10::ScalarType> type,
                    std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return pairs(rows * columns - triangle(rows, columns, offset - 1), type);
}

}  // namespace

void add_indexing_shapes(ShapeTable& table) {
  table.add("aten::index_select", &index_select);
  table.add("aten::index_select.out", &index_select_out);
  table.add("aten::index.Tensor", &index);
  table.add("aten::index_put_", &index_put_);
  table.add("aten::_index_put_impl_", &index_put_impl_);
  table.add("aten::take", &take);
  table.add("aten::flip", &flip);
  table.add("aten::roll", &roll);
  table.add("aten::randperm.generator_out", &randperm_out);
  table.add("aten::multinomial", &multinomial);
  table.add("aten::histc", &histc);
  table.add("aten::searchsorted.Tensor", &searchsorted);
  table.add("aten::bucketize.Tensor", &bucketize);
  table.add("aten::repeat_interleave.Tensor", &repeat_interleave);
  table.add("aten::tril_indices", &tril_indices);
  table.add("aten::triu_indices", &triu_indices);
}

}  // namespace trellis::device
