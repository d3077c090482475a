#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trellis {

/// Values one after the other in this machine's byte order; strings and lists with their length
/// first.
class ByteWriter {
 public:
  template <typename T>
    requires(std::is_arithmetic_v<T>)
  void operator()(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void operator()(std::string_view text) {
    (*this)(std::uint64_t{text.size()});
    bytes_ += text;
  }
  template <typename T, typename Each>
  void list(const std::vector<T>& items, Each each) {
    (*this)(std::uint64_t{items.size()});
    for (const T& item : items) each(item);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter wrote, from any bytes. After the first value that is not there or not one
/// of its type, ok() is false and nothing more is read.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  template <typename T>
    requires(std::is_arithmetic_v<T>)
  void operator()(T& value) {
    if (take(sizeof value)) std::memcpy(&value, taken_.data(), sizeof value);
  }
  void operator()(bool& value) {
    std::uint8_t byte = 0;
    (*this)(byte);
    ok_ = ok_ && byte <= 1;
    value = byte == 1;
  }
  void operator()(std::string& text) {
    std::string_view view;
    (*this)(view);
    if (ok_) text = view;
  }
  /// A part of the bytes that are read.
  void operator()(std::string_view& text) {
    std::uint64_t size = 0;
    (*this)(size);
    if (take(size)) text = taken_;
  }
  template <typename T, typename Each>
  void list(std::vector<T>& items, Each each) {
    std::uint64_t size = 0;
    (*this)(size);
    for (std::uint64_t i = 0; i < size && ok_; ++i) each(items.emplace_back());
  }

 private:
  bool take(std::uint64_t size) {
    ok_ = ok_ && size <= rest_.size();
    if (!ok_) return false;
    taken_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_, taken_;
  bool ok_ = true;
};

}  // namespace trellis
