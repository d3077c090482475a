#include "sim/neuron_core/engine_cost.h"

#include <gtest/gtest.h>

#include "sim/config/load_system.h"
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
  p.buffers = {{MemorySpace::kSbuf, "a", 0, -1, 0, 128, 65536, 0},
               {MemorySpace::kSbuf, "b", 0, -1, 0, 128, 65536, 65536},
               {MemorySpace::kPsum, "c", 0, -1, 0, 128, 16384, 0}};
  return p;
}

Instruction make(Opcode opcode, AccessPattern dst, AccessPattern src0 = {},
                 AccessPattern src1 = {}) {
  Instruction i;
  i.opcode = opcode;
  i.dst = dst;
  i.src0 = src0;
  i.src1 = src1;
  return i;
}

class EngineCostTest : public ::testing::Test {
 protected:
  /// Cycles of the engine's own clock; Tensor: without the overhead of an instruction; others:
  /// without the gap to the next one's data.
  double cycles(const Instruction& i, Engine engine, const char* instance = "trn1.32xlarge") {
    const SystemConfig system = load_system(instance);
    CoreConfig core = system.chip.core;
    for (EngineConfig* c : {&core.vector, &core.scalar})
      c->interval_cycles = c->psum_interval_cycles = c->copy_interval_cycles = 0;
    const Hertz clock = engine == Engine::kTensor   ? core.tensor.clock
                        : engine == Engine::kVector ? core.vector.clock
                        : engine == Engine::kScalar ? core.scalar.clock
                                                    : core.gpsimd.clock;
    const double all = static_cast<double>(engine_cost(i, engine, program_, core).occupancy.value) *
                       clock.value / 1e12;
    if (engine != Engine::kTensor || i.opcode == Opcode::kLoadStationary) return all;
    return all - (i.src0.dtype == DType::kFp32 ? 2 * core.tensor.fp32_overhead_cycles
                                               : core.tensor.overhead_cycles);
  }
  isa::Program program_ = two_memories();
};

TEST_F(EngineCostTest, MatmulsTakeOneCycleAColumnButNeverLessThanTheInterval) {
  const auto matmul = [](int columns, DType dtype) {
    return make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, columns),
                tile(kSbuf, dtype, 128, columns));
  };
  EXPECT_NEAR(cycles(matmul(512, DType::kBf16), Engine::kTensor), 512, 0.01);
  EXPECT_NEAR(cycles(matmul(16, DType::kBf16), Engine::kTensor), 64, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kFp32), Engine::kTensor), 4 * 512, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kTf32), Engine::kTensor), 512, 0.01);
  EXPECT_NEAR(cycles(matmul(512, DType::kFp8E4M3), Engine::kTensor, "trn2.48xlarge"), 512,
              0.01);  // one row a cycle without double-row mode
  // Narrow weights: max(min(64, stationary columns), moving columns).
  EXPECT_NEAR(cycles(make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 16, 8),
                          tile(kSbuf, DType::kBf16, 128, 8)),
                     Engine::kTensor),
              16, 0.01);
}

TEST_F(EngineCostTest, ModesOfTheArrayContractMoreInTheSameTime) {
  const auto matmul = [](isa::MatmulMode mode, AccessPattern moving) {
    Instruction i = make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, 512), moving);
    i.mode = mode;
    return i;
  };
  EXPECT_NEAR(
      cycles(matmul(isa::MatmulMode::kDoubleRow, tile(kSbuf, DType::kFp8E4M3, 128, 2 * 512)),
             Engine::kTensor, "trn2.48xlarge"),
      512, 0.01);
  EXPECT_NEAR(cycles(matmul(isa::MatmulMode::kSparse, tile(kSbuf, DType::kBf16, 128, 4 * 512)),
                     Engine::kTensor, "trn2.48xlarge"),
              512, 0.01);
  EXPECT_NEAR(cycles(matmul(isa::MatmulMode::kDense, tile(kSbuf, DType::kFp4E2M1X4, 128, 512)),
                     Engine::kTensor, "trn3-gen1"),
              512, 0.01);
}

