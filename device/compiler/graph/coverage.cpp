#include "device/compiler/graph/coverage.h"

namespace trellis::device {

Coverage& Coverage::operator+=(const Coverage& other) {
  lowered_ops += other.lowered_ops;
  estimated_ops += other.estimated_ops;
  lowered_flops += other.lowered_flops;
  estimated_flops += other.estimated_flops;
  return *this;
}

}  // namespace trellis::device
