// A legal and a broken form of every opcode that is more than element by element, and of each
// generation's limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/isa/program.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim::isa {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tile;

constexpr std::uint32_t kSbuf = 0, kSbuf2 = 1, kPsum = 2, kHbm = 3;

Instruction make(Opcode opcode, AccessPattern dst, AccessPattern src0 = {}, AccessPattern src1 = {},
                 AccessPattern dst1 = {}) {
  Instruction i;
  i.opcode = opcode;
  i.dst = dst;
  i.src0 = src0;
  i.src1 = src1;
  i.dst1 = dst1;
  return i;
}

/// [partitions, outer, columns], packed.
AccessPattern cube(std::uint32_t buffer, DType dtype, int partitions, int outer, int columns) {
  AccessPattern a = tile(buffer, dtype, partitions, columns);
  a.num_dims = 2;
  a.dims = {Dim{columns, outer}, Dim{1, columns}};
  return a;
}

/// The problems that validate finds in instructions on one engine of a NeuronCore of that version.
std::vector<std::string> verdict(Engine engine, std::vector<Instruction> queue, int version = 4) {
  Program p;
  p.buffers = {{MemorySpace::kSbuf, "a", 0, -1, 0, 128, 65536, 0},
               {MemorySpace::kSbuf, "b", 0, -1, 0, 128, 65536, 65536},
               {MemorySpace::kPsum, "c", 0, -1, 0, 128, 16384, 0},
               {MemorySpace::kHbm, "d", 1 << 24, 0, 0, 0, 0, 0}};
  p.kernels = {{"k", 0, 0, false}};
  p.segments.resize(1);
  p.segments[0].queues[static_cast<std::size_t>(engine)] = std::move(queue);
  Limits limits = testing::trn2_limits();
  limits.core_version = version;
  if (version == 4) limits.max_moving = 4096;
  std::vector<std::string> texts;
  for (const auto& v : validate(p, limits)) texts.push_back(v.text);
  return texts;
}

AccessPattern fp32(int partitions, int columns, std::uint32_t buffer = kSbuf) {
  return tile(buffer, DType::kFp32, partitions, columns);
}

TEST(OperationRules, TransposesFitTheEngine) {
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kTranspose, fp32(32, 16), fp32(16, 32, kPsum))}),
      IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTranspose, fp32(64, 32), fp32(32, 64))}),
              ElementsAre(HasSubstr("transposes at most 32 × 32")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTranspose, fp32(32, 16), fp32(32, 16))}),
              ElementsAre(HasSubstr("the transpose of src0 is 16 × 32")));
  EXPECT_THAT(
      verdict(Engine::kTensor, {make(Opcode::kTranspose, fp32(128, 64, kPsum), fp32(64, 128))}),
      IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, {make(Opcode::kTranspose, fp32(128, 64), fp32(64, 128))}),
              ElementsAre(HasSubstr("dst must lie in PSUM")));
}

TEST(OperationRules, SecondResultsAreLegalWhereTheyMeanSomething) {
  const auto column = fp32(128, 1, kSbuf2);
  EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kActivation, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), {}, column)}),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorScalar, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), {}, fp32(128, 2))}),
              ElementsAre(HasSubstr("dst1 is 128 × 2, expected 128 × 1")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorCopy, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), {}, column)}),
              ElementsAre(HasSubstr("no second result")));
  EXPECT_THAT(verdict(Engine::kGpSimd, {make(Opcode::kTensorScalar, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), {}, column)}),
              ElementsAre(HasSubstr("GpSimd has no accumulators")));
  AccessPattern outside = column;
  outside.offset = 1 << 20;
  EXPECT_THAT(verdict(Engine::kScalar,
                      {make(Opcode::kActivation, fp32(128, 64), fp32(128, 64), {}, outside)}),
              ElementsAre(HasSubstr("dst1 touches bytes")));
}

TEST(OperationRules, ATensorScalarTakesOneOrTwoNumbersPerRow) {
  for (const int numbers : {1, 2}) {
    EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kTensorScalar, fp32(128, 64),
                                               fp32(128, 64, kSbuf2), fp32(128, numbers))}),
                IsEmpty());
  }
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorScalar, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), fp32(128, 3))}),
              ElementsAre(HasSubstr("expected 128 × 1")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorScalar, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), fp32(64, 2))}),
              ElementsAre(HasSubstr("expected 128 × 2")));
  EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kActivation, fp32(128, 64),
                                             fp32(128, 64, kSbuf2), fp32(128, 2))}),
              ElementsAre(HasSubstr("expected 128 × 1")));
}

