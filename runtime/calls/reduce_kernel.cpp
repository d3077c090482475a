#include "runtime/calls/reduce_kernel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"

namespace trellis::runtime {
namespace {

/// Elements combined at a time: the partial results of a block stay in the first-level cache.
constexpr std::int64_t kBlock = 2048;

/// The type in which the host adds: half precision has no addition of its own.
template <typename T>
using Wide =
    std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

// NaN wins in min and max, as in LibTorch: a comparison with NaN is false, so each picks NaN
// whichever side it is on.
template <typename A>
bool is_nan(A a) {
  return a != a;  // NOLINT(misc-redundant-expression)
}
template <typename A>
A min_of(A a, A b) {
  return (is_nan(a) || a < b) ? a : b;
}
template <typename A>
A max_of(A a, A b) {
  return (is_nan(a) || a > b) ? a : b;
}

/// A partial result travels in T: it is rounded after every member.
template <typename A, typename T, typename Combine>
void combine_block(A* sum, const T* source, std::int64_t count, Combine combine) {
  for (std::int64_t i = 0; i < count; ++i) {
    sum[i] = static_cast<A>(static_cast<T>(combine(sum[i], static_cast<A>(source[i]))));
  }
}

bool is_bitwise(Reduction reduction) {
  return reduction == Reduction::kBitAnd || reduction == Reduction::kBitOr ||
         reduction == Reduction::kBitXor;
}

/// REQUIRES: check_reducible(), so that floats never come here.
template <typename A, typename T>
void combine_bits(A* sum, const T* source, std::int64_t count, Reduction reduction) {
  if constexpr (std::is_integral_v<T>) {
    if (reduction == Reduction::kBitAnd)
      return combine_block(sum, source, count, [](A a, A b) { return static_cast<A>(a & b); });
    if (reduction == Reduction::kBitOr)
      return combine_block(sum, source, count, [](A a, A b) { return static_cast<A>(a | b); });
    combine_block(sum, source, count, [](A a, A b) { return static_cast<A>(a ^ b); });
  }
}

template <typename A, typename T>
void add_source(A* sum, const T* source, std::int64_t count, Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      return combine_block(sum, source, count, [](A a, A b) { return static_cast<A>(a + b); });
    case Reduction::kProduct:
      return combine_block(sum, source, count, [](A a, A b) { return static_cast<A>(a * b); });
    case Reduction::kMin:
      return combine_block(sum, source, count, [](A a, A b) { return min_of(a, b); });
    case Reduction::kMax:
      return combine_block(sum, source, count, [](A a, A b) { return max_of(a, b); });
    case Reduction::kNone: return;
    default: return combine_bits(sum, source, count, reduction);
  }
}

template <typename T>
void reduce_typed(std::span<std::byte* const> targets, std::span<const std::byte* const> sources,
                  std::int64_t count, Reduction reduction) {
  using A = Wide<T>;
  alignas(64) A sum[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    const auto at = [begin](auto* base) {
      using Typed =
          std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const T*, T*>;
      return reinterpret_cast<Typed>(base) + begin;
    };
    const T* first = at(sources[0]);
    for (std::int64_t i = 0; i < length; ++i) sum[i] = static_cast<A>(first[i]);
    for (const std::byte* source : sources.subspan(1))
      add_source(sum, at(source), length, reduction);
    if (reduction == Reduction::kAverage) {
      const A members = static_cast<A>(sources.size());
      for (std::int64_t i = 0; i < length; ++i) sum[i] = static_cast<A>(sum[i] / members);
    }
    if (targets.empty()) continue;
    T* rounded = at(targets[0]);
    for (std::int64_t i = 0; i < length; ++i) rounded[i] = static_cast<T>(sum[i]);
    for (std::byte* target : targets.subspan(1)) {
      std::memcpy(at(target), rounded, static_cast<std::size_t>(length) * sizeof(T));
    }
  }
}

/// Calls `visit` with a value of the C++ type of `dtype`; false when the type cannot be reduced.
template <typename Visit>
bool with_type(c10::ScalarType dtype, Visit visit) {
  switch (dtype) {
    case c10::ScalarType::Double: visit(double{}); return true;
    case c10::ScalarType::Float: visit(float{}); return true;
    case c10::ScalarType::BFloat16: visit(c10::BFloat16{}); return true;
    case c10::ScalarType::Half: visit(c10::Half{}); return true;
    case c10::ScalarType::Long: visit(std::int64_t{}); return true;
    case c10::ScalarType::Int: visit(std::int32_t{}); return true;
    case c10::ScalarType::Short: visit(std::int16_t{}); return true;
    case c10::ScalarType::Char: visit(std::int8_t{}); return true;
    case c10::ScalarType::Byte: visit(std::uint8_t{}); return true;
    case c10::ScalarType::Bool:
      visit(bool{});
      return true;  // sum and max: or; product and min: and
    default: return false;
  }
}

}  // namespace

void check_reducible(c10::ScalarType dtype, Reduction reduction) {
  bool is_integral = false;
  const bool is_known =
      with_type(dtype, [&](auto zero) { is_integral = std::is_integral_v<decltype(zero)>; });
  if (reduction == Reduction::kNone || (is_known && (is_integral || !is_bitwise(reduction))))
    return;
  throw Error(
      ExitCode::kInternal,
      c10::str("backend neuron cannot combine elements of type ", c10::toString(dtype), " by ",
               name(reduction),
               is_bitwise(reduction)
                   ? ": expected an integer type; cast the tensor first"
                   : ": expected a float, bfloat16, half or integer type; cast the tensor first"));
}

void reduce_into(std::span<std::byte* const> targets, std::span<const std::byte* const> sources,
                 std::int64_t count, c10::ScalarType dtype, Reduction reduction) {
  with_type(dtype,
            [&](auto zero) { reduce_typed<decltype(zero)>(targets, sources, count, reduction); });
}

}  // namespace trellis::runtime
