#include "trainer/checkpoint/state/torch_dtype.h"

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

constexpr std::pair<DType, c10::ScalarType> kTypes[] = {
    {DType::kFloat64, c10::kDouble}, {DType::kFloat32, c10::kFloat},
    {DType::kFloat16, c10::kHalf},   {DType::kBFloat16, c10::kBFloat16},
    {DType::kInt64, c10::kLong},     {DType::kInt32, c10::kInt},
    {DType::kInt16, c10::kShort},    {DType::kInt8, c10::kChar},
    {DType::kUInt8, c10::kByte},     {DType::kBool, c10::kBool}};

}  // namespace

DType dtype_of(c10::ScalarType type) {
  for (const auto& [dtype, scalar] : kTypes) {
    if (scalar == type) return dtype;
  }
  TORCH_INTERNAL_ASSERT(false, "no checkpoint holds tensors of ", type);
}

c10::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [known, scalar] : kTypes) {
    if (known == dtype) return scalar;
  }
  throw ConfigError(std::string("a tensor of ") + name(dtype) +
                    " cannot be a weight or an optimizer state: expected a floating-point type "
                    "of the trainer; convert the checkpoint");
}

}  // namespace trellis::checkpoint