TEST(OperationRules, BatchStatisticsComeInSixesAndTriples) {
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kBatchStats, fp32(128, 6), fp32(128, 512, kSbuf2))}),
      IsEmpty());
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kBatchStats, fp32(128, 6), fp32(128, 513, kSbuf2))}),
      ElementsAre(HasSubstr("at most 512")));
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kBatchAggregate, fp32(128, 2), fp32(128, 12, kSbuf2))}),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kBatchAggregate, fp32(128, 2), fp32(128, 10, kSbuf2))}),
              ElementsAre(HasSubstr("expected triples")));
}

TEST(OperationRules, EightsAreEights) {
  const auto data = fp32(128, 64, kSbuf2);
  const auto places = tile(kSbuf, DType::kInt32, 128, 8);
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMax8, fp32(128, 8), data)}), IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMax8, fp32(128, 8), fp32(128, 7, kSbuf2))}),
              ElementsAre(HasSubstr("legal are 8 to 16384")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kFindIndex8, places, data, fp32(128, 8))}),
              IsEmpty());
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kFindIndex8, fp32(128, 8), data, fp32(128, 8))}),
      ElementsAre(HasSubstr("dst must be int32")));
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kMatchReplace8, fp32(128, 64), data, fp32(128, 8))}),
      IsEmpty());
  EXPECT_THAT(
      verdict(Engine::kVector, {make(Opcode::kMatchReplace8, fp32(128, 64), data, fp32(128, 4))}),
      ElementsAre(HasSubstr("src1 is 128 × 4, expected 128 × 8")));
  EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kMax8, fp32(128, 8), data)}),
              ElementsAre(HasSubstr("the scalar engine does not execute it")));
}

TEST(OperationRules, TopKWorksOnGroupsOfSixteenPartitions) {
  const auto top = [](int columns, int k, DType dtype = DType::kBf16) {
    return make(Opcode::kTopK, tile(kSbuf, DType::kBf16, 8, k), tile(kSbuf2, dtype, 128, columns));
  };
  EXPECT_THAT(verdict(Engine::kGpSimd, {top(64, 32)}), IsEmpty());
  EXPECT_THAT(verdict(Engine::kGpSimd, {top(64, 2000)}),
              ElementsAre(HasSubstr("K is 2000, at most 1024")));
  EXPECT_THAT(verdict(Engine::kGpSimd, {top(8192, 32)}),
              ElementsAre(HasSubstr("have 131072 elements, at most 65535")));
  EXPECT_THAT(verdict(Engine::kGpSimd, {top(64, 32, DType::kFp32)}),
              ElementsAre(HasSubstr("src0 must be bf16, is fp32")));
}

TEST(OperationRules, LocalGatherNeedsAnIndexForEachRun) {
  const auto gather = [](double run, int index_columns) {
    Instruction i = make(Opcode::kLocalGather, fp32(128, 64), fp32(128, 256, kSbuf2),
                         tile(kSbuf2, DType::kInt16, 128, index_columns));
    i.imm0 = run;
    return i;
  };
  EXPECT_THAT(verdict(Engine::kGpSimd, {gather(2, 2)}),
              IsEmpty());  // 32 indices, 16 partitions hold two each
  EXPECT_THAT(verdict(Engine::kGpSimd, {gather(2, 3)}),
              ElementsAre(HasSubstr("src1 is 128 × 3, expected 128 × 2")));
  EXPECT_THAT(verdict(Engine::kGpSimd, {gather(3, 2)}), ElementsAre(HasSubstr("runs of imm0 = 3")));
}

