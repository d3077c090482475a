#pragma once

#include <cstdint>
#include <vector>

namespace trellis::device {

/// An element offset that is affine in the loop counters around it: base + Σ stride ·
/// iteration.
struct Index {
  struct Term {
    int loop = 0;  ///< Phase's loop id
    std::int64_t stride = 0;
    bool operator==(const Term&) const = default;
  };
  std::int64_t base = 0;
  std::vector<Term> terms;

  Index() = default;
  Index(std::int64_t constant) : base(constant) {}  // NOLINT: a number is an index
  static Index counter(int loop) {
    Index i;
    i.terms.push_back({loop, 1});
    return i;
  }
};

inline Index operator*(Index a, std::int64_t factor) {
  a.base *= factor;
  for (auto& term : a.terms) term.stride *= factor;
  return a;
}

inline Index operator+(Index a, const Index& b) {
  a.base += b.base;
  for (const auto& term : b.terms) {
    bool found = false;
    for (auto& mine : a.terms) {
      if (mine.loop != term.loop) continue;
      mine.stride += term.stride;
      found = true;
    }
    if (!found) a.terms.push_back(term);
  }
  return a;
}

}  // namespace trellis::device
