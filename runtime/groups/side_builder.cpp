#include "runtime/groups/side_builder.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include "runtime/calls/premultiplied.h"

namespace trellis::runtime {
namespace {

at::Tensor cpu_alias(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

std::byte* bytes(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Piece piece(std::byte* base, const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
            std::int64_t offset) {
  return {offset, length, base + begin * static_cast<std::int64_t>(tensor.element_size())};
}

}  // namespace

std::byte* SideBuilder::readable(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !factor_.has_value()) return bytes(tensor);
  if (!read_.tensor.is_same(tensor)) {
    at::AutoDispatchBelowADInplaceOrView plain_copy;
    const at::Tensor alias = cpu_alias(tensor);
    read_ = {tensor, factor_.has_value() ? multiplied(alias, *factor_) : alias.contiguous()};
    side_.keep_alive.push_back(read_.copy);
  }
  return bytes(read_.copy);
}

std::byte* SideBuilder::writable(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return bytes(tensor);
  if (!written_.tensor.is_same(tensor)) {
    at::AutoDispatchBelowADInplaceOrView plain_copy;
    const at::Tensor alias = cpu_alias(tensor);
    written_ = {tensor, at::empty_like(alias, at::MemoryFormat::Contiguous)};
    side_.write_back.emplace_back(alias, written_.copy);
  }
  return bytes(written_.copy);
}

void SideBuilder::input(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
                        std::int64_t offset) {
  if (shape_only_ || length == 0) return;
  side_.keep_alive.push_back(tensor);
  side_.buffers.inputs.push_back(piece(readable(tensor), tensor, begin, length, offset));
}

void SideBuilder::output(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
                         std::int64_t offset) {
  if (shape_only_ || length == 0) return;
  side_.keep_alive.push_back(tensor);
  side_.buffers.outputs.push_back(piece(writable(tensor), tensor, begin, length, offset));
}

void SideBuilder::in_out(const at::Tensor& tensor, std::int64_t offset) {
  input(tensor, offset);
  if (shape_only_ || tensor.numel() == 0) return;
  if (factor_.has_value()) return output(tensor, offset);
  // Input and output are one buffer: the strided tensor's copy is read, combined in place and
  // written back.
  if (!tensor.is_contiguous()) side_.write_back.emplace_back(cpu_alias(tensor), read_.copy);
  side_.buffers.outputs.push_back(side_.buffers.inputs.back());
}

Side SideBuilder::finish() {
  const auto by_offset = [](const Piece& a, const Piece& b) { return a.offset < b.offset; };
  std::sort(side_.buffers.inputs.begin(), side_.buffers.inputs.end(), by_offset);
  std::sort(side_.buffers.outputs.begin(), side_.buffers.outputs.end(), by_offset);
  return std::move(side_);
}

}  // namespace trellis::runtime
