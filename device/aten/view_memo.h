#pragma once

#include <array>
#include <cstdint>

#include <c10/core/TensorImpl.h>

#include "device/compiler/op_record.h"

namespace trellis::device {

/// The host program's type as the records name it. Complex and quantized types have no counterpart: throws, naming the type.
[[nodiscard]] DType record_dtype(c10::ScalarType type);

/// Answers "which interned view is this tensor's" without building a TensorView: a training step repeats few of them.
class ViewMemo {
 public:
  std::uint32_t id_of(const c10::TensorImpl& tensor, InternTable& table);

 private:
  struct Entry {
    bool used = false;
    c10::ScalarType type = c10::ScalarType::Undefined;
    std::uint32_t id = 0;
    TensorView view;
  };
  static constexpr std::size_t kEntries = 1024;  // direct mapped, a power of two
  std::array<Entry, kEntries> entries_;
};

}  // namespace trellis::device
