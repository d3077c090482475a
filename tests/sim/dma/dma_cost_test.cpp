#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "sim/config/load_system.h"
#include "tests/sim/dma/dma_programs.h"

namespace trellis::sim {
namespace {

using isa::DmaDescriptors;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::Opcode;
using isa::testing::tile;
using testing::load;

const SystemConfig& trn1() {
  static const SystemConfig system = load_system("trn1.32xlarge");
  return system;
}
const SystemConfig& trn2() {
  static const SystemConfig system = load_system("trn2.48xlarge", 1);
  return system;
}

TEST(DmaCost, OneDescriptorARow) {
  const DmaTransfer t = testing::cost_of(load(128, 4096), trn1());
  EXPECT_EQ(t.descriptors, 128);
  EXPECT_EQ(t.descriptor_time, transfer_time(Bytes(8192), trn1().chip.core.dma.engine_rate));
  EXPECT_EQ(t.bytes.value, 1 << 20);
  EXPECT_EQ(t.hbm_read.value, 1 << 20);
  EXPECT_EQ(t.hbm_written.value, 0);
}

/// Hardware facts 3.2, figure nki-dma-intro-3: an engine serves eight partitions, so four rows keep
/// one engine busy.
TEST(DmaCost, EightPartitionsAnEngine) {
  struct Case {
    int partitions, start, first_engine, engines;
  };
  for (const Case c : {Case{128, 0, 0, 16}, Case{4, 0, 0, 1}, Case{1, 96, 12, 1},
                       Case{20, 32, 4, 3}, Case{64, 64, 8, 8}}) {
    const DmaTransfer t = testing::cost_of(load(c.partitions, 512, DType::kBf16, c.start), trn1());
    EXPECT_EQ(t.first_engine, c.first_engine) << c.partitions;
    EXPECT_EQ(t.num_engines, c.engines) << c.partitions;
    EXPECT_EQ(t.per_engine, std::min(c.partitions, 8)) << c.partitions;
  }
}

TEST(DmaCost, TwoCoresHaveTwiceTheEngines) {
  ASSERT_EQ(trn2().chip.core.dma.engines, 32);
  const DmaTransfer t = testing::cost_of(load(128, 512), trn2());
  EXPECT_EQ(t.num_engines, 32);
  EXPECT_EQ(t.per_engine, 4);
}

TEST(DmaCost, SmallDescriptorsCostTheirFloor) {
  Instruction strided = load(128, 64);
  strided.src0.dims[0].stride = 2;  // element by element
  const DmaTransfer t = testing::cost_of(strided, trn1());
  EXPECT_EQ(t.descriptors, 128 * 64);
  EXPECT_EQ(t.descriptor_time, trn1().chip.core.dma.descriptor_floor);
}

TEST(DmaCost, LongRunsAreCutIntoDescriptors) {
  Instruction copy = load(128, 4096, DType::kFp32);
  copy.dst.buffer = 2;
  copy.dst.partition_stride = 4096;
  const DmaTransfer t = testing::cost_of(copy, trn1());  // 2 MiB in one run, HBM to HBM
  EXPECT_EQ(t.descriptors, 32);
  EXPECT_EQ(t.per_engine, 2);
  EXPECT_EQ(t.descriptor_time, transfer_time(Bytes(65536), trn1().chip.core.dma.engine_rate));
  EXPECT_EQ(t.hbm_read, t.hbm_written);
  EXPECT_EQ(t.packet, 1);
}

TEST(DmaCost, CastsMoveTheWiderFormat) {
  Instruction cast = load(128, 512);
  cast.dst.dtype = DType::kFp32;
  const DmaTransfer t = testing::cost_of(cast, trn1());
  EXPECT_EQ(t.bytes.value, 128 * 512 * 4);
  EXPECT_EQ(t.hbm_read.value, 128 * 512 * 2);
}

TEST(DmaCost, GatherReadsRowByRowAndScatterAddReadsWhatItWrites) {
  Instruction gather = load(128, 1024);
  gather.opcode = Opcode::kDmaGather;
  gather.src0.num_partitions = 1000;
  gather.src1 = tile(1, DType::kInt32, 128, 1);
  const DmaTransfer g = testing::cost_of(gather, trn1());
  EXPECT_EQ(g.descriptors, 128);
  EXPECT_EQ(g.hbm_read.value, 128 * 1024 * 2);
  Instruction scatter = gather;
  scatter.opcode = Opcode::kDmaScatterAdd;
  std::swap(scatter.dst, scatter.src0);
  const DmaTransfer s = testing::cost_of(scatter, trn1());
  EXPECT_EQ(s.hbm_read.value, 128 * 1024 * 2);
  EXPECT_EQ(s.hbm_written.value, 128 * 1024 * 2);
  EXPECT_EQ(s.descriptor_time, g.descriptor_time * 2);
}

TEST(DmaCost, AccumulationHalvesTheRateUntilTheFourthCore) {
  Instruction add = load(128, 4096);
  std::swap(add.dst, add.src0);
  const DmaTransfer copy = testing::cost_of(add, trn1());
  add.accumulate = true;
  const DmaTransfer sum = testing::cost_of(add, trn1());
  EXPECT_EQ(sum.descriptor_time, copy.descriptor_time * 2);
  EXPECT_EQ(sum.hbm_read, sum.hbm_written);
  const SystemConfig trn3 = load_system("trn3-gen1");
  EXPECT_EQ(testing::cost_of(add, trn3).descriptor_time,
            transfer_time(Bytes(8192), trn3.chip.core.dma.engine_rate));
}

/// Trn2: 90 % of the rate from HBM, half of it inside SBUF; two-byte elements by hardware
/// descriptors, four-byte ones by static ones.
TEST(DmaCost, TransposesHaveTheirOwnRate) {
  Instruction t = load(128, 4096);
  const Picoseconds copy = testing::cost_of(t, trn2()).descriptor_time;
  t.opcode = Opcode::kDmaTranspose;
  EXPECT_NEAR(static_cast<double>(testing::cost_of(t, trn2()).descriptor_time.value),
              static_cast<double>(copy.value) / 0.9, 1);
  EXPECT_EQ(resolve_descriptors(t, Engine::kSync, trn2().chip.core.dma), DmaDescriptors::kHardware);
  t.src0 = tile(1, DType::kBf16, 128, 4096);
  EXPECT_EQ(testing::cost_of(t, trn2()).descriptor_time, copy * 2);
  t.src0.dtype = t.dst.dtype = DType::kFp32;
  EXPECT_EQ(resolve_descriptors(t, Engine::kSync, trn2().chip.core.dma), DmaDescriptors::kStatic);
}

/// Rows that lie at a distance use a part of the HBM channels, the shorter the fewer; neighbours
/// and long rows use all.
TEST(DmaCost, RowsWithGapsLoadHbmMore) {
  const auto hbm_load = [](int columns, int stride) {
    Instruction i = load(128, columns);
    i.src0.partition_stride = stride;
    return testing::cost_of(i, trn1()).hbm_load;
  };
  EXPECT_EQ(hbm_load(512, 512), 128 * 512 * 2);
  const double least = trn1().chip.core.dma.hbm_strided_efficiency;  // from where on shorter rows
                                                                     // load no more channels
  EXPECT_NEAR(hbm_load(512, 8192), 128 * 512 * 2 / least, 1);
  EXPECT_NEAR(hbm_load(128, 8192), 128 * 128 * 2 / least, 1);
  EXPECT_EQ(hbm_load(1024, 8192), 2 * 128 * 1024 * 2);
  EXPECT_EQ(hbm_load(2048, 8192), 128 * 2048 * 2);
}

TEST(DmaCost, PacketsHoldFourKibibytesOrSixtyFourDescriptors) {
  EXPECT_EQ(testing::cost_of(load(128, 512), trn1()).packet, 4);
  EXPECT_EQ(testing::cost_of(load(128, 1), trn1()).packet, 64);
  EXPECT_EQ(testing::cost_of(load(128, 32768), trn1()).packet, 1);
  Instruction collective = load(128, 4096);
  collective.dma_queue = isa::DmaQueue::kCollective;
  EXPECT_EQ(testing::cost_of(collective, trn1()).packet, 8);
}

TEST(DmaCost, WhoMakesTheDescriptors) {
  const auto& v2 = trn1().chip.core.dma;
  const auto& v3 = trn2().chip.core.dma;
  Instruction i = load(128, 512);
  EXPECT_EQ(resolve_descriptors(i, Engine::kSync, v2), DmaDescriptors::kStatic);
  EXPECT_EQ(resolve_descriptors(i, Engine::kSync, v3), DmaDescriptors::kHardware);
  EXPECT_EQ(resolve_descriptors(i, Engine::kScalar, v3), DmaDescriptors::kHardware);
  EXPECT_EQ(resolve_descriptors(i, Engine::kGpSimd, v3), DmaDescriptors::kStatic);
  i.opcode = Opcode::kDmaGather;
  EXPECT_EQ(resolve_descriptors(i, Engine::kGpSimd, v3), DmaDescriptors::kSoftware);
  EXPECT_EQ(resolve_descriptors(i, Engine::kSync, v3), DmaDescriptors::kStatic);
  i.opcode = Opcode::kDma;
  i.dma_descriptors = DmaDescriptors::kSoftware;
  const DmaTransfer t = testing::cost_of(i, trn1(), Engine::kGpSimd);
  EXPECT_EQ(t.preparation + t.trigger, v2.software_generation);
  EXPECT_EQ(t.latency, v2.software_latency);
  EXPECT_EQ(t.generator, -1);
  EXPECT_EQ(testing::cost_of(load(1, 1), trn2(), Engine::kSync).generator, 0);
  EXPECT_EQ(testing::cost_of(load(1, 1), trn2(), Engine::kScalar).generator, 1);
}

}  // namespace
}  // namespace trellis::sim
