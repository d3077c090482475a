#include "sim/neuron_core/engine_cost.h"

#include <gtest/gtest.h>

#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;
using isa::testing::tile;

constexpr std::uint32_t kSbuf = 0, kSbuf2 = 1, kPsum = 2;

isa::Program two_memories() {
  isa::Program p;
  p.buffers = {{MemorySpace::kSbuf, "a", 0, -1, 0, 128, 65536, 0}, {MemorySpace::kSbuf, "b", 0, -1, 0, 128, 65536, 65536}, {MemorySpace::kPsum, "c", 0, -1, 0, 128, 16384, 0}};
  return p;
}

Instruction make(Opcode opcode, AccessPattern dst, AccessPattern src0, AccessPattern src1 = {}) {
  Instruction i;
  i.opcode = opcode;
  i.dst = dst;
  i.src0 = src0;
  i.src1 = src1;
  return i;
}

class EngineCostTest : public ::testing::Test {
 protected:
  /// Cycles of the engine's own (physical) clock.
  double cycles(const Instruction& i, Engine engine, const char* instance = "trn1.32xlarge") {
    const SystemConfig system = load_system(instance);
    const CoreConfig& core = system.chip.core;
    const Hertz clock = engine == Engine::kTensor ? core.tensor.clock : engine == Engine::kVector ? core.vector.clock : engine == Engine::kScalar ? core.scalar.clock : core.gpsimd.clock;
    return static_cast<double>(engine_cost(i, engine, program_, core).occupancy.value) * clock.value / 1e12;
  }
  isa::Program program_ = two_memories();
};

TEST_F(EngineCostTest, MatmulsTakeOneCycleAColumnButNeverLessThanTheInterval) {
  const auto matmul = [](int columns, DType dtype) { return make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, columns), tile(kSbuf, dtype, 128, columns)); };
  EXPECT_NEAR(cycles(matmul(512, DType::kBf16), Engine::kTensor), 512, 0.01);
  EXPECT_NEAR(cycles(matmul(16, DType::kBf16), Engine::kTensor), 64, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kFp32), Engine::kTensor), 4 * 512, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kTf32), Engine::kTensor), 512, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kFp8E4M3), Engine::kTensor, "trn2.48xlarge"), 256, 0.01);
}

/// Published: an fp32 matmul of 128 x 128 x 512 on one physical Trn2 core takes 859 ns.
TEST_F(EngineCostTest, Fp32MatmulOfTrn2MatchesItsMeasurement) {
  SystemConfig system = load_system("trn2.48xlarge");
  const Instruction i = make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, 512), tile(kSbuf, DType::kFp32, 128, 512));
  const double logical = static_cast<double>(engine_cost(i, Engine::kTensor, program_, system.chip.core).occupancy.value);
  EXPECT_NEAR(2 * logical, 859e3, 0.01 * 859e3);
}

/// Published: copying 128 x 512 fp32 from PSUM takes about 695 ns on one physical Trn2 core, start to end.
TEST_F(EngineCostTest, PsumCopyOfTrn2MatchesItsMeasurement) {
  SystemConfig system = load_system("trn2.48xlarge");
  const Instruction i = make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp32, 128, 512), tile(kPsum, DType::kFp32, 128, 512));
  const EngineCost cost = engine_cost(i, Engine::kVector, program_, system.chip.core);
  EXPECT_NEAR(static_cast<double>(2 * cost.occupancy.value + cost.latency.value), 695e3, 0.02 * 695e3);
}

TEST_F(EngineCostTest, VectorPassesDependOnWhereOperandsLie) {
  const auto sbuf = tile(kSbuf, DType::kFp32, 128, 256);
  const auto sbuf2 = tile(kSbuf2, DType::kFp32, 128, 256);
  const auto psum = tile(kPsum, DType::kFp32, 128, 256);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, sbuf, sbuf, sbuf2), Engine::kVector), 512, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, sbuf, psum, sbuf2), Engine::kVector), 256, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, sbuf, psum), Engine::kVector), 256, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kSelect, sbuf, sbuf, sbuf2), Engine::kVector), 512, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp32, 128, 8), tile(kSbuf2, DType::kFp32, 128, 8)), Engine::kVector), 64, 0.01);
  Instruction reciprocal = make(Opcode::kActivation, sbuf, sbuf2);
  reciprocal.activation = Activation::kReciprocal;
  EXPECT_NEAR(cycles(reciprocal, Engine::kVector), 8 * 256, 0.01);
  EXPECT_NEAR(cycles(reciprocal, Engine::kScalar), 256, 0.01);
}

TEST_F(EngineCostTest, PerfModesOfTrn2SpeedUpTwoByteDataInSbuf) {
  const auto a = tile(kSbuf, DType::kBf16, 128, 4096);
  const auto b = tile(kSbuf2, DType::kBf16, 128, 4096);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, b), Engine::kVector, "trn2.48xlarge"), 1024, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, a, b, b), Engine::kVector, "trn2.48xlarge"), 2048, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, tile(kPsum, DType::kBf16, 128, 4096)), Engine::kVector, "trn2.48xlarge"), 2048, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, b), Engine::kVector, "trn1.32xlarge"), 4096, 0.01);
}

TEST_F(EngineCostTest, WideStridesHalveTheBandwidth) {
  auto strided = tile(kSbuf, DType::kFp32, 128, 256);
  strided.dims[0].stride = 8;  // 32 bytes
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, tile(kSbuf2, DType::kFp32, 128, 256), strided), Engine::kVector), 512, 0.01);
}

TEST_F(EngineCostTest, GpSimdPaysItsStartEachTime) {
  const auto a = tile(kSbuf, DType::kFp32, 128, 256);
  EXPECT_NEAR(cycles(make(Opcode::kIota, a, {}), Engine::kGpSimd), 150 + 256, 0.01);
}

TEST_F(EngineCostTest, GenericOperationsCostTheirPasses) {
  Instruction i = make(Opcode::kGeneric, tile(kSbuf, DType::kFp32, 128, 256), tile(kSbuf2, DType::kFp32, 128, 256));
  i.imm0 = 5;
  EXPECT_NEAR(cycles(i, Engine::kVector), 5 * 256, 0.01);
}

TEST_F(EngineCostTest, DependenceIsAboutOverlap) {
  const auto whole = tile(kSbuf, DType::kFp32, 128, 256);
  auto right = tile(kSbuf, DType::kFp32, 128, 128);
  right.offset = 128;
  const auto left = tile(kSbuf, DType::kFp32, 128, 128);
  const auto other = tile(kSbuf2, DType::kFp32, 128, 256);
  const Instruction writes_left = make(Opcode::kTensorCopy, left, tile(kSbuf2, DType::kFp32, 128, 128));
  EXPECT_TRUE(depends_on(make(Opcode::kTensorCopy, other, whole), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, left, right), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, whole, other), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, other, tile(kSbuf, DType::kFp32, 32, 256, 64)),
      make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp32, 32, 256), tile(kSbuf2, DType::kFp32, 32, 256)), program_));
}

}  // namespace
}  // namespace trellis::sim
