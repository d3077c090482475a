#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "sim/isa/rules.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim::isa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kTensor = static_cast<int>(Engine::kTensor);
constexpr int kVector = static_cast<int>(Engine::kVector);
constexpr int kGpSimd = static_cast<int>(Engine::kGpSimd);
constexpr int kSync = static_cast<int>(Engine::kSync);

/// The texts of all violations after one change to the legal program.
std::vector<std::string> after(const std::function<void(Program&)>& change) {
  Program p = testing::tiny_gemm();
  change(p);
  std::vector<std::string> texts;
  for (const auto& v : validate(p, testing::trn2_limits())) texts.push_back(v.text);
  return texts;
}

Instruction& at(Program& p, int engine, std::size_t index) {
  return p.segments[0].queues[engine][index];
}

TEST(Validate, AcceptsALegalProgram) {
  EXPECT_THAT(after([](Program&) {}), ElementsAre());
}

TEST(Validate, SaysWhere) {
  Program p = testing::tiny_gemm();
  at(p, kVector, 0).kernel = 7;
  const auto found = validate(p, testing::trn2_limits());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].engine, Engine::kVector);
  EXPECT_EQ(found[0].index, 0u);
  EXPECT_THAT(found[0].text, HasSubstr("kernel 7"));
}

TEST(Validate, KnowsLegalPartitionStarts) {
  for (int count = 1; count <= 128; ++count) {
    for (int start = 0; start < 128; ++start) {
      const bool expected = count > 64   ? start == 0
                            : count > 32 ? start % 64 == 0
                                         : start % 32 == 0;
      ASSERT_EQ(legal_partition_start(start, count), expected) << start << "+" << count;
    }
  }
  EXPECT_THAT(after([](Program& p) {
                at(p, kVector, 0).dst = testing::tile(5, DType::kFp32, 64, 512, 32);
                at(p, kVector, 0).src0 = testing::tile(4, DType::kFp32, 64, 512, 64);
              }),
              ElementsAre(HasSubstr("starts 64 partitions at 32")));
}

TEST(Validate, KeepsOperandsInsideTheirBuffers) {
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 1).src0.offset = 1; }),
              ElementsAre(HasSubstr("src0 touches bytes")));
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 1).src0.offset = -1; }),
              ElementsAre(HasSubstr("src0 touches bytes [-2")));
  // Only the last iteration of the loop leaves the buffer.
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 0).count = 5; }),
              ElementsAre(HasSubstr("src0 touches bytes")));
  // Only the third ring position leaves the buffer.
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 1).dst.rotate_count = 3; }),
              ElementsAre(HasSubstr("dst touches bytes")));
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 1).dst.buffer = 77; }),
              ElementsAre(HasSubstr("names buffer 77")));
}

TEST(Validate, HoldsBuffersToTheCapacity) {
  EXPECT_THAT(after([](Program& p) { p.buffers[5].address = 224 * 1024; }),
              ElementsAre(HasSubstr("sbuf has 229376")));
  EXPECT_THAT(after([](Program& p) { p.buffers[4].address = 15 * 1024; }),
              ::testing::Contains(HasSubstr("psum has 16384")));
}

TEST(Validate, HoldsMatmulsToTheArray) {
  EXPECT_THAT(
      after([](Program& p) { at(p, kTensor, 2).src0 = testing::tile(2, DType::kBf16, 128, 64); }),
      ElementsAre(HasSubstr("dst has 128 partitions, the stationary operand 64 columns")));
  EXPECT_THAT(after([](Program& p) {
                at(p, kTensor, 2).src0 = testing::tile(2, DType::kFp8E4M3, 128, 256);
              }),
              ::testing::Contains(HasSubstr("at most 128 × 128 fit")));
  EXPECT_THAT(
      after([](Program& p) { at(p, kTensor, 3).dst = testing::tile(5, DType::kFp32, 128, 512); }),
      ElementsAre(HasSubstr("dst must lie in PSUM, lies in sbuf")));
  EXPECT_THAT(after([](Program& p) {
                p.segments[0].queues[kTensor].erase(p.segments[0].queues[kTensor].begin() + 2);
              }),
              ElementsAre(HasSubstr("no load_stationary")));
  std::vector<std::string> wide;
  for (const auto& v : validate(testing::tiny_gemm(4, 1024), testing::trn2_limits()))
    wide.push_back(v.text);
  EXPECT_THAT(wide, ::testing::IsSupersetOf({HasSubstr("moving operand has 1024 columns"),
                                             HasSubstr("a PSUM bank holds 2048")}));
}

