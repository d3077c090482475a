#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

namespace trellis::device {
namespace {

using at::Tensor;
using OptionalDims = at::OptionalIntArrayRef;

/// The sizes that are left when `dims` (none: all) are reduced.
at::DimVector reduced_sizes(const Tensor& self, OptionalDims dims, bool keepdim) {
  const bool all = !dims.has_value() || dims->empty();
  const auto mask =
      at::dim_list_to_bitset(all ? OptionalDims() : dims, static_cast<std::size_t>(self.dim()));
  at::DimVector sizes;
  for (std::int64_t i = 0; i < self.dim(); ++i) {
    if (!mask[static_cast<std::size_t>(i)]) {
      sizes.push_back(self.size(i));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

Tensor reduced(const Tensor& self, OptionalDims dims, bool keepdim, c10::ScalarType type) {
  return at::empty(reduced_sizes(self, dims, keepdim), self.options().dtype(type));
}

Tensor to_scalar(const Tensor& self) { return at::empty({}, self.options()); }

Tensor& to_scalar_out(const Tensor&, Tensor& out) { return out.resize_(at::IntArrayRef{}), out; }

std::vector<Tensor> each_to_scalar(at::TensorList tensors) {
  std::vector<Tensor> scalars;
  for (const Tensor& tensor : tensors) scalars.push_back(to_scalar(tensor));
  return scalars;
}

Tensor dot(const Tensor& self, const Tensor&) { return to_scalar(self); }

c10::ScalarType accumulated(const Tensor& self, std::optional<c10::ScalarType> type) {
  return type.value_or(c10::isIntegralType(self.scalar_type(), true) ? c10::kLong
                                                                     : self.scalar_type());
}

Tensor prod(const Tensor& self, std::optional<c10::ScalarType> type) {
  return at::empty({}, self.options().dtype(accumulated(self, type)));
}

Tensor nansum(const Tensor& self, OptionalDims dims, bool keepdim,
              std::optional<c10::ScalarType> type) {
  return reduced(self, dims, keepdim, accumulated(self, type));
}

Tensor trace(const Tensor& self) {
  return at::empty({}, self.options().dtype(accumulated(self, std::nullopt)));
}

Tensor variance(const Tensor& self, OptionalDims dims, const std::optional<at::Scalar>&,
                bool keepdim) {
  return reduced(self, dims, keepdim, c10::toRealValueType(self.scalar_type()));
}

Tensor& variance_out(const Tensor& self, OptionalDims dims, const std::optional<at::Scalar>&,
                     bool keepdim, Tensor& out) {
  return out.resize_(reduced_sizes(self, dims, keepdim)), out;
}

std::tuple<Tensor, Tensor> variance_and_mean(const Tensor& self, OptionalDims dims,
                                             const std::optional<at::Scalar>&, bool keepdim) {
  return {reduced(self, dims, keepdim, c10::toRealValueType(self.scalar_type())),
          reduced(self, dims, keepdim, self.scalar_type())};
}

Tensor count_nonzero(const Tensor& self, at::IntArrayRef dims) {
  return reduced(self, dims, false, c10::kLong);
}

std::tuple<Tensor, Tensor> aminmax(const Tensor& self) {
  return {to_scalar(self), to_scalar(self)};
}

std::tuple<Tensor, Tensor> aminmax_dim(const Tensor& self, std::int64_t dim, bool keepdim) {
  return {reduced(self, dim, keepdim, self.scalar_type()),
          reduced(self, dim, keepdim, self.scalar_type())};
}

/// One element of each row, and where it was.
std::tuple<Tensor&, Tensor&> selected_out(const Tensor& self, std::int64_t dim, bool keepdim,
                                          Tensor& values, Tensor& indices) {
  const at::DimVector sizes = reduced_sizes(self, dim, keepdim);
  values.resize_(sizes);
  indices.resize_(sizes);
  return {values, indices};
}
std::tuple<Tensor&, Tensor&> kthvalue_out(const Tensor& self, c10::SymInt, std::int64_t dim,
                                          bool keepdim, Tensor& values, Tensor& indices) {
  return selected_out(self, dim, keepdim, values, indices);
}
std::tuple<Tensor, Tensor> mode(const Tensor& self, std::int64_t dim, bool keepdim) {
  return {reduced(self, dim, keepdim, self.scalar_type()), reduced(self, dim, keepdim, c10::kLong)};
}

Tensor logcumsumexp(const Tensor& self, std::int64_t) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

Tensor logsumexp(const Tensor& self, at::IntArrayRef dims, bool keepdim) {
  const bool integral = c10::isIntegralType(self.scalar_type(), true);
  return reduced(self, dims, keepdim,
                 integral ? c10::get_default_dtype_as_scalartype() : self.scalar_type());
}

}  // namespace

void add_reduction_shapes(ShapeTable& table) {
  for (const char* op : {"aten::max", "aten::min", "aten::median", "aten::nanmedian"})
    table.add(op, &to_scalar);
  table.add("aten::max.unary_out", &to_scalar_out);
  table.add("aten::min.unary_out", &to_scalar_out);
  table.add("aten::_foreach_max", &each_to_scalar);
  table.add("aten::dot", &dot);
  table.add("aten::vdot", &dot);
  table.add("aten::prod", &prod);
  table.add("aten::nansum", &nansum);
  table.add("aten::trace", &trace);
  table.add("aten::var.correction", &variance);
  table.add("aten::std.correction", &variance);
  table.add("aten::var.correction_out", &variance_out);
  table.add("aten::std.correction_out", &variance_out);
  table.add("aten::var_mean.correction", &variance_and_mean);
  table.add("aten::std_mean.correction", &variance_and_mean);
  table.add("aten::count_nonzero.dim_IntList", &count_nonzero);
  table.add("aten::_aminmax", &aminmax);
  table.add("aten::_aminmax.dim", &aminmax_dim);
  table.add("aten::median.dim_values", &selected_out);
  table.add("aten::nanmedian.dim_values", &selected_out);
  table.add("aten::kthvalue.values", &kthvalue_out);
  table.add("aten::mode", &mode);
  table.add("aten::_logcumsumexp", &logcumsumexp);
  table.add_no_result("aten::_cummax_helper");
  table.add_no_result("aten::_cummin_helper");
  table.add("aten::logsumexp", &logsumexp);
}

}  // namespace trellis::device
