#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer::testing_support {

/// A weight of a model that exists only for its optimizer.
struct WeightShape {
  std::string name;
  std::vector<std::int64_t> shape;  ///< un-sharded
  int partition_dim = -1, partition_stride = 1;
  bool weight_decay = true;
  std::vector<PartitionBlock> blocks = {};  ///< instead of the stride, when TP > 1

  [[nodiscard]] Partition partition(int tp) const {
    if (tp > 1 && !blocks.empty()) return {partition_dim, blocks};
    return strided_partition(partition_dim,
                             partition_dim < 0 ? 0 : shape[static_cast<std::size_t>(partition_dim)],
                             partition_stride);
  }
};

/// Weights with values and gradients that are plain functions of the element:
/// tests/trainer/optimizer/oracle.py computes the same.
class SmallModel {
 public:
  SmallModel(std::vector<WeightShape> shapes, const ParallelState& parallel,
             at::ScalarType dtype = at::kDouble, at::Device device = at::kCPU)
      : shapes_(std::move(shapes)), parallel_(parallel) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      Parameter parameter;
      parameter.name = shapes_[i].name;
      parameter.tensor_model_parallel = shapes_[i].partition_dim >= 0;
      parameter.partition = shapes_[i].partition(tp().size);
      parameter.weight_decay = shapes_[i].weight_decay;
      parameter.tensor =
          local(i, values(i, 1.7, 0.3)).to(dtype).clone().to(device).requires_grad_();
      parameters.push_back(std::move(parameter));
    }
  }

  /// The gradients of a step (from 1), times `scale`.
  void backward(int step, double scale = 1) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const at::Tensor grad = local(i, gradient(i, step))
                                  .mul(scale)
                                  .to(parameters[i].tensor.scalar_type())
                                  .to(parameters[i].tensor.device());
      (parameters[i].tensor * grad).sum().backward();
    }
  }

  /// This rank's part of a whole weight.
  [[nodiscard]] at::Tensor local(std::size_t i, const at::Tensor& full) const {
    return shard_of(full, shapes_[i].partition(tp().size), tp().rank, tp().size).contiguous();
  }

  ParameterList parameters;

 private:
  [[nodiscard]] const ParallelGroup& tp() const {
    return parallel_.get_tensor_model_parallel_group();
  }
  /// sin(a·k + b) over all elements of the model.
  [[nodiscard]] at::Tensor values(std::size_t index, double a, double b) const {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < index; ++i) first += at::empty(shapes_[i].shape).numel();
    at::Tensor result = at::empty(shapes_[index].shape, at::kDouble);
    for (std::int64_t k = 0; k < result.numel(); ++k)
      result.data_ptr<double>()[k] = std::sin(a * static_cast<double>(first + k) + b);
    return result;
  }
  [[nodiscard]] at::Tensor gradient(std::size_t index, int step) const {
    return values(index, 0.9, 1.1 * step + M_PI / 2).mul_(0.1 + 0.05 * step);
  }

  std::vector<WeightShape> shapes_;
  ParallelState parallel_;
};

}  // namespace trellis::trainer::testing_support
