#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "sim/isa/types.h"

/// The arithmetic of the instruction set, as types.h defines it.
namespace trellis::sim::functional {

using isa::Activation;
using isa::AluOp;
using isa::DType;

template <typename T>
void put(std::uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <typename T>
T fetch(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// A float of one sign bit, `exponent` and `mantissa` bits. `most`: the largest finite number, to
/// which conversions saturate.
struct MiniFloat {
  int exponent, mantissa, bias;
  double most;
};

/// The format of which a packed MX element holds four.
inline MiniFloat mx_format(DType packed) {
  switch (packed) {
    case DType::kFp8E4M3FnX4: return {4, 3, 7, 448};
    case DType::kFp8E5M2X4: return {5, 2, 15, 57344};
    case DType::kFp4E2M1X4: return {2, 1, 1, 6};
    default: throw std::runtime_error("not a packed MX type");
  }
}

inline double decode(const MiniFloat& f, std::uint32_t bits) {
  const auto mantissa = static_cast<double>(bits & ((1u << f.mantissa) - 1)) / (1 << f.mantissa);
  const int exponent = static_cast<int>(bits >> f.mantissa) & ((1 << f.exponent) - 1);
  const double size = exponent == 0 ? std::ldexp(mantissa, 1 - f.bias)
                                    : std::ldexp(1 + mantissa, exponent - f.bias);
  return (bits >> (f.exponent + f.mantissa) & 1) != 0 ? -size : size;
}

/// Rounds to the nearest, halves to even.
inline std::uint32_t encode(const MiniFloat& f, double value) {
  const double size = std::fmin(std::fabs(value), f.most);
  const int exponent = std::max(size > 0 ? std::ilogb(size) : 1 - f.bias, 1 - f.bias);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(
      std::ldexp(size, f.mantissa - exponent)));  // 2^mantissa and more: a normal number
  const std::uint32_t bits = (static_cast<std::uint32_t>(exponent + f.bias - 1) << f.mantissa) +
                             units;  // a carry moves into the exponent
  return bits | (std::signbit(value) ? 1u << (f.exponent + f.mantissa) : 0u);
}

inline int mx_bits(DType packed) { return 2 * isa::size_bytes(packed); }
/// Value 0 to 3 of a packed element.
inline double unpack(DType packed, std::uint32_t element, int which) {
  return decode(mx_format(packed),
                element >> (which * mx_bits(packed)) & ((1u << mx_bits(packed)) - 1));
}
/// A scale is a power of two, biased by 127.
inline double mx_scale(double stored) { return std::ldexp(1.0, static_cast<int>(stored) - 127); }
/// OCP MX: the scale with which a group's largest magnitude has the format's largest exponent.
inline int mx_scale_for(DType packed, double largest) {
  return largest == 0
             ? 0
             : std::clamp(std::ilogb(largest) - std::ilogb(mx_format(packed).most) + 127, 0, 254);
}

inline float from_bf16(const std::uint8_t* from) {
  const std::uint32_t bits = static_cast<std::uint32_t>(fetch<std::uint16_t>(from)) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  constexpr std::uint32_t kQuiet = 0x40;  // else a NaN of low bits alone becomes infinite
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | kQuiet);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// IEEE half precision: what is too large becomes infinite, unlike a saturating MiniFloat.
inline constexpr MiniFloat kHalf{5, 10, 15, 65504};
inline double from_half(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if ((bits & 0x7c00) != 0x7c00) return decode(kHalf, bits);
  return (bits & 0x3ff) != 0 ? std::nan("") : sign * HUGE_VAL;
}
inline std::uint16_t to_half(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (std::fabs(value) >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  return static_cast<std::uint16_t>(encode(kHalf, value));
}

/// Packed MX elements are read and written as the integers that their bits are. Throws
/// std::runtime_error for a type without defined numbers here.
inline void encode(DType dtype, double value, std::uint8_t* to) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kTf32: return put(to, static_cast<float>(value));
    case DType::kBf16: return put(to, to_bf16(static_cast<float>(value)));
    case DType::kFp16: return put(to, to_half(value));
    case DType::kInt32: return put(to, static_cast<std::int32_t>(value));
    case DType::kInt16: return put(to, static_cast<std::int16_t>(value));
    case DType::kInt8: return put(to, static_cast<std::int8_t>(value));
    case DType::kUInt8: return put(to, static_cast<std::uint8_t>(value));
    case DType::kBool: return put(to, static_cast<std::uint8_t>(value != 0));
    case DType::kFp8E4M3FnX4:
    case DType::kFp8E5M2X4: return put(to, static_cast<std::uint32_t>(value));
    case DType::kFp4E2M1X4: return put(to, static_cast<std::uint16_t>(value));
    default: throw std::runtime_error("no numbers are defined for " + std::string(name(dtype)));
  }
}

inline double decode(DType dtype, const std::uint8_t* from) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kTf32: return static_cast<double>(fetch<float>(from));
    case DType::kBf16: return static_cast<double>(from_bf16(from));
    case DType::kFp16: return from_half(fetch<std::uint16_t>(from));
    case DType::kInt32: return fetch<std::int32_t>(from);
    case DType::kInt16: return fetch<std::int16_t>(from);
    case DType::kInt8: return fetch<std::int8_t>(from);
    case DType::kUInt8:
    case DType::kBool: return fetch<std::uint8_t>(from);
    case DType::kFp8E4M3FnX4:
    case DType::kFp8E5M2X4: return fetch<std::uint32_t>(from);
    case DType::kFp4E2M1X4: return fetch<std::uint16_t>(from);
    default: throw std::runtime_error("no numbers are defined for " + std::string(name(dtype)));
  }
}

