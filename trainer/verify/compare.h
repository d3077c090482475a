#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/verify/capture.h"

namespace trellis::trainer {

/// One number or tensor compared with its expectation.
struct Deviation {
  std::string what;   ///< "step 1: gradient of model.layers.3.self_attn.o_proj.weight"
  std::string layer;  ///< "model.layers.3.self_attn.o_proj"; "" for losses and norms
  double error = 0;   ///< relative, by the L2 norm; absolute where the expectation is 0; infinite
                      ///< for what is missing or not a number
  bool by_share =
      false;  ///< the tensor nearly vanishes: relative to its share of the norm, see compare()
  double tolerance = 0;
  [[nodiscard]] bool is_bad() const { return !(error <= tolerance); }
};

struct Comparison {
  Deviation worst;                     ///< by error / tolerance
  std::optional<Deviation> first_bad;  ///< in the order in which a run computes: loss, gradients
                                       ///< from the last layer to the first, norm; weights
  std::optional<Deviation> first_bad_tensor;  ///< the same, of those that belong to a layer
  int num_compared = 0;
  int num_bad = 0;
  int num_by_share = 0;
  double largest_tolerance = 0;
};

/// The tolerance of a deviation, given its `what`.
using ToleranceOf = std::function<double(const std::string& what)>;

/// Compares every loss, gradient, gradient norm and final weight; copies of weights must be the
/// same bits.
///
/// A tensor whose own norm says nothing, because little more than rounding is left in it (the
/// gradient of a key's bias is 0 except for that), is measured against its share of the whole: the
/// norm that a tensor of its size has when all elements of the step's gradients (of all weights)
/// are equally large. `vanishing`: it is one when its norm is less than this part of its share.
[[nodiscard]] Comparison compare(const RunNumbers& got, const RunNumbers& expected,
                                 double vanishing, const ToleranceOf& tolerance);

/// The same list of errors, for tolerances that are derived from it: by `what`.
[[nodiscard]] std::map<std::string, double> errors_of(const RunNumbers& got,
                                                      const RunNumbers& expected, double vanishing);

}  // namespace trellis::trainer