TEST_F(EngineCostTest, TransposesAndWeightLoads) {
  const auto transpose = [](DType dtype) {
    return make(Opcode::kTranspose, tile(kPsum, dtype, 128, 128), tile(kSbuf, dtype, 128, 128));
  };
  EXPECT_NEAR(cycles(transpose(DType::kBf16), Engine::kTensor), 128, 0.01);
  EXPECT_NEAR(cycles(transpose(DType::kFp32), Engine::kTensor), 4 * 128, 0.01);
  EXPECT_NEAR(cycles(transpose(DType::kFp32), Engine::kTensor, "trn2.48xlarge"), 2 * 128, 0.01);
  EXPECT_NEAR(cycles(transpose(DType::kBf16), Engine::kTensor, "trn3-gen1"), 64, 0.01);
  Instruction load = make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kFp8E4M3, 128, 256));
  load.mode = isa::MatmulMode::kDoubleRow;
  EXPECT_NEAR(cycles(load, Engine::kTensor, "trn2.48xlarge"), 32, 0.01);
}

/// Start to end of single instructions, as profiles show them; one physical core.
class PublishedTimes : public ::testing::Test {
 protected:
  static CoreConfig core(const char* instance) {
    LoadOptions options;
    options.logical_core_size = 1;
    return load_system(instance, options).chip.core;
  }
  double nanoseconds(const Instruction& i, Engine engine, const char* instance) {
    const EngineCost cost = engine_cost(i, engine, program_, core(instance));
    return static_cast<double>((cost.occupancy + cost.latency).value) / 1e3;
  }
  static Instruction activate(int n) {
    Instruction i = make(Opcode::kActivation, tile(kSbuf, DType::kBf16, 128, n),
                         tile(kSbuf2, DType::kBf16, 128, n));
    i.activation = Activation::kExp;
    return i;
  }
  isa::Program program_ = two_memories();
};

constexpr double kSingleTolerance = 0.02;

TEST_F(PublishedTimes, MatmulOfTrn1) {
  const Instruction i =
      make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 1, 128), tile(kSbuf, DType::kBf16, 128, 128));
  EXPECT_NEAR(nanoseconds(i, Engine::kTensor, "trn1.32xlarge"), 188, kSingleTolerance * 188);
  const Instruction load = make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 128, 1));
  EXPECT_NEAR(nanoseconds(load, Engine::kTensor, "trn1.32xlarge"), 67, kSingleTolerance * 67);
}

TEST_F(PublishedTimes, Fp32MatmulOfTrn2) {
  const Instruction i = make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, 512),
                             tile(kSbuf, DType::kFp32, 128, 512));
  const EngineCost cost = engine_cost(i, Engine::kTensor, program_, core("trn2.48xlarge"));
  EXPECT_NEAR(static_cast<double>(cost.occupancy.value), 859e3,
              kSingleTolerance * 859e3);  // 32,768 of them in 28.15 ms: an interval
}

TEST_F(PublishedTimes, Bf16MatmulOfTrn2) {
  const Instruction i = make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 128, 512),
                             tile(kSbuf, DType::kBf16, 128, 512));
  const EngineCost cost = engine_cost(i, Engine::kTensor, program_, core("trn2.48xlarge"));
  EXPECT_NEAR(static_cast<double>(cost.occupancy.value), 1781e6 / 8192, kSingleTolerance * 217e3);
  EXPECT_NEAR(static_cast<double>(cost.occupancy.value), 2.0 * 128 * 128 * 512 / 77.2,
              kSingleTolerance * 217e3);
}

TEST_F(PublishedTimes, PsumEvictionsOfTrn2) {
  const auto sbuf = tile(kSbuf, DType::kFp32, 128, 512);
  const auto psum = tile(kPsum, DType::kFp32, 128, 512);
  EXPECT_NEAR(nanoseconds(make(Opcode::kTensorCopy, sbuf, psum), Engine::kVector, "trn2.48xlarge"),
              695, kSingleTolerance * 695);
  EXPECT_NEAR(
      nanoseconds(make(Opcode::kTensorTensor, sbuf, psum, sbuf), Engine::kVector, "trn2.48xlarge"),
      687, kSingleTolerance * 687);
}

