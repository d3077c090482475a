#pragma once

#include <functional>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "benchmarks/support/alternating.h"

/// The operators that every way of making a device is measured with, each ready to be called on a
/// device.
namespace trellis::benchmarks {

using Call = std::function<void()>;

struct SmallOp {
  const char* name;
  int calls;  ///< per round
  Call (*on)(c10::Device);
};

inline at::Tensor ones_on(c10::Device device, at::IntArrayRef sizes) {
  return at::ones(sizes, at::TensorOptions(device));
}

inline Call add_of(c10::Device device, at::IntArrayRef sizes) {
  return [a = ones_on(device, sizes), b = ones_on(device, sizes)] {
    benchmark::DoNotOptimize(at::add(a, b));
  };
}
inline Call add(c10::Device device) { return add_of(device, {4, 4}); }
inline Call add_in_place(c10::Device device) {
  return [a = ones_on(device, {4, 4}), b = ones_on(device, {4, 4})]() mutable { a.add_(b); };
}
inline Call mm(c10::Device device) {
  return [a = ones_on(device, {4, 4}), b = ones_on(device, {4, 4})] {
    benchmark::DoNotOptimize(at::mm(a, b));
  };
}
inline Call cat(c10::Device device) {
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 16; ++i) parts.push_back(ones_on(device, {4, 4}));
  return [parts = std::move(parts)] { benchmark::DoNotOptimize(at::cat(parts)); };
}
/// Shows copies: the operator itself reads and writes 12 MiB.
inline Call add_4_mib(c10::Device device) { return add_of(device, {1 << 20}); }

inline const std::vector<SmallOp>& small_ops() {
  static const std::vector<SmallOp> ops = {{"add_4x4", 500, add},
                                           {"add_in_place_4x4", 500, add_in_place},
                                           {"mm_4x4", 500, mm},
                                           {"cat_16_of_4x4", 200, cat},
                                           {"add_4_MiB", 2, add_4_mib}};
  return ops;
}

}  // namespace trellis::benchmarks
