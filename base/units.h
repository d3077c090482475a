#pragma once

#include <cmath>
#include <compare>
#include <cstdint>

namespace trellis {

/// A number with a physical dimension. Arithmetic stays inside one dimension; crossing dimensions
/// needs a named function.
template <typename Tag, typename Rep>
struct Quantity {
  Rep value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value -= other.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, Rep n) { return Quantity(a.value * n); }
  friend constexpr Quantity operator*(Rep n, Quantity a) { return Quantity(a.value * n); }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
/// Simulated time. Integer, so that sums are exact and runs are byte-identical.
using Picoseconds = Quantity<struct PicosecondsTag, std::int64_t>;
using Hertz = Quantity<struct HertzTag, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

inline constexpr double kPicosecondsPerSecond = 1e12;

/// Time to move `bytes` at `rate`, rounded up to a whole picosecond. REQUIRES: rate > 0.
inline Picoseconds transfer_time(Bytes bytes, BytesPerSecond rate) {
  return Picoseconds(static_cast<std::int64_t>(
      std::ceil(static_cast<double>(bytes.value) * kPicosecondsPerSecond / rate.value)));
}

/// Duration of `cycles` of a clock, rounded up to a whole picosecond. REQUIRES: clock > 0.
inline Picoseconds cycles_time(double cycles, Hertz clock) {
  return Picoseconds(
      static_cast<std::int64_t>(std::ceil(cycles * kPicosecondsPerSecond / clock.value)));
}

constexpr double to_milliseconds(Picoseconds t) { return static_cast<double>(t.value) * 1e-9; }
constexpr double to_microseconds(Picoseconds t) { return static_cast<double>(t.value) * 1e-6; }
constexpr double to_seconds(Picoseconds t) { return static_cast<double>(t.value) * 1e-12; }

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n)); }
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 30);
}
constexpr Picoseconds operator""_ps(unsigned long long n) {
  return Picoseconds(static_cast<std::int64_t>(n));
}
constexpr Picoseconds operator""_ns(unsigned long long n) {
  return Picoseconds(static_cast<std::int64_t>(n) * 1000);
}
constexpr Picoseconds operator""_us(unsigned long long n) {
  return Picoseconds(static_cast<std::int64_t>(n) * 1000000);
}
}  // namespace literals

}  // namespace trellis
