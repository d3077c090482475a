#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace trellis::trainer {

/// numpy.random.RandomState(seed), as far as Megatron's index maps use it: MT19937 (its seeding by
/// one number is std::mt19937's) and the legacy shuffle: for i from n − 1 down to 1, swap i with a
/// number of 0 … i that is drawn by masking and rejection.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : generator_(seed) {}

  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  /// A number of 0 … max, evenly. Up to 2^32 − 1 one draw of 32 bits is masked, above two of them,
  /// the higher first.
  std::uint64_t interval(std::uint64_t max) {
    std::uint64_t mask = max;
    for (const int shift : {1, 2, 4, 8, 16, 32}) mask |= mask >> shift;
    std::uint64_t value = 0;
    do {
      value = generator_();
      if (max > 0xFFFFFFFF) value = value << 32 | generator_();
      value &= mask;
    } while (value > max);
    return value;
  }

  std::mt19937 generator_;
};

}  // namespace trellis::trainer