TEST(OperationRules, ScansSelectsAndDynamicCopies) {
  const auto a = fp32(128, 64), b = fp32(128, 64, kSbuf2);
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorTensorScan, a, b, b),
                                        make(Opcode::kScalarTensorTensor, a, b, b)}),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kTensorTensorScan, a, b)}),
              ElementsAre(HasSubstr("has no src1")));
  EXPECT_THAT(verdict(Engine::kGpSimd, {make(Opcode::kAffineSelect, a, b)}), IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kAffineSelect, a, b)}),
              ElementsAre(HasSubstr("does not execute it")));
  const auto address = tile(kSbuf2, DType::kInt32, 1, 1);
  EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kTensorCopyDynamic, a, b, address)}),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kScalar, {make(Opcode::kTensorCopyDynamic, a, b, fp32(1, 1))}),
              ElementsAre(HasSubstr("src1 must be int32")));
  EXPECT_THAT(
      verdict(Engine::kGpSimd, {make(Opcode::kRandom, tile(kSbuf, DType::kInt32, 128, 64))}),
      IsEmpty());
}

TEST(OperationRules, DmaTransposesTwoAndFourBytes) {
  const auto hbm = [](DType dtype) { return tile(kHbm, dtype, 64, 128); };
  EXPECT_THAT(
      verdict(Engine::kSync,
              {make(Opcode::kDmaTranspose, tile(kSbuf, DType::kBf16, 128, 64), hbm(DType::kBf16))},
              3),
      IsEmpty());
  EXPECT_THAT(
      verdict(Engine::kSync,
              {make(Opcode::kDmaTranspose, tile(kSbuf, DType::kInt8, 128, 64), hbm(DType::kInt8))},
              3),
      ElementsAre(HasSubstr("elements of 2 or 4 bytes")));
  EXPECT_THAT(
      verdict(Engine::kSync, {make(Opcode::kDmaTranspose, fp32(128, 64), hbm(DType::kBf16))}, 3),
      ElementsAre(HasSubstr("does not cast")));
  EXPECT_THAT(
      verdict(Engine::kSync, {make(Opcode::kDmaTranspose, fp32(64, 128), hbm(DType::kFp32))}, 3),
      ElementsAre(HasSubstr("expected 128 × 64")));
}

TEST(Generations, NameTheVersionThatHasIt) {
  const auto a = fp32(128, 64), b = fp32(128, 64, kSbuf2);
  EXPECT_THAT(
      verdict(Engine::kSync, {make(Opcode::kDmaTranspose, fp32(64, 128), fp32(128, 64, kHbm))}, 2),
      ElementsAre(HasSubstr("needs NeuronCore-v3, the core is v2")));
  EXPECT_THAT(verdict(Engine::kSync, {make(Opcode::kCoreBarrier, {})}, 2),
              ElementsAre(HasSubstr("core_barrier: it needs NeuronCore-v3")));
  EXPECT_THAT(verdict(Engine::kSync, {make(Opcode::kSendRecv, a, b)}, 2),
              ElementsAre(HasSubstr("needs NeuronCore-v3")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kExponential, a, b, fp32(128, 1))}, 3),
              ElementsAre(HasSubstr("needs NeuronCore-v4, the core is v3")));
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kExponential, a, b, fp32(128, 1))}, 4),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp8E4M3Fn, 128, 64), b)}, 3),
              ElementsAre(HasSubstr("fp8e4m3fn needs NeuronCore-v4")));
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kTensorCopy, tile(kSbuf, DType::kFp8E4M3, 128, 64), b)}, 2),
              IsEmpty());
}

/// A load and a matmul that uses it.
std::vector<Instruction> multiply(Instruction load, Instruction matmul,
                                  MatmulMode mode = MatmulMode::kDense) {
  load.opcode = Opcode::kLoadStationary;
  matmul.opcode = Opcode::kMatmul;
  load.mode = matmul.mode = mode;
  return {load, matmul};
}

TEST(MatmulModes, DoubleRowContractsTwiceThePartitions) {
  const auto pair = [](DType dtype, int rows) {
    return multiply(
        make(Opcode::kLoadStationary, {}, cube(kSbuf, dtype, 128, rows, 128)),
        make(Opcode::kMatmul, fp32(128, 512, kPsum), cube(kSbuf2, dtype, 128, rows, 512)),
        MatmulMode::kDoubleRow);
  };
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp8E4M3, 2), 3), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kBf16, 2), 3),
              Contains(HasSubstr("double_row needs fp8, src0 is bf16")));
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp8E4M3, 1), 3),
              Contains(HasSubstr("[partitions, 2, columns]")));
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp8E4M3, 2), 2),
              Contains(HasSubstr("double_row needs NeuronCore-v3")));
  auto mixed = pair(DType::kFp8E4M3, 2);
  mixed[0].mode = MatmulMode::kDense;
  EXPECT_THAT(verdict(Engine::kTensor, mixed, 3),
              Contains(HasSubstr("its weights were loaded in dense mode")));
}

