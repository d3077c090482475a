#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <c10/core/TensorImpl.h>

#include "device/driver/session.h"

namespace trellis::device {

struct RecordedType {
  DType dtype;
  HostType host = HostType::kSame;
};
/// The host program's type as the records name it. Quantized and sub-byte types have no
/// counterpart: throws, naming the type.
[[nodiscard]] RecordedType record_type(c10::ScalarType type);
/// A complex tensor is recorded as its real and imaginary parts, with one more dimension.
[[nodiscard]] TensorView record_view(const c10::TensorImpl& tensor);

/// As ArrayRef's comparison, in place: a call of memcmp costs more than the few numbers of a shape.
[[nodiscard]] inline bool same_numbers(c10::IntArrayRef a, c10::IntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

/// Answers "which interned view is this tensor's" without building a TensorView: a training step
/// repeats few of them.
class ViewMemo {
 public:
  std::uint32_t id_of(const c10::TensorImpl& tensor, InternTable& table);

 private:
  struct Entry {
    bool used = false;
    c10::ScalarType type = c10::ScalarType::Undefined;
    std::uint32_t id = 0;
    std::int64_t offset = 0;
    std::vector<std::int64_t> sizes, strides;
  };
  static constexpr std::size_t kEntries = 1024;  // direct mapped, a power of two
  std::array<Entry, kEntries> entries_;
  std::uint32_t generation_ = 0;  ///< of the table
};

/// Answers "which interned texts are this call's" without writing them, for operators with at most
/// one number next to their tensors: a program repeats the one of the call before.
struct TextMemo {
  /// The bits of an integer or of a double.
  struct Number {
    enum class Type : std::uint8_t { kNone, kInteger, kDouble, kOther } type = Type::kNone;
    std::uint64_t bits = 0;
    [[nodiscard]] bool same(const Number& other) const {
      return type == other.type && bits == other.bits && type != Type::kOther;
    }
  };
  struct Entry {
    bool used = false;
    Number number;
    std::uint32_t generation = 0;  ///< of the table
    RankRecorder::OpTexts texts;
  };
  static constexpr std::size_t kOperators = 8;
  std::array<Entry, kOperators> entries;
};

}  // namespace trellis::device
