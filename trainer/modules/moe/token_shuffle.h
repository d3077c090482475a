#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Exchanges tokens between data-parallel ranks before the router, so that each has a mixture of
/// all their sequences, and puts them back after the experts. A random permutation on each rank and
/// an all-to-all of equal parts; a function of (seed, step, micro-batch, path). A group of one:
/// nothing.
class TokenShuffle {
 public:
  TokenShuffle(const ModuleContext& context, const std::string& path);
  /// A permutation of this pass, and its inverse; undefined in a group of one.
  struct Order {
    at::Tensor forward, inverse;
  };
  /// Throws ConfigError when the group's size does not divide the tokens.
  [[nodiscard]] Order order(std::int64_t tokens) const;
  [[nodiscard]] at::Tensor shuffle(const at::Tensor& tokens, const Order& order) const;
  [[nodiscard]] at::Tensor put_back(const at::Tensor& tokens, const Order& order) const;

 private:
  std::string path_;
  ParallelGroup group_;
  at::Device device_;
  bool shape_only_;
  std::int64_t seed_;
  std::shared_ptr<StepPosition> position_;
};

}  // namespace trellis::trainer
