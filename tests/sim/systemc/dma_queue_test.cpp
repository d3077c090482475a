#include "sim/systemc/dma_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/config/load_system.h"
#include "sim/systemc/hbm.h"
#include "sim/systemc/time.h"
#include "tests/sim/core_fixture.h"
#include "tests/sim/dma/dma_programs.h"

namespace trellis::sim {
namespace {

using isa::Instruction;
using testing::load;

/// Four queue groups on one set of engines and one HBM stack, without a core around them.
class DmaQueueTest : public SystemCTest {
 protected:
  DmaQueueTest() : semaphores_(16), system_(load_system("trn1.32xlarge")) {
    configure();
    shared_.semaphores = &semaphores_;
    shared_.meter = &meter_;
    for (DmaQueue* queue : {&load_, &store_, &spill_, &collective_}) queue->hbm.bind(hbm_.target);
    meter_.reset(0, 1);
  }
  void SetUp() override {
    SystemCTest::SetUp();
    elaborate_once();
  }
  void configure() {
    shared_.config = system_.chip.core.dma;
    shared_.engines.configure(shared_.config.engines);
    hbm_.configure(system_.hbm_stack_bandwidth());
  }
  /// The n-th submission posts semaphore n.
  void submit(DmaQueue& queue, const Instruction& i, std::int64_t arrival = 0,
              isa::Engine issuer = isa::Engine::kTensor) {
    const std::size_t n = submitted_++;
    transfers_[n] = testing::cost_of(i, system_, issuer);
    updates_[n] = {static_cast<std::uint16_t>(n), 1};
    DmaRequest request;
    request.transfer = &transfers_[n];
    request.updates = &updates_[n];
    request.num_updates = 1;
    request.arrival = arrival;
    request.order = n;
    queue.submit(request);
  }
  [[nodiscard]] std::int64_t done(std::size_t n) const { return semaphores_[n].ready_time(1); }
  /// The time of a transfer that is alone, without that of its data.
  [[nodiscard]] std::int64_t overhead() const {
    const DmaConfig& c = shared_.config;
    return c.fixed_latency.value + c.semaphore_write.value + c.completion_latency.value;
  }

