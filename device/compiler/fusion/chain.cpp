#include "device/compiler/fusion/chain.h"

namespace trellis::device {

isa::AluOp exchanged(isa::AluOp alu) {
  using isa::AluOp;
  switch (alu) {
    case AluOp::kSubtract: return AluOp::kReverseSubtract;
    case AluOp::kReverseSubtract: return AluOp::kSubtract;
    case AluOp::kGreater: return AluOp::kLess;
    case AluOp::kGreaterEqual: return AluOp::kLessEqual;
    case AluOp::kLess: return AluOp::kGreater;
    case AluOp::kLessEqual: return AluOp::kGreaterEqual;
    case AluOp::kDivide:
    case AluOp::kPower: return AluOp::kNone;
    default: return alu;
  }
}

}  // namespace trellis::device
