#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/kernels/nki/document.h"

namespace trellis::device::nki {

/// A mistake of the kernel, where it is.
struct Mistake {
  std::string kind;  ///< unwritten, carried, overwritten, missing_store, race
  std::string line, text;
};

struct SourceCheck {
  bool done = false;  ///< false: the kernel executes too many instructions
  std::vector<Mistake> mistakes;
};

/// Goes through the kernel in its order and follows who wrote each element last: reads of what
/// was not written in this iteration of a tile's loop, values that an iteration of an affine_range
/// has from another one, sums in PSUM that are overwritten before they are read, elements of
/// outputs that are never written. Partitions that no operand distinguishes are one.
[[nodiscard]] SourceCheck check_source(const Document& document);

}  // namespace trellis::device::nki
