#include <gtest/gtest.h>

#include "sim/dma/dma_cost.h"
#include "sim/dma/dma_engines.h"
#include "sim/dma/dma_queue.h"
#include "sim/kernel/time.h"
#include "sim/mem/hbm.h"
#include "tests/sim/core_fixture.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DType;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;
using isa::testing::tile;

isa::Program memories() {
  isa::Program p;
  p.buffers = {{MemorySpace::kHbm, "x", 1LL << 40, 0, 0, 0, 0, 0}, {MemorySpace::kSbuf, "t", 0, -1, 0, 128, 65536, 0}, {MemorySpace::kHbm, "y", 1LL << 40, 1, 0, 0, 0, 0}};
  return p;
}

DmaTransfer cost_of(const Instruction& i) {
  const SystemConfig system = load_system("trn1.32xlarge");
  return dma_transfer(i, memories(), system.chip.core.dma, system.chip.core.limits);
}

Instruction load(int partitions, int columns, DType dtype = DType::kBf16) {
  Instruction i;
  i.opcode = Opcode::kDma;
  i.dst = tile(1, dtype, partitions, columns);
  i.src0 = tile(0, dtype, partitions, columns);
  i.src0.partition_stride = columns;
  return i;
}

TEST(DmaCost, OneDescriptorARow) {
  const DmaTransfer t = cost_of(load(128, 4096));
  EXPECT_EQ(t.descriptors, 128);
  EXPECT_EQ(t.descriptor_time, transfer_time(Bytes(8192), BytesPerSecond(17e9)));
  EXPECT_EQ(t.bytes.value, 1 << 20);
  EXPECT_EQ(t.hbm_read.value, 1 << 20);
  EXPECT_EQ(t.hbm_written.value, 0);
}

TEST(DmaCost, SmallDescriptorsCostTheirFloor) {
  Instruction strided = load(128, 64);
  strided.src0.dims[0].stride = 2;  // element by element
  const DmaTransfer t = cost_of(strided);
  EXPECT_EQ(t.descriptors, 128 * 64);
  EXPECT_EQ(t.descriptor_time.value, 62'000);
}

TEST(DmaCost, LongRunsAreCutIntoDescriptors) {
  Instruction copy = load(128, 4096, DType::kFp32);
  copy.dst.buffer = 2;
  copy.dst.partition_stride = 4096;
  const DmaTransfer t = cost_of(copy);  // 2 MiB in one run, HBM to HBM
  EXPECT_EQ(t.descriptors, 32);
  EXPECT_EQ(t.descriptor_time, transfer_time(Bytes(65536), BytesPerSecond(17e9)));
  EXPECT_EQ(t.hbm_read, t.hbm_written);
}

TEST(DmaCost, CastsMoveTheWiderFormat) {
  Instruction cast = load(128, 512);
  cast.dst.dtype = DType::kFp32;
  const DmaTransfer t = cost_of(cast);
  EXPECT_EQ(t.bytes.value, 128 * 512 * 4);
  EXPECT_EQ(t.hbm_read.value, 128 * 512 * 2);
}

TEST(DmaCost, GatherReadsRowByRowAndScatterAddReadsWhatItWrites) {
  Instruction gather = load(128, 1024);
  gather.opcode = Opcode::kDmaGather;
  gather.src0.num_partitions = 1000;
  gather.src1 = tile(1, DType::kInt32, 128, 1);
  const DmaTransfer g = cost_of(gather);
  EXPECT_EQ(g.descriptors, 128);
  EXPECT_EQ(g.hbm_read.value, 128 * 1024 * 2);
  Instruction scatter = gather;
  scatter.opcode = Opcode::kDmaScatterAdd;
  std::swap(scatter.dst, scatter.src0);
  const DmaTransfer s = cost_of(scatter);
  EXPECT_EQ(s.hbm_read.value, 128 * 1024 * 2);
  EXPECT_EQ(s.hbm_written.value, 128 * 1024 * 2);
  EXPECT_EQ(s.descriptor_time, g.descriptor_time * 2);
}

TEST(DmaEngines, ShareDescriptorsEvenly) {
  DmaEngines engines;
  engines.configure(16);
  engines.reset(0);
  EXPECT_EQ(engines.serve(0, 128, 10).end, 80);
  EXPECT_EQ(engines.serve(0, 16, 10).end, 90);
  engines.reset(0);
  EXPECT_EQ(engines.serve(0, 17, 10).end, 20);
  // Small transfers spread over idle engines.
  engines.reset(0);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(engines.serve(0, 1, 10).end, 10);
  EXPECT_EQ(engines.serve(0, 1, 10).end, 20);
}

TEST(DmaEngines, ConserveWork) {
  DmaEngines engines;
  engines.configure(16);
  engines.reset(0);
  std::int64_t descriptors = 0;
  std::int64_t end = 0;
  for (int i = 1; i < 200; ++i) {
    descriptors += i % 37 + 1;
    end = std::max(end, engines.serve(0, i % 37 + 1, 10).end);
  }
  EXPECT_GE(end * 16, descriptors * 10);
  EXPECT_LE(end, (descriptors / 16 + 8) * 10);  // nearly balanced
}

/// Two queues on one set of engines and one HBM, without a core around them.
class DmaQueueTest : public SystemCTest {
 protected:
  DmaQueueTest() : semaphores_(4) {
    const SystemConfig system = load_system("trn1.32xlarge");
    shared_.config = system.chip.core.dma;
    shared_.engines.configure(16);
    shared_.semaphores = &semaphores_;
    shared_.meter = &meter_;
    hbm_.configure(BytesPerSecond(410e9));
    a_.hbm.bind(hbm_.target);
    b_.hbm.bind(hbm_.target);
  }
  void run() {
    meter_.reset(0, 1);
    run_until_idle();
  }
  void submit(DmaQueue& queue, const DmaTransfer& transfer, const isa::SemaphoreUpdate& update) {
    DmaRequest request;
    request.transfer = &transfer;
    request.updates = &update;
    request.num_updates = 1;
    queue.submit(request);
  }

  std::vector<Semaphore> semaphores_;
  BusyMeter meter_;
  DmaShared shared_;
  Hbm hbm_{"hbm"};
  DmaQueue a_{"a", 5, shared_};
  DmaQueue b_{"b", 6, shared_};
};

TEST_F(DmaQueueTest, ATransferTakesLatencyDataAndCompletion) {
  elaborate_once();
  const DmaTransfer t = cost_of(load(128, 4096));
  const isa::SemaphoreUpdate update{0, 1};
  submit(a_, t, update);
  run();
  EXPECT_EQ(semaphores_[0].ready_time(1), 920'000 + 8 * t.descriptor_time.value + 300'000);
}

TEST_F(DmaQueueTest, QueuesShareTheEnginesByTurns) {
  elaborate_once();
  Instruction big = load(128, 32768);
  const DmaTransfer large = cost_of(big);      // 8 MiB
  const DmaTransfer small = cost_of(load(128, 512));  // 128 KiB, after it in time
  const isa::SemaphoreUpdate first{0, 1};
  const isa::SemaphoreUpdate second{1, 1};
  submit(a_, large, first);
  submit(b_, small, second);
  run();
  const std::int64_t large_end = semaphores_[0].ready_time(1);
  const std::int64_t small_end = semaphores_[1].ready_time(1);
  EXPECT_LT(small_end, large_end / 3);  // it does not wait for the whole large one
  const double bound = (8.0 + 0.125) * (1 << 20) / (16 * 17e9) * 1e12;
  EXPECT_GE(static_cast<double>(large_end), bound);
}

}  // namespace
}  // namespace trellis::sim
