#pragma once

#include <cstdint>
#include <vector>

namespace trellis::trainer {

/// splitmix64: the next number of a 64-bit sequence that equals everywhere, whatever the standard
/// library.
///   state += 0x9E3779B97F4A7C15; z = state; z = (z ^ z>>30)·0xBF58476D1CE4E5B9;
///     z = (z ^ z>>27)·0x94D049BB133111EB; z ^ z>>31
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();

 private:
  std::uint64_t state_;
};

/// The order of `count` samples in epoch `epoch` (from 0): Fisher–Yates from the end, the partner
/// of i being next() mod (i + 1), with a SplitMix64 seeded by next() of a SplitMix64(seed) plus the
/// epoch. The bias of the modulus is below count / 2^64.
[[nodiscard]] std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed,
                                                    std::int64_t epoch);

}  // namespace trellis::trainer
