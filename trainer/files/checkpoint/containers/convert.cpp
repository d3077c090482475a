#include "trainer/files/checkpoint/containers/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace trellis::checkpoint {
namespace {

struct BFloat16 {
  std::uint16_t bits;
  operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
struct Float16 {
  std::uint16_t bits;
  operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16, mantissa = bits & 0x3FFU;
    const std::uint32_t exponent = (bits >> 10) & 0x1FU;
    if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
};

BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {0x7FC0};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

/// Adding 2^13 times the scale of the result's last bit leaves the bits that stay, rounded by the
/// processor.
Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x47800000U) return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (magnitude < 0x38800000U) {  // below 2^-14: a multiple of 2^-24
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3F000000U))};
  }
  const std::uint32_t rounded = magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

template <typename T>
T narrow(double value) {
  return static_cast<T>(value);
}
template <>
BFloat16 narrow<BFloat16>(double value) {
  return to_bfloat16(static_cast<float>(value));
}
template <>
Float16 narrow<Float16>(double value) {
  return to_float16(static_cast<float>(value));
}

/// Files do not align their tensors.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename From, typename To>
void convert_all(std::span<const std::byte> values, std::span<std::byte> into) {
  for (std::size_t i = 0; i < values.size() / sizeof(From); ++i) {
    const To value = narrow<To>(static_cast<double>(load<From>(values.data() + i * sizeof(From))));
    std::memcpy(into.data() + i * sizeof(To), &value, sizeof value);
  }
}

template <typename From>
void convert_from(std::span<const std::byte> values, DType to, std::span<std::byte> into) {
  switch (to) {
    case DType::kFloat64: return convert_all<From, double>(values, into);
    case DType::kFloat32: return convert_all<From, float>(values, into);
    case DType::kFloat16: return convert_all<From, Float16>(values, into);
    case DType::kBFloat16: return convert_all<From, BFloat16>(values, into);
    default: TRELLIS_CHECK(false, "a type that is not converted");
  }
}

bool is_wide_float(DType type) {
  return type == DType::kFloat64 || type == DType::kFloat32 || type == DType::kFloat16 ||
         type == DType::kBFloat16;
}

template <typename From>
void widen(std::span<const std::byte> values, std::span<double> into) {
  for (std::size_t i = 0; i < into.size(); ++i)
    into[i] = static_cast<double>(load<From>(values.data() + i * sizeof(From)));
}

}  // namespace

bool is_convertible(DType from, DType to) {
  return from == to || (is_wide_float(from) && is_wide_float(to));
}

void convert_elements(DType from, std::span<const std::byte> values, DType to,
                      std::span<std::byte> into) {
  if (from == to) {
    std::copy(values.begin(), values.end(), into.begin());
    return;
  }
  switch (from) {
    case DType::kFloat64: return convert_from<double>(values, to, into);
    case DType::kFloat32: return convert_from<float>(values, to, into);
    case DType::kFloat16: return convert_from<Float16>(values, to, into);
    case DType::kBFloat16: return convert_from<BFloat16>(values, to, into);
    default: TRELLIS_CHECK(false, "a type that is not converted");
  }
}

bool is_widenable(DType type) {
  switch (type) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt64:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool: return true;
    default: return false;
  }
}

void widen_elements(DType from, std::span<const std::byte> values, std::span<double> into) {
  switch (from) {
    case DType::kFloat64: return widen<double>(values, into);
    case DType::kFloat32: return widen<float>(values, into);
    case DType::kFloat16: return widen<Float16>(values, into);
    case DType::kBFloat16: return widen<BFloat16>(values, into);
    case DType::kInt64: return widen<std::int64_t>(values, into);
    case DType::kInt32: return widen<std::int32_t>(values, into);
    case DType::kInt16: return widen<std::int16_t>(values, into);
    case DType::kInt8: return widen<std::int8_t>(values, into);
    case DType::kUInt8:
    case DType::kBool: return widen<std::uint8_t>(values, into);
    default: TRELLIS_CHECK(false, "a type that is not widened");
  }
}

}  // namespace trellis::checkpoint