  std::vector<Semaphore> semaphores_;
  SystemConfig system_;
  BusyMeter meter_;
  DmaShared shared_;
  Hbm hbm_{"hbm"};
  DmaQueue load_{"load", isa::kNumEngines, shared_};
  DmaQueue store_{"store", isa::kNumEngines + 1, shared_};
  DmaQueue spill_{"spill", isa::kNumEngines + 2, shared_};
  DmaQueue collective_{"collective", isa::kNumEngines + 3, shared_};
  std::array<DmaTransfer, 16> transfers_;
  std::array<isa::SemaphoreUpdate, 16> updates_;
  std::size_t submitted_ = 0;
};

TEST_F(DmaQueueTest, ATransferTakesLatencyDataSemaphoreAndCompletion) {
  submit(load_, load(128, 4096));
  run_until_idle();
  EXPECT_EQ(done(0), overhead() + 8 * transfers_[0].descriptor_time.value);
}

TEST_F(DmaQueueTest, FewPartitionsUseFewEngines) {
  submit(load_, load(8, 4096));
  submit(store_, load(8, 4096, isa::DType::kBf16, 64));
  submit(spill_, load(8, 4096));
  run_until_idle();
  const std::int64_t data = 8 * transfers_[0].descriptor_time.value;
  const std::int64_t semaphores = 3 * shared_.config.semaphore_write.value;
  EXPECT_LE(done(1),
            overhead() + data + semaphores);  // on another engine: in parallel with the others
  EXPECT_GE(std::max(done(0), done(2)), overhead() + 2 * data);  // the same engine: they share it
}

TEST_F(DmaQueueTest, ARingWorksInOrder) {
  submit(load_, load(128, 4096));
  submit(load_, load(1, 1, isa::DType::kBf16, 96));
  submit(load_, load(128, 512));
  run_until_idle();
  EXPECT_LE(done(0), done(1));
  EXPECT_LE(done(1), done(2));
}

TEST_F(DmaQueueTest, RingsTakeTurnsAtPacketBoundaries) {
  submit(load_, load(128, 32768));  // 8 MiB
  submit(store_, load(128, 512), 3'000'000);
  run_until_idle();
  const std::int64_t packet = transfers_[0].descriptor_time.value;  // 64 KiB
  const std::int64_t alone = 3'000'000 + overhead() + 8 * transfers_[1].descriptor_time.value;
  // It waits for the packets that the large one has on the engines each time it gives its own
  // packet.
  const std::int64_t turns = 1 + 8 / transfers_[1].packet;
  EXPECT_GT(done(1), alone);
  EXPECT_LE(done(1), alone + turns * shared_.config.queued_packets * packet);
}

TEST_F(DmaQueueTest, EqualRingsShareEqually) {
  DmaQueue* const queues[] = {&load_, &store_, &spill_};
  for (DmaQueue* queue : queues) submit(*queue, load(128, 16384));
  run_until_idle();
  const std::int64_t bytes = 3LL * 128 * 16384 * 2;
  const auto bound = static_cast<std::int64_t>(static_cast<double>(bytes) /
                                               (16 * shared_.config.engine_rate.value) * 1e12);
  for (std::size_t n = 0; n < 3; ++n) {
    const auto packets = static_cast<double>(3 * shared_.config.queued_packets *
                                             transfers_[0].descriptor_time.value);
    EXPECT_NEAR(static_cast<double>(done(n)), static_cast<double>(bound + overhead()), packets);
  }
  EXPECT_GE(std::max({done(0), done(1), done(2)}), bound + overhead());
}

TEST_F(DmaQueueTest, LargerPacketsGetMoreOfTheEngines) {
  submit(load_, load(128, 2048));  // packets of one 4 KiB descriptor
  for (int n = 0; n < 7; ++n) submit(load_, load(128, 2048));
  submit(collective_, load(128, 16384));  // 64 KiB packets of 32 KiB descriptors
  run_until_idle();
  EXPECT_LT(done(8), done(7));
}

TEST_F(DmaQueueTest, AHigherClassGoesFirst) {
  shared_.config.priority[static_cast<std::size_t>(isa::DmaQueue::kLoad)] = 1;
  submit(load_, load(128, 16384));
  submit(store_, load(128, 16384));
  run_until_idle();
  const std::int64_t data = 8 * transfers_[0].descriptor_time.value;
  EXPECT_LE(done(1), overhead() + data +
                         shared_.config.queued_packets * transfers_[0].descriptor_time.value);
  EXPECT_GE(done(0), 2 * data);
}

TEST_F(DmaQueueTest, NoTimeBeatsHbm) {
  Instruction copy =
      load(128, 16384);  // HBM to HBM reads and writes: 544 GB/s of engines on 410 GB/s of HBM
  copy.dst.buffer = 2;
  copy.dst.partition_stride = 16384;
  for (int n = 0; n < 4; ++n) submit(load_, copy);
  run_until_idle();
  const double bytes = 4.0 * 2 * 128 * 16384 * 2;
  EXPECT_GE(static_cast<double>(done(3)), bytes / system_.hbm_stack_bandwidth().value * 1e12);
  EXPECT_LE(
      static_cast<double>(done(3)),
      bytes / system_.hbm_stack_bandwidth().value * 1e12 * 1.02 + static_cast<double>(overhead()));
}

/// Random transfers on all groups: no engine and no HBM works faster than it can, and nothing is
/// slower than one after the other.
TEST_F(DmaQueueTest, RandomTransfersKeepTheirBounds) {
  std::mt19937 rng(5);
  DmaQueue* const queues[] = {&load_, &store_, &spill_, &collective_};
  std::vector<std::int64_t> engine(16);
  std::int64_t hbm = 0, serial = 0;
  for (std::size_t n = 0; n < transfers_.size(); ++n) {
    const int columns = 1 << (rng() % 14);
    Instruction i = load(1 + static_cast<int>(rng() % 32), columns, isa::DType::kBf16,
                         32 * static_cast<int>(rng() % 4));
    i.src0.partition_stride = columns * (rng() % 2 == 0 ? 1 : 3);
    submit(*queues[rng() % 4], i, static_cast<std::int64_t>(rng() % 1000));
    const DmaTransfer& t = transfers_[n];
    for (int e = 0; e < t.num_engines; ++e) {
      engine[static_cast<std::size_t>(t.first_engine + e)] +=
          std::min(t.per_engine, t.descriptors - e * t.per_engine) * t.descriptor_time.value;
    }
    hbm += t.hbm_load;
    serial += t.per_engine * t.descriptor_time.value +
              static_cast<std::int64_t>(static_cast<double>(t.hbm_load) / 410e9 * 1e12) + 2 * 7'000;
  }
  run_until_idle();
  std::int64_t last = 0;
  for (std::size_t n = 0; n < submitted_; ++n) last = std::max(last, done(n));
  EXPECT_GE(last, *std::max_element(engine.begin(), engine.end()) + overhead());
  EXPECT_GE(static_cast<double>(last),
            static_cast<double>(hbm) / system_.hbm_stack_bandwidth().value * 1e12);
  EXPECT_LE(last, serial + overhead() + 1000);
}

/// Hardware facts 3.2: about 600 ns per transfer and generator; Sync and Scalar each have their
/// own.
TEST_F(DmaQueueTest, HardwareGeneratorsPaceTheirTransfers) {
  system_ = load_system("trn3-gen1");
  configure();
  for (int n = 0; n < 6; ++n) submit(load_, load(1, 1), 0, isa::Engine::kSync);
  for (int n = 0; n < 6; ++n) submit(store_, load(1, 1), 0, isa::Engine::kScalar);
  run_until_idle();
  const std::int64_t pace = shared_.config.hardware_generation.value;
  EXPECT_GT(pace, 0);
  EXPECT_NEAR(static_cast<double>(done(5) - done(0)), static_cast<double>(5 * pace),
              0.3 * static_cast<double>(pace));
  EXPECT_NEAR(static_cast<double>(done(11)), static_cast<double>(done(5)),
              0.9 * static_cast<double>(pace));
}

TEST_F(DmaQueueTest, AnIdleStateIsTheSameAtAnyTime) {
  const auto state = [this] {
    std::vector<std::int64_t> out;
    for (const DmaQueue* queue : {&load_, &store_, &spill_, &collective_})
      queue->append_state(out, now_ps());
    shared_.engines.append_state(out, now_ps());
    hbm_.append_state(out, now_ps());
    return out;
  };
  const auto before = state();
  submit(load_, load(128, 4096));
  run_until_idle();
  sc_core::sc_start(duration_ps(10'000'000));
  EXPECT_EQ(state(), before);
}

}  // namespace
}  // namespace trellis::sim
