#include "sim/neuron_core/resolved_queue.h"

#include <gtest/gtest.h>

#include "sim/config/load_system.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::Opcode;
using isa::testing::tile;

/// A column of one SBUF buffer.
AccessPattern column(int index) {
  AccessPattern a = tile(0, DType::kFp32, 128, 1);
  a.offset = index;
  return a;
}

Instruction copy(AccessPattern dst, AccessPattern src0) {
  Instruction i;
  i.opcode = Opcode::kTensorCopy;
  i.dst = dst;
  i.src0 = src0;
  return i;
}

Instruction control(Opcode opcode, std::int64_t count = 1) {
  Instruction i;
  i.opcode = opcode;
  i.count = count;
  return i;
}

/// The producers for which each compute instruction of a VectorE queue waits.
std::vector<int> producers(const std::vector<Instruction>& queue) {
  isa::Program p;
  p.buffers = {{isa::MemorySpace::kSbuf, "a", 0, -1, 0, 128, 4096, 0}};
  p.segments.resize(1);
  p.segments[0].queues[static_cast<std::size_t>(Engine::kVector)] = queue;
  const auto queues = resolve_segment(p, p.segments[0], load_system("trn2.48xlarge").chip.core);
  std::vector<int> found;
  for (const auto& op : queues[static_cast<std::size_t>(Engine::kVector)].ops) {
    if (op.kind == ResolvedOp::Kind::kCompute) found.push_back(op.producer);
  }
  return found;
}

TEST(Producers, AreTheNearestInTheWindow) {
  EXPECT_EQ(producers({copy(column(1), column(0)), copy(column(2), column(0)),
                       copy(column(3), column(1))}),
            (std::vector{0, 0, 2}));
  EXPECT_EQ(producers({copy(column(1), column(0)), copy(column(1), column(0)),
                       copy(column(3), column(1))}),
            (std::vector{0, 0, 1}));
  std::vector<Instruction> far{copy(column(1), column(0))};
  for (int i = 0; i < kProducerWindow; ++i) far.push_back(copy(column(10 + i), column(0)));
  far.push_back(copy(column(3), column(1)));
  EXPECT_EQ(producers(far).back(), 0);
}

TEST(Producers, SecondResultsCount) {
  Instruction first = copy(column(1), column(0));
  first.opcode = Opcode::kTensorScalar;
  first.dst1 = column(5);
  EXPECT_EQ(producers({first, copy(column(2), column(5))}), (std::vector{0, 1}));
}

TEST(Producers, ReachBackIntoTheIterationBefore) {
  const auto begin = control(Opcode::kLoop, 4), end = control(Opcode::kEndLoop);
  // c1 ← c2 at the start of the body, c2 ← c0 at its end: one instruction before, over the loop's
  // edge.
  EXPECT_EQ(producers({begin, copy(column(1), column(2)), copy(column(2), column(0)), end}),
            (std::vector{1, 0}));
  EXPECT_EQ(producers({begin, copy(column(1), column(2)), copy(column(2), column(0)),
                       copy(column(3), column(0)), end}),
            (std::vector{2, 0, 0}));
  // The second instruction reads what the last one of the iteration before wrote.
  EXPECT_EQ(producers({begin, copy(column(1), column(0)), copy(column(4), column(2)),
                       copy(column(2), column(0)), end}),
            (std::vector{0, 2, 0}));
}

TEST(Producers, MoveWithTheIteration) {
  const auto begin = control(Opcode::kLoop, 4), end = control(Opcode::kEndLoop);
  // A ring of two: this iteration reads the other slot than the one that the iteration before
  // wrote.
  AccessPattern ring = column(0);
  ring.rotate_count = 2;
  ring.rotate_stride = 100;
  EXPECT_EQ(producers({begin, copy(column(1), ring), copy(ring, column(2)), end}),
            (std::vector{0, 0}));
  AccessPattern moving = column(0);
  moving.loop_stride[0] = 100;
  EXPECT_EQ(producers({begin, copy(column(1), moving), copy(moving, column(2)), end}),
            (std::vector{0, 0}));
  moving.loop_stride[0] = 0;
  EXPECT_EQ(producers({begin, copy(column(1), moving), copy(moving, column(2)), end}),
            (std::vector{1, 0}));
}

}  // namespace
}  // namespace trellis::sim
