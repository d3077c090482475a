#include "trainer/files/checkpoint/containers/dtype.h"

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

struct DTypeRow {
  DType dtype;
  std::int64_t bytes;
  const char* name;
};

/// In the order of DType.
constexpr DTypeRow kDTypes[] = {
    {DType::kFloat64, 8, "float64"},
    {DType::kFloat32, 4, "float32"},
    {DType::kFloat16, 2, "float16"},
    {DType::kBFloat16, 2, "bfloat16"},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn"},
    {DType::kFloat8E5M2, 1, "float8_e5m2"},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz"},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz"},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu"},
    {DType::kInt64, 8, "int64"},
    {DType::kInt32, 4, "int32"},
    {DType::kInt16, 2, "int16"},
    {DType::kInt8, 1, "int8"},
    {DType::kUInt64, 8, "uint64"},
    {DType::kUInt32, 4, "uint32"},
    {DType::kUInt16, 2, "uint16"},
    {DType::kUInt8, 1, "uint8"},
    {DType::kBool, 1, "bool"},
    {DType::kComplex32, 4, "complex32"},
    {DType::kComplex64, 8, "complex64"},
    {DType::kComplex128, 16, "complex128"},
};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> all = [] {
    std::vector<DType> dtypes;
    for (const DTypeRow& r : kDTypes) dtypes.push_back(r.dtype);
    return dtypes;
  }();
  return all;
}

std::int64_t element_bytes(DType dtype) { return row(dtype).bytes; }
const char* name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_named(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const DTypeRow& r : kDTypes) {
    if (name == r.name) return r.dtype;
  }
  return std::nullopt;
}

std::int64_t TensorMeta::numel() const {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

void check_shape(const TensorMeta& meta, const std::string& where) {
  if (meta.shape.size() > 64) {
    throw ConfigError(where + ": a tensor of " + std::to_string(meta.shape.size()) +
                      " dimensions; expected at most 64");
  }
  std::int64_t bytes = element_bytes(meta.dtype);
  for (const std::int64_t size : meta.shape) {
    if (size < 0) throw ConfigError(where + ": a tensor of size " + std::to_string(size));
    // Sizes next to a 0 count too: their product must not overflow either.
    if (__builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes))
      throw ConfigError(where + ": a tensor of more bytes than 64 bits count");
  }
}

}  // namespace trellis::checkpoint
