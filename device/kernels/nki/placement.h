#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/kernels/nki/document.h"

namespace trellis::device::nki {

/// Where a tile lies. A ring has two slots: one iteration of its loop fills one while the last
/// one's is still read.
struct Place {
  bool used = false;
  std::int64_t address = 0, slot_bytes = 0;
  int depth = 1;
  bool direct = true;  ///< every access is in its loop's own body, none in a loop inside
};

/// The tiles of a memory where they take most of it.
struct Occupation {
  std::int64_t bytes = 0;   ///< of a partition, where tiles lie
  std::int64_t alive = 0;   ///< largest sum of tiles that are alive together
  std::string line;         ///< where that is
  std::vector<int> tiles;   ///< alive there, largest first
  std::vector<int> single;  ///< tiles of loops that have one slot, because two do not fit
};

struct Placement {
  std::vector<Place> places;  ///< by tensor
  Occupation sbuf, psum;
};

/// Places every tile for as long as it is alive. Throws Error (kDoesNotFit) that names line, bytes
/// over and the tiles alive.
[[nodiscard]] Placement place_tiles(const Document& document, const isa::Limits& limits);

}  // namespace trellis::device::nki