TEST_F(PublishedTimes, ActivationsOfTrn1AndTrn2) {
  EXPECT_NEAR(nanoseconds(activate(4096), Engine::kScalar, "trn2.48xlarge"), 3708,
              kSingleTolerance * 3708);
  EXPECT_NEAR(nanoseconds(activate(128), Engine::kScalar, "trn2.48xlarge"), 397,
              kSingleTolerance * 397);
  EXPECT_NEAR(nanoseconds(activate(1), Engine::kScalar, "trn1.32xlarge"), 159,
              kSingleTolerance * 159);
  const EngineCost cost =
      engine_cost(activate(1), Engine::kScalar, program_, core("trn1.32xlarge"));
  const double dependent =
      static_cast<double>((cost.occupancy + cost.latency + cost.dependent_delay).value);
  EXPECT_NEAR(dependent, 189e3, kSingleTolerance * 189e3);
}

TEST_F(EngineCostTest, VectorPassesDependOnWhereOperandsLie) {
  const auto sbuf = tile(kSbuf, DType::kFp32, 128, 256);
  const auto sbuf2 = tile(kSbuf2, DType::kFp32, 128, 256);
  const auto psum = tile(kPsum, DType::kFp32, 128, 256);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, sbuf, sbuf, sbuf2), Engine::kVector), 512, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, sbuf, psum, sbuf2), Engine::kVector), 256, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, sbuf, psum), Engine::kVector), 256, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kSelect, sbuf, sbuf, sbuf2), Engine::kVector), 512, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp32, 128, 8),
                          tile(kSbuf2, DType::kFp32, 128, 8)),
                     Engine::kVector),
              64, 0.01);
  Instruction reciprocal = make(Opcode::kActivation, sbuf, sbuf2);
  reciprocal.activation = Activation::kReciprocal;
  EXPECT_NEAR(cycles(reciprocal, Engine::kVector), 8 * 256, 0.01);
  EXPECT_NEAR(cycles(reciprocal, Engine::kScalar), 256, 0.01);
}

TEST_F(EngineCostTest, PerfModesOfTrn2SpeedUpTwoByteDataInSbuf) {
  const auto a = tile(kSbuf, DType::kBf16, 128, 4096);
  const auto b = tile(kSbuf2, DType::kBf16, 128, 4096);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, b), Engine::kVector, "trn2.48xlarge"), 1024,
              0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, a, b, b), Engine::kVector, "trn2.48xlarge"), 2048,
              0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, tile(kPsum, DType::kBf16, 128, 4096)),
                     Engine::kVector, "trn2.48xlarge"),
              2048, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, a, b), Engine::kVector, "trn1.32xlarge"), 4096,
              0.01);
}

TEST_F(EngineCostTest, PerfModesEndWhereTheDocumentsSaySo) {
  const auto copy = [this](AccessPattern dst, AccessPattern src, const char* instance) {
    return cycles(make(Opcode::kTensorCopy, dst, src), Engine::kVector, instance);
  };
  auto strided = tile(kSbuf, DType::kBf16, 128, 4096);
  strided.dims[0].stride = 2;
  const auto bf16 = tile(kSbuf2, DType::kBf16, 128, 4096);
  const auto psum = tile(kPsum, DType::kBf16, 128, 4096);
  const auto fp8 = tile(kSbuf, DType::kFp8E4M3, 128, 4096);
  EXPECT_NEAR(copy(bf16, strided, "trn2.48xlarge"), 2048, 0.01);
  EXPECT_NEAR(copy(psum, psum, "trn2.48xlarge"), 4096, 0.01);
  EXPECT_NEAR(copy(psum, strided, "trn2.48xlarge"), 4096, 0.01);
  EXPECT_NEAR(copy(tile(kSbuf, DType::kInt16, 128, 4096), tile(kSbuf2, DType::kInt16, 128, 4096),
                   "trn2.48xlarge"),
              4096, 0.01);
  EXPECT_NEAR(copy(fp8, bf16, "trn2.48xlarge"), 4096, 0.01);
  EXPECT_NEAR(copy(fp8, bf16, "trn3-gen1"), 1024, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, fp8, bf16), Engine::kScalar, "trn3-gen1"), 2048,
              0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, bf16, bf16), Engine::kScalar, "trn2.48xlarge"), 4096,
              0.01);
  EXPECT_NEAR(
      cycles(make(Opcode::kTensorTensor, psum, bf16, bf16), Engine::kVector, "trn2.48xlarge"), 2048,
      0.01);
  EXPECT_NEAR(cycles(make(Opcode::kTensorTensor, bf16, bf16, tile(kSbuf, DType::kFp32, 128, 4096)),
                     Engine::kVector, "trn2.48xlarge"),
              8192, 0.01);
}

