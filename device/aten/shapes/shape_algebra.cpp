#include <algorithm>
#include <numeric>

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

/// Factorisations (LAPACK works on columns), distances, Fourier transforms.
namespace trellis::device {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;

c10::ScalarType complex_type(const Tensor& self) { return c10::toComplexType(self.scalar_type()); }

/// Matrices stored column by column.
Tensor columns(const Tensor& like, c10::ScalarType type) {
  return at::empty(like.mT().sizes(), like.options().dtype(type)).mT();
}
Tensor columns(const Tensor& like) { return columns(like, like.scalar_type()); }

Tensor cholesky(const Tensor& self, bool) {
  return self.numel() == 0 ? at::empty_like(self, at::MemoryFormat::Contiguous) : columns(self);
}
Tensor cholesky_inverse(const Tensor& self, bool) { return columns(self); }
Tensor cholesky_solve(const Tensor& self, const Tensor&, bool) { return columns(self); }
Tensor householder_product(const Tensor& input, const Tensor&) { return columns(input); }
Tensor ormqr(const Tensor&, const Tensor&, const Tensor& other, bool, bool) {
  return columns(other);
}
Tensor matrix_exp(const Tensor& self) { return at::empty_like(self, at::MemoryFormat::Contiguous); }

Two geqrf(const Tensor& self) {
  at::DimVector tau(self.sizes().slice(0, static_cast<std::size_t>(self.dim() - 1)));
  tau.back() = std::min(self.size(-1), self.size(-2));
  return {columns(self), at::empty(tau, self.options())};
}

Tensor eigenvalues(const Tensor& self) {
  return at::empty(self.sizes().slice(0, static_cast<std::size_t>(self.dim() - 1)),
                   self.options().dtype(complex_type(self)));
}
Two eig(const Tensor& self) { return {eigenvalues(self), columns(self, complex_type(self))}; }

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool, bool left, bool) {
  const std::int64_t rows = left ? a.size(-1) : b.size(-2), count = left ? b.size(-1) : a.size(-1);
  const auto batch = [](const Tensor& tensor) {
    return tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim() - 2));
  };
  at::DimVector sizes = at::infer_size_dimvector(batch(a), batch(b));
  sizes.append({count, rows});
  return at::empty(sizes, b.options()).mT();
}

// ── distances ──

Tensor cdist(const Tensor& x1, const Tensor& x2, double, std::optional<std::int64_t>) {
  const auto batch = [](const Tensor& tensor) {
    return tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim() - 2));
  };
  at::DimVector sizes = at::infer_size_dimvector(batch(x1), batch(x2));
  sizes.append({x1.size(-2), x2.size(-2)});
  return at::empty(sizes, x1.options());
}
Tensor cdist_backward(const Tensor&, const Tensor& x1, const Tensor& x2, double, const Tensor&) {
  const auto batch = [](const Tensor& tensor) {
    return tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim() - 2));
  };
  at::DimVector sizes = at::infer_size_dimvector(batch(x1), batch(x2));
  sizes.append({x1.size(-2), x1.size(-1)});
  return at::empty(sizes, x1.options());
}
Tensor pdist(const Tensor& self, double) {
  return at::empty({self.size(0) * (self.size(0) - 1) / 2}, self.options());
}
Tensor pdist_backward(const Tensor&, const Tensor& self, double, const Tensor&) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

// ── complex numbers ──

Tensor& complex_out(const Tensor& real, const Tensor& imag, Tensor& out) {
  at::TensorIteratorConfig()
      .add_output(out)
      .add_const_input(real)
      .add_const_input(imag)
      .check_all_same_dtype(false)
      .build();
  return out;
}

// ── Fourier transforms: transformed dimensions lie innermost, the others in the order of the
//    input's strides

using Dims = at::DimVector;

Tensor transformed(const Tensor& self, Dims sizes, const Dims& dims, c10::ScalarType type) {
  Dims order(static_cast<std::size_t>(self.dim()));
  std::iota(order.begin(), order.end(), 0);
  const auto is_batch = [&](std::int64_t d) {
    return std::find(dims.begin(), dims.end(), d) == dims.end();
  };
  const auto batch_end = std::partition(order.begin(), order.end(), is_batch);
  std::sort(order.begin(), batch_end,
            [&](std::int64_t a, std::int64_t b) { return self.stride(a) > self.stride(b); });
  std::copy(dims.begin(), dims.end(), batch_end);
  Dims strides(order.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    strides[d] = stride;
    stride *= std::max<std::int64_t>(sizes[d], 1);
  }
  const Tensor whole = at::empty(sizes, self.options().dtype(type));
  whole.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return whole;
}

/// The dimension with the smallest stride last; with `keep_last` the last one stays where it is.
Dims sorted_by_stride(const Tensor& self, at::IntArrayRef dim, bool keep_last) {
  Dims sorted(dim);
  std::sort(sorted.begin(), sorted.end() - static_cast<std::ptrdiff_t>(keep_last),
            [&](std::int64_t a, std::int64_t b) { return self.stride(a) > self.stride(b); });
  return sorted;
}

Tensor fft_c2c(const Tensor& self, at::IntArrayRef dim, std::int64_t, bool) {
  if (dim.empty()) return at::empty_like(self);
  return transformed(self, Dims(self.sizes()), sorted_by_stride(self, dim, false),
                     self.scalar_type());
}

Tensor fft_r2c(const Tensor& self, at::IntArrayRef dim, std::int64_t, bool onesided) {
  Dims sizes(self.sizes());
  auto& last = sizes[static_cast<std::size_t>(dim.back())];
  if (onesided) last = last / 2 + 1;
  return transformed(self, sizes, sorted_by_stride(self, dim, true), complex_type(self));
}

Tensor fft_c2r(const Tensor& self, at::IntArrayRef dim, std::int64_t, std::int64_t last_size) {
  Tensor input = self;
  if (dim.size() > 1) input = fft_c2c(self, dim.slice(0, dim.size() - 1), 0, false);
  Dims sizes(self.sizes());
  sizes[static_cast<std::size_t>(dim.back())] = last_size;
  return transformed(input, sizes, Dims{dim.back()}, c10::toRealValueType(self.scalar_type()));
}

}  // namespace

void add_algebra_shapes(ShapeTable& table) {
  table.add("aten::cholesky", &cholesky);
  table.add("aten::cholesky_inverse", &cholesky_inverse);
  table.add("aten::_cholesky_solve_helper", &cholesky_solve);
  table.add("aten::linalg_householder_product", &householder_product);
  table.add("aten::ormqr", &ormqr);
  table.add("aten::geqrf", &geqrf);
  table.add("aten::linalg_matrix_exp", &matrix_exp);
  table.add("aten::_linalg_eigvals", &eigenvalues);
  table.add("aten::linalg_eig", &eig);
  table.add("aten::linalg_solve_triangular", &solve_triangular);
  table.add("aten::_cdist_forward", &cdist);
  table.add("aten::_cdist_backward", &cdist_backward);
  table.add("aten::_pdist_forward", &pdist);
  table.add("aten::_pdist_backward", &pdist_backward);
  table.add("aten::complex.out", &complex_out);
  table.add("aten::polar.out", &complex_out);
  table.add("aten::_fft_c2c", &fft_c2c);
  table.add("aten::_fft_r2c", &fft_r2c);
  table.add("aten::_fft_c2r", &fft_c2r);
}

}  // namespace trellis::device
