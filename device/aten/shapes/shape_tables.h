#pragma once

#include <string_view>
#include <unordered_map>

#include <ATen/core/boxing/KernelFunction.h>

/// Shape functions work on Meta tensors: sizes, strides, type, no data. Each must allocate what the
/// CPU kernel allocates, so that both modes charge the same bytes and record the same views;
/// tests/device/aten/shape_only_test.cpp compares the streams.
namespace trellis::device {

class ShapeTable {
 public:
  template <typename Function>
  void add(std::string_view op, Function* function) {
    functions_.insert_or_assign(op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
  }
  /// The operator returns nothing: it changes its arguments in place.
  void add_no_result(std::string_view op);
  /// The result has the sizes, strides and type of the first tensor argument.
  void add_like_first(std::string_view op);
  [[nodiscard]] const c10::KernelFunction* find(std::string_view op) const;

 private:
  std::unordered_map<std::string_view, c10::KernelFunction> functions_;
};

void add_elementwise_shapes(ShapeTable& table);
void add_reduction_shapes(ShapeTable& table);
void add_network_shapes(
    ShapeTable& table);  ///< norms, attention, convolution, embedding, products, optimizers
void add_indexing_shapes(ShapeTable& table);
void add_data_dependent_shapes(ShapeTable& table);
void add_pooling_shapes(ShapeTable& table);
void add_loss_shapes(ShapeTable& table);
void add_algebra_shapes(ShapeTable& table);

}  // namespace trellis::device
