#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::native {

/// A checkpoint of `trellis train` whose files may not be what was saved.
class DamagedCheckpoint : public ConfigError {
 public:
  DamagedCheckpoint(Place place, const std::string& text)
      : ConfigError(text), place_(std::move(place)) {}
  [[nodiscard]] const Place& place() const { return place_; }

 private:
  Place place_;
};

}  // namespace trellis::checkpoint::native
