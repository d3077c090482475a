#pragma once

#include <cstdint>
#include <string>

#include "device/compiler/graph/graph.h"

namespace trellis::analysis {

/// A few operations on views of tensors in HBM.
struct ViewModule {
  std::string name;  ///< operation, dtype, sizes and strides
  device::Graph graph;
  std::int64_t bytes = 0;     ///< elements that the operations read or write, once each
  std::int64_t elements = 0;  ///< that are worked on: of the largest view
};

enum class ViewSize : std::uint8_t {
  kMillion,   ///< about a million elements: what is timed
  kThousands  ///< some thousands, of odd sizes: what an interpreter can execute
};

/// The module of a seed: an element-wise operation, a reduction, softmax, copy or concatenation
/// over permuted, stepped and broadcast views.
[[nodiscard]] ViewModule random_view_module(std::uint32_t seed, ViewSize size);

}  // namespace trellis::analysis
