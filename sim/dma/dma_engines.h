#pragma once

#include <cstdint>
#include <vector>

namespace trellis::sim {

/// The DMA engines of a core as servers. A chunk's descriptors are dealt out evenly, starting after the engine that was used last, so that
/// small transfers spread; each engine works through what it is given in order.
class DmaEngines {
 public:
  struct Slot {
    std::int64_t begin, end;
  };

  void configure(int engines) { free_.assign(static_cast<std::size_t>(engines), 0); }
  void reset(std::int64_t now);
  [[nodiscard]] int count() const { return static_cast<int>(free_.size()); }

  /// `descriptors` of `descriptor_time` each that arrive at `now`. REQUIRES: descriptors > 0.
  Slot serve(std::int64_t now, std::int64_t descriptors, std::int64_t descriptor_time);

 private:
  std::vector<std::int64_t> free_;
  std::size_t next_ = 0;
};

}  // namespace trellis::sim