TEST(MatmulModes, SparseWeightsCarryTags) {
  const auto pair = [](int ratio, int tags) {
    return multiply(
        make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 128, 128),
             tile(kSbuf2, DType::kInt16, 128, tags)),
        make(Opcode::kMatmul, fp32(128, 512, kPsum), cube(kSbuf2, DType::kBf16, 128, ratio, 512)),
        MatmulMode::kSparse);
  };
  for (const int ratio : {2, 3, 4})
    EXPECT_THAT(verdict(Engine::kTensor, pair(ratio, 32), 3), IsEmpty()) << ratio;
  EXPECT_THAT(verdict(Engine::kTensor, pair(5, 32), 3),
              ElementsAre(HasSubstr("r of 2, 3 or 4, r is 5")));
  EXPECT_THAT(verdict(Engine::kTensor, pair(2, 16), 3),
              ElementsAre(HasSubstr("the tags of src0 are 128 × 32")));
}

TEST(MatmulModes, MxDataCarryScales) {
  const auto pair = [](DType dtype, int scale_rows) {
    const auto scales = [&](int columns) {
      return tile(kSbuf2, DType::kUInt8, scale_rows, columns);
    };
    return multiply(
        make(Opcode::kLoadStationary, {}, tile(kSbuf, dtype, 128, 128), scales(128)),
        make(Opcode::kMatmul, fp32(128, 512, kPsum), tile(kSbuf2, dtype, 128, 512), scales(512)));
  };
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp8E4M3FnX4, 16), 4), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp4E2M1X4, 16), 4), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp4E2M1X4, 8), 4),
              Contains(HasSubstr("the scales of src0 are 16 × 128")));
  EXPECT_THAT(verdict(Engine::kTensor, pair(DType::kFp4E2M1X4, 16), 3),
              Contains(HasSubstr("fp4e2m1_x4 needs NeuronCore-v4")));
  auto bare = pair(DType::kFp8E5M2X4, 16);
  bare[1].src1 = {};
  EXPECT_THAT(verdict(Engine::kTensor, bare, 4), ElementsAre(HasSubstr("have no scales")));
  bare[1].src0 = tile(kSbuf2, DType::kBf16, 128, 512);
  EXPECT_THAT(verdict(Engine::kTensor, bare, 4), ElementsAre(HasSubstr("both or neither are MX")));
  // Quantising gives what a matmul takes.
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kQuantizeMx, tile(kSbuf, DType::kFp8E4M3FnX4, 128, 512),
                            tile(kSbuf2, DType::kBf16, 128, 2048), {},
                            tile(kSbuf2, DType::kUInt8, 16, 512))}),
              IsEmpty());
  EXPECT_THAT(verdict(Engine::kVector,
                      {make(Opcode::kQuantizeMx, tile(kSbuf, DType::kFp8E4M3FnX4, 128, 512),
                            tile(kSbuf2, DType::kBf16, 128, 2048))}),
              ElementsAre(HasSubstr("has no dst1")));
}

TEST(MatmulModes, WideResultsAndBf16ResultsNeedV4) {
  const auto wide = [](DType dtype, int columns) {
    return multiply(make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 128, 128)),
                    make(Opcode::kMatmul, tile(kPsum, dtype, 128, columns),
                         tile(kSbuf2, DType::kBf16, 128, columns)));
  };
  EXPECT_THAT(verdict(Engine::kTensor, wide(DType::kFp32, 4096), 4), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, wide(DType::kBf16, 8192), 4), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, wide(DType::kFp32, 1024), 3),
              Contains(HasSubstr("at most 512 fit")));
  EXPECT_THAT(verdict(Engine::kTensor, wide(DType::kBf16, 512), 3),
              ElementsAre(HasSubstr("the array of NeuronCore-v3 writes fp32")));
}