TEST(Validate, KeepsMatmulOutputInsideOneBank) {
  EXPECT_THAT(after([](Program& p) { p.buffers[4].address = 1024; }),
              ElementsAre(HasSubstr("crosses a PSUM bank")));
  // Ring positions one bank from each other are legal, half a bank are not.
  const auto rotate = [](std::int64_t stride) {
    return [stride](Program& p) {
      p.buffers[4].bytes_per_partition = 4096;
      at(p, kTensor, 3).dst.rotate_count = 2;
      at(p, kTensor, 3).dst.rotate_stride = stride;
    };
  };
  EXPECT_THAT(after(rotate(512)), ElementsAre());
  EXPECT_THAT(after(rotate(256)), ElementsAre(HasSubstr("crosses a PSUM bank")));
}

TEST(Validate, KnowsWhichEngineReachesWhat) {
  EXPECT_THAT(after([](Program& p) {
                std::swap(p.segments[0].queues[kVector], p.segments[0].queues[kGpSimd]);
              }),
              ElementsAre(HasSubstr("GpSimd has no path")));
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).dst = at(p, kSync, 3).dst; }),
              ElementsAre(HasSubstr("dst lies in HBM")));
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).opcode = Opcode::kMatmul; }),
              ElementsAre(HasSubstr("the vector engine does not execute it")));
}

TEST(Validate, ComparesShapes) {
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).dst.dims[0].count = 256; }),
              ElementsAre(HasSubstr("dst is 128 × 256, src0 is 128 × 512")));
  EXPECT_THAT(after([](Program& p) { at(p, kSync, 1).dst.dims[0].count = 256; }),
              ElementsAre(HasSubstr("dst has 32768 elements, src0 65536")));
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).src0 = {}; }),
              ElementsAre(HasSubstr("has no src0")));
}

TEST(Validate, BalancesLoops) {
  EXPECT_THAT(after([](Program& p) {
                p.segments[0].queues[kTensor].pop_back(), p.segments[0].queues[kTensor].pop_back();
              }),
              ElementsAre(HasSubstr("ends inside 1 open loops")));
  EXPECT_THAT(after([](Program& p) { p.segments[0].queues[kVector].push_back(at(p, kSync, 2)); }),
              ElementsAre(HasSubstr("no loop is open")));
  EXPECT_THAT(after([](Program& p) { at(p, kTensor, 1).count = 0; }),
              ElementsAre(HasSubstr("count is 0")));
}

TEST(Validate, AllowsOneWaiterPerSemaphore) {
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).waits[0].id = 1; }),
              ElementsAre(HasSubstr("also waits on: one waiter each")));
  EXPECT_THAT(after([](Program& p) { at(p, kVector, 0).updates[0].id = 256; }),
              ElementsAre(HasSubstr("semaphore 256 does not exist")));
}

TEST(Validate, ExchangesInsideAPairBetweenSbufTilesOfOneShape) {
  const auto exchange = [](const AccessPattern& dst, const AccessPattern& src0) {
    return [=](Program& p) {
      Instruction i;
      i.opcode = Opcode::kSendRecv;
      i.dst = dst;
      i.src0 = src0;
      p.segments[0].queues[kSync].push_back(i);
    };
  };
  const AccessPattern result = testing::tile(5, DType::kFp32, 128, 128);
  EXPECT_THAT(after(exchange(result, testing::tile(5, DType::kFp32, 128, 128))), ElementsAre());
  EXPECT_THAT(after(exchange(result, testing::tile(5, DType::kFp32, 128, 64))),
              ElementsAre(HasSubstr("send_recv: dst is 128 × 128, src0 is 128 × 64")));
  EXPECT_THAT(after(exchange(result, testing::tile(4, DType::kFp32, 128, 128))),
              ElementsAre(HasSubstr("src0 must lie in SBUF, lies in psum")));
  EXPECT_THAT(after(exchange(result, {})), ElementsAre(HasSubstr("has no src0")));
}

TEST(Validate, AllowsBarriersOnEveryEngineToWaitAndPost) {
  for (int e = 0; e < kNumEngines; ++e) {
    EXPECT_THAT(after([e](Program& p) {
                  Instruction i;
                  i.opcode = Opcode::kCoreBarrier;
                  i.waits = {{9, 1}};
                  i.updates = {{10, 1}};
                  p.segments[0].queues[e].push_back(i);
                }),
                ElementsAre());
  }
}

TEST(Validate, NeedsInt32Indices) {
  EXPECT_THAT(after([](Program& p) {
                Instruction& load = at(p, kSync, 1);
                load.opcode = Opcode::kDmaGather;
                load.src1 = testing::tile(2, DType::kBf16, 128, 1);
              }),
              ElementsAre(HasSubstr("must be int32, is bf16")));
}

}  // namespace
}  // namespace trellis::sim::isa