inline double apply(AluOp alu, double a, double b) {
  const auto bits = [](double x) { return static_cast<std::int64_t>(x); };
  switch (alu) {
    case AluOp::kNone:
    case AluOp::kBypass: return a;
    case AluOp::kAdd: return a + b;
    case AluOp::kSubtract: return a - b;
    case AluOp::kReverseSubtract: return b - a;
    case AluOp::kMultiply: return a * b;
    case AluOp::kDivide: return a / b;
    case AluOp::kMax: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmax(a, b);
    case AluOp::kMin: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::fmin(a, b);
    case AluOp::kPower: return std::pow(a, b);
    case AluOp::kEqual: return a == b;
    case AluOp::kNotEqual: return a != b;
    case AluOp::kGreater: return a > b;
    case AluOp::kGreaterEqual: return a >= b;
    case AluOp::kLess: return a < b;
    case AluOp::kLessEqual: return a <= b;
    case AluOp::kAnd: return static_cast<double>(bits(a) & bits(b));
    case AluOp::kOr: return static_cast<double>(bits(a) | bits(b));
    case AluOp::kXor: return static_cast<double>(bits(a) ^ bits(b));
  }
  return a;
}

inline double apply(Activation fn, double x) {
  const auto sigmoid = [x] { return 1 / (1 + std::exp(-x)); };
  switch (fn) {
    case Activation::kIdentity: return x;
    case Activation::kExp: return std::exp(x);
    case Activation::kLog: return std::log(x);
    case Activation::kSqrt: return std::sqrt(x);
    case Activation::kRsqrt: return 1 / std::sqrt(x);
    case Activation::kReciprocal: return 1 / x;
    case Activation::kSigmoid: return sigmoid();
    case Activation::kSilu: return x * sigmoid();
    case Activation::kSiluGrad: return sigmoid() * (1 + x * (1 - sigmoid()));
    case Activation::kTanh: return std::tanh(x);
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluGrad:
      return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) +
             x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kSin: return std::sin(x);
    case Activation::kCos: return std::cos(x);
    case Activation::kSquare: return x * x;
    case Activation::kAbs: return std::fabs(x);
    case Activation::kSign: return (x > 0) - (x < 0);
    case Activation::kErf: return std::erf(x);
    case Activation::kNeg: return -x;
  }
  return x;
}

}  // namespace trellis::sim::functional