/// The formulas of hardware.md 2.8, N = 256.
TEST_F(EngineCostTest, FormulasOfTheIsaPages) {
  const auto a = tile(kSbuf, DType::kFp32, 128, 256), b = tile(kSbuf2, DType::kFp32, 128, 256),
             psum = tile(kPsum, DType::kFp32, 128, 256);
  const auto a16 = tile(kSbuf, DType::kBf16, 128, 256), b16 = tile(kSbuf2, DType::kBf16, 128, 256);
  const auto vector = [this](Instruction i) { return cycles(i, Engine::kVector); };
  const auto with = [](Instruction i, AluOp alu, AluOp alu2 = AluOp::kNone) {
    i.alu = alu;
    i.alu2 = alu2;
    return i;
  };
  EXPECT_NEAR(vector(with(make(Opcode::kTensorTensor, a16, a16, b16), AluOp::kAdd)), 256, 0.01);
  EXPECT_NEAR(vector(with(make(Opcode::kTensorTensor, a16, a16, b16), AluOp::kMax)), 512, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kTensorTensor, a, psum, psum)), 512, 0.01);
  EXPECT_NEAR(vector(with(make(Opcode::kScalarTensorTensor, a16, a16, b16), AluOp::kSubtract,
                          AluOp::kMultiply)),
              256, 0.01);
  EXPECT_NEAR(
      vector(with(make(Opcode::kScalarTensorTensor, a16, a16, b16), AluOp::kMultiply, AluOp::kAdd)),
      512, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kTensorTensorScan, a, a, b)), 512, 0.01);
  EXPECT_NEAR(vector(with(make(Opcode::kTensorReduce, tile(kSbuf, DType::kBf16, 128, 1), a16),
                          AluOp::kMax)),
              128, 0.01);
  EXPECT_NEAR(vector(with(make(Opcode::kTensorReduce, tile(kSbuf, DType::kFp32, 128, 1), a16),
                          AluOp::kMax)),
              256, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kSelect, a, psum, b)), 256, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kMemset, a16, {})), 128, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kMemset, a, {})), 256, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kBatchStats, tile(kSbuf2, DType::kFp32, 128, 6), a)), 256, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kBatchAggregate, tile(kSbuf2, DType::kFp32, 128, 2),
                          tile(kSbuf, DType::kFp32, 128, 48))),
              13.0 * 48 / 3, 0.1);
  EXPECT_NEAR(vector(make(Opcode::kMax8, tile(kSbuf2, DType::kFp32, 128, 8), a)), 256, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kMatchReplace8, a, b, tile(kSbuf2, DType::kFp32, 128, 8))), 256,
              0.01);
  EXPECT_NEAR(vector(make(Opcode::kTranspose, tile(kSbuf, DType::kFp32, 32, 32),
                          tile(kSbuf2, DType::kFp32, 32, 32))),
              64, 0.01);
  EXPECT_NEAR(vector(make(Opcode::kTensorCopyDynamic, a, b, tile(kSbuf2, DType::kInt32, 1, 1))),
              600, 0.01);
  Instruction sum = make(Opcode::kTensorScalar, a, b);
  sum.dst1 = tile(kSbuf2, DType::kFp32, 128, 1);
  EXPECT_NEAR(vector(sum), 256 + 64, 0.01);
  Instruction exp_sum = make(Opcode::kActivation, a, b);
  exp_sum.dst1 = sum.dst1;
  EXPECT_NEAR(cycles(exp_sum, Engine::kScalar), 256 + 64, 0.01);
}

