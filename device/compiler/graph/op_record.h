#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/isa/types.h"

namespace trellis::device {

using sim::isa::DType;

/// How the host program's type differs from the DType of equal width that represents it.
enum class HostType : std::uint8_t {
  kSame,
  kComplex,      ///< the view has one more dimension: 2, real and imaginary part
  kUnsigned,     ///< uint16, uint32, uint64
  kFloat8Fnuz,   ///< the fp8 formats without negative zero
  kFloat8Scale,  ///< e8m0, a power of two
};

/// Sizes, strides and offset of one view, interned: equal views share one id. `dtype` is the host
/// program's.
struct TensorView {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  ///< elements
  std::int64_t offset = 0;            ///< elements from the start of the buffer
  DType dtype = DType::kFp32;
  HostType host = HostType::kSame;
  bool operator==(const TensorView&) const = default;
  [[nodiscard]] std::int64_t elements() const;
};

/// A tensor argument in 8 bytes: which buffer (a counter that is never reused within a rank, not an
/// address) seen through which view.
struct Operand {
  std::uint64_t buffer : 40;
  std::uint64_t view : 24;
};

/// One operation that reached the device, ≤ 64 B with its operands in the usual case.
struct OpRecord {
  std::uint32_t schema = 0;   ///< interned "aten::mm.out"
  std::uint32_t scope = 0;    ///< interned scope path, see ScopePath
  std::uint32_t scalars = 0;  ///< interned text of non-tensor arguments, e.g. "dim=[-1] keepdim=1"
  std::uint32_t first_operand = 0;  ///< inputs, then outputs, in OpStream::operands
  std::uint16_t num_inputs = 0;
  std::uint16_t num_outputs = 0;
};

/// Where an operation comes from; filled from RECORD_FUNCTION user scopes.
struct Scope {
  std::string phase;  ///< "forward", "backward", "optimizer", "init", …
  std::int32_t microbatch = -1;
  std::string layer;  ///< "model.layers.3.self_attn", "" outside layers
  auto operator<=>(const Scope&) const = default;
};

enum class BufferCategory : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kActivation,
  kTemporary,
  kInput
};
inline constexpr int kNumBufferCategories = 6;
[[nodiscard]] std::string_view name(BufferCategory);

/// Interning of one rank's records. Single-threaded: one recorder, one thread.
class InternTable {
 public:
  /// Distinct texts, or views, after which the table asks to be emptied: a few MiB. A model has
  /// some hundred.
  static constexpr std::size_t kManyEntries = std::size_t{1} << 13;
  /// Distinct scopes that are kept; later ones share one, whose layer is kFurtherScopes.
  static constexpr std::size_t kMostScopes = std::size_t{1} << 16;
  static constexpr std::string_view kFurtherScopes = "(further scopes)";

  std::uint32_t text(std::string_view text);
  std::uint32_t view(const TensorView& view);
  std::uint32_t scope(const Scope& scope);
  [[nodiscard]] const std::string& text(std::uint32_t id) const { return texts_[id].text; }
  [[nodiscard]] const TensorView& view(std::uint32_t id) const { return views_[id].view; }
  /// The bytes that the view's elements take: mostly those of its whole buffer too.
  [[nodiscard]] std::int64_t view_bytes(std::uint32_t id) const { return views_[id].bytes; }
  [[nodiscard]] const Scope& scope(std::uint32_t id) const { return scopes_[id]; }

  /// 64 bits that represent a text, or a view, in every generation. Texts that differ only in the
  /// values of ordinary numbers (see without_ordinary_numbers) have equal keys.
  [[nodiscard]] std::uint64_t text_key(std::uint32_t id) const { return texts_[id].key; }
  [[nodiscard]] std::uint64_t view_key(std::uint32_t id) const { return views_[id].key; }

  [[nodiscard]] bool is_full() const {
    return texts_.size() > kManyEntries || views_.size() > kManyEntries;
  }
  /// Forgets texts and views, whose numbers then mean others, and begins another generation. Scopes
  /// stay.
  void forget();
  [[nodiscard]] std::uint32_t generation() const { return generation_; }

 private:
  struct Text {
    std::string text;
    std::uint64_t key = 0;
  };
  struct View {
    TensorView view;
    std::int64_t bytes = 0;
    std::uint64_t key = 0;
  };
  std::deque<Text> texts_{Text{}};
  std::unordered_map<std::string_view, std::uint32_t> text_ids_;
  std::array<std::uint32_t, 256>
      recent_texts_{};  ///< direct mapped by a cheap hash: few texts come again and again
  std::deque<View> views_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> view_ids_;  ///< by key
  std::deque<Scope> scopes_{Scope{}};
  std::map<Scope, std::uint32_t> scope_ids_{{Scope{}, 0}};
  std::uint32_t generation_ = 0;
};

/// "value=-0.0009 dim=1" as "value=-~ dim=1": ordinary numbers are finite and no multiples of a
/// half. Steps differ in them (learning rates, bias corrections, scales), and no program's time
/// depends on them.
[[nodiscard]] std::string without_ordinary_numbers(std::string_view text);

}  // namespace trellis::device
