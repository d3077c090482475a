#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "runtime/calls/transfer.h"

namespace trellis::runtime {

/// Lays a rank's tensors out over the working buffer of a communication. Device memory is host
/// memory, so tensors are read and written through CPU aliases and nothing is recorded as an
/// operation; strided tensors pass through contiguous copies.
class SideBuilder {
 public:
  /// factor: what inputs are multiplied by, in copies.
  explicit SideBuilder(bool shape_only, std::optional<double> factor = std::nullopt)
      : shape_only_(shape_only), factor_(factor) {}

  /// The whole tensor, or `length` elements from its `begin`-th, at `offset` of the working buffer.
  void input(const at::Tensor& tensor, std::int64_t offset) {
    input(tensor, 0, tensor.numel(), offset);
  }
  void input(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
             std::int64_t offset);
  void output(const at::Tensor& tensor, std::int64_t offset) {
    output(tensor, 0, tensor.numel(), offset);
  }
  void output(const at::Tensor& tensor, std::int64_t begin, std::int64_t length,
              std::int64_t offset);
  void in_out(const at::Tensor& tensor, std::int64_t offset);

  [[nodiscard]] Side finish();

 private:
  /// A tensor and its contiguous copy; shards of one tensor share it.
  struct Staged {
    at::Tensor tensor;
    at::Tensor copy;
  };
  std::byte* readable(const at::Tensor& tensor);
  std::byte* writable(const at::Tensor& tensor);

  bool shape_only_;
  std::optional<double> factor_;
  Side side_;
  Staged read_;
  Staged written_;
};

}  // namespace trellis::runtime
