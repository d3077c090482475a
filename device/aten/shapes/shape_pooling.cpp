#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

/// Pooling and its inverse, padding, grids and patches: [N, C, spatial…] or [C, spatial…] in, other
/// spatial sizes out.
namespace trellis::device {
namespace {

using at::Tensor;

/// `self`'s sizes with the last ones replaced.
at::DimVector with_spatial(const Tensor& self, at::IntArrayRef spatial) {
  at::DimVector sizes(self.sizes());
  std::copy(spatial.begin(), spatial.end(),
            sizes.end() - static_cast<std::ptrdiff_t>(spatial.size()));
  return sizes;
}

/// In the memory format that `like` suggests (channels last stays so).
Tensor in_format_of(const Tensor& like, at::IntArrayRef sizes, const Tensor& options) {
  const bool four = like.dim() == static_cast<std::int64_t>(sizes.size()) && like.dim() >= 4;
  return at::empty(sizes, options.options(),
                   four ? like.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

Tensor contiguous_like(const Tensor& self) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}
Tensor formatted_like(const Tensor& self) { return in_format_of(self, self.sizes(), self); }

// ── adaptive averages ──

Tensor adaptive_pool2d(const Tensor& self, at::IntArrayRef output) {
  return in_format_of(self, with_spatial(self, output), self);
}
Tensor& adaptive_pool2d_out(const Tensor& self, at::IntArrayRef output, Tensor& out) {
  return out.resize_(with_spatial(self, output), self.suggest_memory_format()), out;
}
Tensor adaptive_pool3d(const Tensor& self, at::IntArrayRef output) {
  return at::empty(with_spatial(self, output), self.options());
}
Tensor adaptive_pool2d_backward(const Tensor&, const Tensor& self) { return formatted_like(self); }
Tensor adaptive_pool3d_backward(const Tensor&, const Tensor& self) { return contiguous_like(self); }

// ── maxima over windows, and putting them back ──

std::int64_t at_or_first(at::IntArrayRef values, std::size_t i) {
  return values[values.size() == 1 ? 0 : i];
}

std::tuple<Tensor, Tensor> max_pool3d(const Tensor& self, at::IntArrayRef kernel,
                                      at::IntArrayRef stride, at::IntArrayRef padding,
                                      at::IntArrayRef dilation, bool ceil_mode) {
  at::DimVector spatial(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t step = stride.empty() ? at_or_first(kernel, i) : at_or_first(stride, i);
    spatial[i] = at::native::pooling_output_shape<std::int64_t>(
        self.size(static_cast<std::int64_t>(i) - 3), at_or_first(kernel, i),
        at_or_first(padding, i), step, at_or_first(dilation, i), ceil_mode);
  }
  const Tensor values = in_format_of(self, with_spatial(self, spatial), self);
  return {values, at::empty_like(values, values.options().dtype(c10::kLong))};
}

Tensor max_pool3d_backward(const Tensor&, const Tensor& self, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, at::IntArrayRef, bool, const Tensor&) {
  return formatted_like(self);
}

Tensor fractional_pool3d_backward(const Tensor&, const Tensor& self, at::IntArrayRef,
                                  at::IntArrayRef, const Tensor&) {
  return contiguous_like(self);
}

Tensor max_unpool2d(const Tensor& self, const Tensor&, at::IntArrayRef output) {
  return in_format_of(self, with_spatial(self, output), self);
}
Tensor max_unpool3d(const Tensor& self, const Tensor&, at::IntArrayRef output, at::IntArrayRef,
                    at::IntArrayRef) {
  return at::empty(with_spatial(self, output), self.options());
}

// ── padding ──

Tensor padded2d(const Tensor& self, at::IntArrayRef padding) {
  return in_format_of(self,
                      with_spatial(self, {self.size(-2) + padding[2] + padding[3],
                                          self.size(-1) + padding[0] + padding[1]}),
                      self);
}
Tensor padding_backward(const Tensor&, const Tensor& self, at::IntArrayRef) {
  return formatted_like(self);
}
Tensor contiguous_padding_backward(const Tensor&, const Tensor& self, at::IntArrayRef) {
  return contiguous_like(self);
}

// ── sampling at a grid ──

Tensor grid_sampled(const Tensor& input, const Tensor& grid, std::int64_t, std::int64_t, bool) {
  at::DimVector sizes(grid.sizes());
  sizes.pop_back();
  sizes.insert(sizes.begin() + 1, input.size(1));
  return at::empty(sizes, input.options());
}

std::tuple<Tensor, Tensor> grid_sampled_backward(const Tensor&, const Tensor& input,
                                                 const Tensor& grid, std::int64_t, std::int64_t,
                                                 bool, std::array<bool, 2> mask) {
  return {mask[0] ? contiguous_like(input) : Tensor(), contiguous_like(grid)};
}

// ── patches and columns ──

Tensor im2col(const Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation,
              at::IntArrayRef padding, at::IntArrayRef stride) {
  std::int64_t windows = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t extent =
        self.size(static_cast<std::int64_t>(i) - 2) + 2 * at_or_first(padding, i);
    windows *= (extent - (at_or_first(dilation, i) * (at_or_first(kernel, i) - 1) + 1)) /
                   at_or_first(stride, i) +
               1;
  }
  at::DimVector sizes = {self.size(-3) * at_or_first(kernel, 0) * at_or_first(kernel, 1), windows};
  if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
  return at::empty(sizes, self.options());
}

Tensor col2im(const Tensor& self, at::IntArrayRef output, at::IntArrayRef kernel, at::IntArrayRef,
              at::IntArrayRef, at::IntArrayRef) {
  at::DimVector sizes = {self.size(-2) / (at_or_first(kernel, 0) * at_or_first(kernel, 1)),
                         output[0], output[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  return at::empty(sizes, self.options());
}

Tensor channel_shuffle(const Tensor& self, c10::SymInt) {
  return self.numel() == 0 ? self.alias() : formatted_like(self);
}

}  // namespace

void add_pooling_shapes(ShapeTable& table) {
  table.add("aten::_adaptive_avg_pool2d", &adaptive_pool2d);
  table.add("aten::adaptive_avg_pool2d.out", &adaptive_pool2d_out);
  table.add("aten::_adaptive_avg_pool3d", &adaptive_pool3d);
  table.add("aten::_adaptive_avg_pool2d_backward", &adaptive_pool2d_backward);
  table.add("aten::_adaptive_avg_pool3d_backward", &adaptive_pool3d_backward);
  table.add("aten::max_pool3d_with_indices", &max_pool3d);
  table.add("aten::max_pool3d_with_indices_backward", &max_pool3d_backward);
  table.add("aten::fractional_max_pool3d_backward", &fractional_pool3d_backward);
  table.add("aten::max_unpool2d", &max_unpool2d);
  table.add("aten::max_unpool3d", &max_unpool3d);
  table.add("aten::reflection_pad2d", &padded2d);
  table.add("aten::reflection_pad2d_backward", &padding_backward);
  table.add("aten::replication_pad2d_backward", &padding_backward);
  table.add("aten::replication_pad3d_backward", &contiguous_padding_backward);
  for (const char* op : {"aten::grid_sampler_2d", "aten::grid_sampler_3d"})
    table.add(op, &grid_sampled);
  for (const char* op : {"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"})
    table.add(op, &grid_sampled_backward);
  table.add("aten::im2col", &im2col);
  table.add("aten::col2im", &col2im);
  table.add("aten::channel_shuffle", &channel_shuffle);
}

}  // namespace trellis::device
