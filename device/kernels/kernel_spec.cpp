#include "device/kernels/kernel_spec.h"

namespace trellis::device {

std::int64_t KernelOperand::elements() const {
  std::int64_t n = 1;
  for (std::int64_t s : sizes) n *= s;
  return n;
}

}  // namespace trellis::device
