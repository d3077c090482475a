#include "device/aten/shapes/shape_policy.h"

#include <atomic>

#include <torch/library.h>

#include "device/aten/shapes/kernel_tables.h"

namespace trellis::device {
namespace {

std::atomic<ShapePolicy> policy{ShapePolicy::kRefuse};

/// torch.ops.trellis.shape_policy("upper_bound") → the policy before.
std::string set_policy(std::string name) {  // by value: operators own their strings
  const std::string before = name_of(shape_policy());
  set_shape_policy(shape_policy_named(name));
  return before;
}

TORCH_LIBRARY_FRAGMENT(trellis, library) {
  library.def("shape_policy(str policy) -> str", set_policy);
}

}  // namespace

ShapePolicy shape_policy() noexcept { return policy.load(std::memory_order_relaxed); }
void set_shape_policy(ShapePolicy wanted) noexcept {
  policy.store(wanted, std::memory_order_relaxed);
}

ShapePolicy shape_policy_named(std::string_view name) {
  if (name == "refuse") return ShapePolicy::kRefuse;
  if (name == "upper_bound") return ShapePolicy::kUpperBound;
  TORCH_CHECK_VALUE(false, "shape_policy: expected \"refuse\" or \"upper_bound\", got \"", name,
                    "\"");
}

const char* name_of(ShapePolicy one) noexcept {
  return one == ShapePolicy::kRefuse ? "refuse" : "upper_bound";
}

void accept_upper_bound(const char* hint) {
  if (shape_policy() == ShapePolicy::kRefuse) throw DataDependent{hint};
}

}  // namespace trellis::device
