#pragma once

#include <functional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// Initial values of an un-sharded weight.
class WeightInit {
 public:
  /// Fills `full`, the un-sharded weight on the CPU, from `generator`.
  using Method = std::function<void(const at::Tensor& full, const at::Generator& generator)>;

  /// Kaiming-uniform with a = √5, the default of NxD and of torch.nn.Linear: U(−b, b) with b =
  /// 1/√(size of the last dimension).
  WeightInit();
  /// Normal with this standard deviation. Implicit: a model's init_std is an initialisation.
  WeightInit(double standard_deviation);  // NOLINT(google-explicit-constructor)
  explicit WeightInit(Method method) : method_(std::move(method)) {}
  static WeightInit constant(double value);
  static WeightInit ones() { return constant(1); }
  static WeightInit zeros() { return constant(0); }

  void fill(const at::Tensor& full, const at::Generator& generator) const {
    method_(full, generator);
  }

 private:
  Method method_;
};

}  // namespace trellis::trainer
