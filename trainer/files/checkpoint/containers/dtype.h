#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::checkpoint {

/// Element types of tensors in files: torch's.
enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kBool,
  kComplex32,
  kComplex64,
  kComplex128,
};

[[nodiscard]] const std::vector<DType>& all_dtypes();
/// Bytes of one element.
[[nodiscard]] std::int64_t element_bytes(DType dtype);
/// Torch's name without "torch.", such as "bfloat16" or "float8_e4m3fn".
[[nodiscard]] const char* name(DType dtype);
/// The type with this name in torch, with or without "torch.".
[[nodiscard]] std::optional<DType> dtype_named(std::string_view name);

/// Description of a tensor in a file, without its data.
struct TensorMeta {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape = {};  ///< {}: one element
  bool requires_grad = false;
  bool is_parameter = false;  ///< torch.nn.Parameter

  /// Elements and bytes in contiguous form. REQUIRES: check_shape holds.
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t bytes() const { return numel() * element_bytes(dtype); }
  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

/// Throws ConfigError with `where` for a negative size, more than 64 dimensions, or more bytes than
/// int64 counts.
void check_shape(const TensorMeta& meta, const std::string& where);

}  // namespace trellis::checkpoint
