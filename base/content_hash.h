#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace trellis {

/// 128 bits that represent a content. Equal contents hash equal on every machine.
struct ContentHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const ContentHash&) const = default;
  [[nodiscard]] std::string to_string() const;  ///< 32 hexadecimal digits
};

/// Feeds values one by one into a ContentHash (XXH3-128). Feed integers, not structs: padding bytes
/// are not content.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(const ContentHasher&) = delete;
  ContentHasher& operator=(const ContentHasher&) = delete;

  void bytes(const void* data, std::size_t size);
  void text(std::string_view text);  ///< length first, so that "ab","c" differs from "a","bc"
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void value(T v) {
    bytes(&v, sizeof v);
  }
  [[nodiscard]] ContentHash finish() const;

 private:
  void* state_;
};

}  // namespace trellis
