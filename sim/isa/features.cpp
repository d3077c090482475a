#include "sim/isa/features.h"

namespace trellis::sim::isa {

int first_core_version(Opcode opcode) {
  switch (opcode) {
    case Opcode::kCoreBarrier:
    case Opcode::kSendRecv:
    case Opcode::kDmaTranspose: return 3;
    case Opcode::kExponential:
    case Opcode::kQuantizeMx: return 4;
    default: return 2;
  }
}

int first_core_version(DType dtype) { return is_mx(dtype) || dtype == DType::kFp8E4M3Fn ? 4 : 2; }

int first_core_version(MatmulMode mode) {
  return mode == MatmulMode::kDoubleRow || mode == MatmulMode::kSparse ? 3 : 2;
}

}  // namespace trellis::sim::isa