TEST_F(EngineCostTest, FormulasOfGpSimd) {
  const auto gpsimd = [this](Instruction i) { return cycles(i, Engine::kGpSimd); };
  EXPECT_NEAR(gpsimd(make(Opcode::kAffineSelect, tile(kSbuf, DType::kFp32, 128, 16),
                          tile(kSbuf2, DType::kFp32, 128, 16))),
              150 + 16, 0.01);
  EXPECT_NEAR(gpsimd(make(Opcode::kTopK, tile(kSbuf, DType::kBf16, 8, 32),
                          tile(kSbuf2, DType::kBf16, 128, 64))),
              150 + 4 * (16 * 64) + 32, 0.01);
  Instruction gather = make(Opcode::kLocalGather, tile(kSbuf, DType::kBf16, 128, 64),
                            tile(kSbuf2, DType::kBf16, 128, 256));
  gather.imm0 = 4;
  EXPECT_NEAR(gpsimd(gather), 150 + 64 * (28.0 + 16) / 16 / 2, 0.01);
}

TEST_F(EngineCostTest, FastInstructionsOfV4) {
  const auto a = tile(kSbuf, DType::kBf16, 128, 4096), b = tile(kSbuf2, DType::kBf16, 128, 4096);
  EXPECT_NEAR(cycles(make(Opcode::kExponential, a, b, tile(kSbuf, DType::kFp32, 128, 1)),
                     Engine::kVector, "trn3-gen1"),
              1024, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kQuantizeMx, tile(kSbuf, DType::kFp8E4M3FnX4, 128, 1024), b),
                     Engine::kVector, "trn3-gen1"),
              1024, 0.01);
  EXPECT_NEAR(cycles(make(Opcode::kRandom, tile(kSbuf, DType::kInt32, 128, 4096)), Engine::kVector,
                     "trn3-gen1"),
              1024, 0.01);
}

TEST_F(EngineCostTest, WideStridesHalveTheBandwidth) {
  auto strided = tile(kSbuf, DType::kFp32, 128, 256);
  strided.dims[0].stride = 8;  // 32 bytes
  EXPECT_NEAR(cycles(make(Opcode::kTensorCopy, tile(kSbuf2, DType::kFp32, 128, 256), strided),
                     Engine::kVector),
              512, 0.01);
}

TEST_F(EngineCostTest, GpSimdPaysItsStartEachTime) {
  const auto a = tile(kSbuf, DType::kFp32, 128, 256);
  EXPECT_NEAR(cycles(make(Opcode::kIota, a, {}), Engine::kGpSimd), 150 + 256, 0.01);
}

TEST_F(EngineCostTest, GenericOperationsCostTheirPasses) {
  Instruction i = make(Opcode::kGeneric, tile(kSbuf, DType::kFp32, 128, 256),
                       tile(kSbuf2, DType::kFp32, 128, 256));
  i.imm0 = 5;
  EXPECT_NEAR(cycles(i, Engine::kVector), 5 * 256, 0.01);
}

TEST_F(EngineCostTest, DependenceIsAboutOverlap) {
  const auto whole = tile(kSbuf, DType::kFp32, 128, 256);
  auto right = tile(kSbuf, DType::kFp32, 128, 128);
  right.offset = 128;
  const auto left = tile(kSbuf, DType::kFp32, 128, 128);
  const auto other = tile(kSbuf2, DType::kFp32, 128, 256);
  const Instruction writes_left =
      make(Opcode::kTensorCopy, left, tile(kSbuf2, DType::kFp32, 128, 128));
  EXPECT_TRUE(depends_on(make(Opcode::kTensorCopy, other, whole), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, left, right), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, whole, other), writes_left, program_));
  EXPECT_FALSE(depends_on(make(Opcode::kTensorCopy, other, tile(kSbuf, DType::kFp32, 32, 256, 64)),
                          make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp32, 32, 256),
                               tile(kSbuf2, DType::kFp32, 32, 256)),
                          program_));
}

}  // namespace
}  // namespace trellis::sim