TEST(MatmulModes, TilesOfTheArray) {
  const auto at = [](int row, int column) {
    return multiply(make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 32, 32, row)),
                    make(Opcode::kMatmul, tile(kPsum, DType::kFp32, 32, 64, column),
                         tile(kSbuf2, DType::kBf16, 32, 64, row)));
  };
  EXPECT_THAT(verdict(Engine::kTensor, at(32, 32), 3), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, at(32, 64), 2), IsEmpty());
  EXPECT_THAT(verdict(Engine::kTensor, at(32, 96), 2),
              ElementsAre(HasSubstr("rows and columns of the array by 32")));
  auto separate = at(32, 0);
  separate[1].src0.start_partition = 64;
  EXPECT_THAT(verdict(Engine::kTensor, separate, 3),
              ElementsAre(HasSubstr("src0 starts at partition 64, the stationary operand at 32")));
}

TEST(MatmulModes, OnlyTheArrayStartsASumBeforeV4) {
  auto queue =
      multiply(make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 128, 128)),
               make(Opcode::kMatmul, fp32(128, 512, kPsum), tile(kSbuf2, DType::kBf16, 128, 512)));
  queue.push_back(queue.back());
  queue.back().accumulate = true;
  EXPECT_THAT(verdict(Engine::kTensor, queue, 3), IsEmpty());
  queue[1].accumulate = true;
  EXPECT_THAT(verdict(Engine::kTensor, queue, 3),
              Contains(HasSubstr("no matmul before it started a sum")));
  EXPECT_THAT(verdict(Engine::kTensor, queue, 4), IsEmpty());
}

/// Oracle: every position of the tile that two loops and a ring reach, one by one.
TEST(PsumBanks, AreLeftExactlyWhenSomePositionLeavesThem) {
  std::mt19937 rng(7);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  int crossings = 0;
  for (int round = 0; round < 2000; ++round) {
    const int width = 1 + below(200), unit = below(2) == 0 ? 512 : 32 * below(16);
    const int counts[] = {1 + below(5), 1 + below(5)}, ring = 1 + below(3);
    AccessPattern dst = fp32(128, width, kPsum);
    dst.offset = below(4) * unit;
    for (int d = 0; d < 2; ++d) dst.loop_stride[static_cast<std::size_t>(d)] = below(3) * unit;
    dst.rotate_count = static_cast<std::uint16_t>(ring);
    dst.rotate_stride = below(3) * unit;
    auto queue = multiply(make(Opcode::kLoadStationary, {}, tile(kSbuf, DType::kBf16, 128, 128)),
                          make(Opcode::kMatmul, dst, tile(kSbuf2, DType::kBf16, 128, width)));
    for (const int count : {counts[1], counts[0]}) {
      Instruction loop;
      loop.opcode = Opcode::kLoop;
      loop.count = count;
      queue.insert(queue.begin() + 1, loop);
    }
    queue.resize(queue.size() + 2);
    for (std::size_t i = queue.size() - 2; i < queue.size(); ++i)
      queue[i].opcode = Opcode::kEndLoop;
    bool crosses = false;
    for (int i = 0; i < counts[0]; ++i) {
      for (int j = 0; j < counts[1]; ++j) {
        for (int r = 0; r < ring; ++r) {
          const std::int64_t at = 4 * (dst.offset + i * dst.loop_stride[0] +
                                       j * dst.loop_stride[1] + r * dst.rotate_stride);
          crosses = crosses || at % 2048 + 4 * width > 2048;
        }
      }
    }
    const auto found = verdict(Engine::kTensor, queue, 3);
    const bool says = std::any_of(found.begin(), found.end(), [](const std::string& text) {
      return text.find("crosses a PSUM bank") != std::string::npos;
    });
    ASSERT_EQ(says, crosses) << "round " << round;
    crossings += crosses ? 1 : 0;
  }
  EXPECT_GT(crossings, 200);
}

TEST(AccessPatterns, ReachAsFarAsTheEnginesCan) {
  AccessPattern far = tile(kSbuf, DType::kInt8, 128, 2);
  far.dims[0].stride = 32767;
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMemset, far)}), IsEmpty());
  far.dims[0].stride = 32768;
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMemset, far)}),
              ElementsAre(HasSubstr("has stride 32768, an engine reaches ±32767")));
  AccessPattern large = tile(kSbuf, DType::kInt8, 128, 65535);
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMemset, large)}), IsEmpty());
  large.dims[0].count = 65536;
  EXPECT_THAT(verdict(Engine::kVector, {make(Opcode::kMemset, large)}),
              ElementsAre(HasSubstr("legal are 1 to 65535")));
}

}  // namespace
}  // namespace trellis::sim::isa
