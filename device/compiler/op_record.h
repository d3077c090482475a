#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/isa/types.h"

namespace trellis::device {

using sim::isa::DType;

/// What the host program's type is beyond the DType of equal width that stands for it.
enum class HostType : std::uint8_t {
  kSame,
  kComplex,      ///< the view has one more dimension: 2, real and imaginary part
  kUnsigned,     ///< uint16, uint32, uint64
  kFloat8Fnuz,   ///< the fp8 formats without negative zero
  kFloat8Scale,  ///< e8m0, a power of two
};

/// Sizes, strides and offset of one view, interned: equal views share one id. `dtype` is the host program's.
struct TensorView {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  ///< elements
  std::int64_t offset = 0;            ///< elements from the start of the buffer
  DType dtype = DType::kFp32;
  HostType host = HostType::kSame;
  bool operator==(const TensorView&) const = default;
  [[nodiscard]] std::int64_t elements() const;
};

/// A tensor argument in 8 bytes: which buffer (a counter that is never reused within a rank, not an address) seen through which view.
struct Operand {
  std::uint64_t buffer : 40;
  std::uint64_t view : 24;
};

/// One operation that reached the device, ≤ 64 B with its operands in the usual case.
struct OpRecord {
  std::uint32_t schema = 0;        ///< interned "aten::mm.out"
  std::uint32_t scope = 0;         ///< interned scope path, see ScopePath
  std::uint32_t scalars = 0;       ///< interned text of non-tensor arguments, e.g. "dim=[-1] keepdim=1"
  std::uint32_t first_operand = 0; ///< inputs, then outputs, in OpStream::operands
  std::uint16_t num_inputs = 0;
  std::uint16_t num_outputs = 0;
};

/// Where an operation comes from; filled from RECORD_FUNCTION user scopes.
struct Scope {
  std::string phase;        ///< "forward", "backward", "optimizer", "init", …
  std::int32_t microbatch = -1;
  std::string layer;        ///< "model.layers.3.self_attn", "" outside layers
  bool operator==(const Scope&) const = default;
};

enum class BufferCategory : std::uint8_t { kParameter, kGradient, kOptimizerState, kActivation, kTemporary, kInput };
inline constexpr int kNumBufferCategories = 6;
[[nodiscard]] std::string_view name(BufferCategory);

/// Interning of one rank's records. Single-threaded: one recorder, one thread.
class InternTable {
 public:
  std::uint32_t text(std::string_view text);
  std::uint32_t view(const TensorView& view);
  std::uint32_t scope(const Scope& scope);
  [[nodiscard]] const std::string& text(std::uint32_t id) const { return texts_[id]; }
  [[nodiscard]] const TensorView& view(std::uint32_t id) const { return views_[id]; }
  /// The bytes that the view's elements take: mostly those of its whole buffer too.
  [[nodiscard]] std::int64_t view_bytes(std::uint32_t id) const { return view_bytes_[id]; }
  [[nodiscard]] const Scope& scope(std::uint32_t id) const { return scopes_[id]; }

 private:
  std::deque<std::string> texts_{std::string()};
  std::unordered_map<std::string_view, std::uint32_t> text_ids_;
  std::array<std::uint32_t, 256> recent_texts_{};  ///< direct mapped by a cheap hash: few texts come again and again
  std::deque<TensorView> views_;
  std::vector<std::int64_t> view_bytes_;  ///< beside views_
  std::unordered_multimap<std::uint64_t, std::uint32_t> view_ids_;
  std::deque<Scope> scopes_{Scope{}};
};

}  // namespace trellis::device
