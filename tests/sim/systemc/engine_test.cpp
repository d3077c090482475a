#include "sim/systemc/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

constexpr PortSet kPort = kSbufVectorGpSimd;

/// Engines without a machine: the test lets the one with the earliest time act.
class EngineTest : public ::testing::Test, public Turn {
 protected:
  EngineTest() : semaphores_(8) {
    shared_.semaphores = &semaphores_;
    shared_.meter = &meter_;
    shared_.turn = this;
    shared_.semaphore_latency = 28;
    shared_.activation_table_load = 1000;
    shared_.core_barrier = 300;
    meter_.reset(0, 1);
    limit_ = -1;  // one act at a time
  }

  static ResolvedOp work(std::int64_t occupancy, std::int64_t latency, std::uint8_t producer = 0) {
    ResolvedOp op;
    op.kind = ResolvedOp::Kind::kCompute;
    op.occupancy = occupancy;
    op.latency = latency;
    op.producer = producer;
    return op;
  }
  static void add(ResolvedQueue& queue, ResolvedOp op, std::vector<isa::SemaphoreWait> waits = {},
                  std::vector<isa::SemaphoreUpdate> updates = {}) {
    op.first_wait = static_cast<std::uint32_t>(queue.waits.size());
    op.num_waits = static_cast<std::uint16_t>(waits.size());
    op.first_update = static_cast<std::uint32_t>(queue.updates.size());
    op.num_updates = static_cast<std::uint16_t>(updates.size());
    queue.waits.insert(queue.waits.end(), waits.begin(), waits.end());
    queue.updates.insert(queue.updates.end(), updates.begin(), updates.end());
    queue.ops.push_back(op);
  }
  static ResolvedOp control(ResolvedOp::Kind kind, std::int64_t count = 0) {
    ResolvedOp op;
    op.kind = kind;
    op.count = count;
    return op;
  }

  void run(std::vector<Engine*> engines) {
    for (;;) {
      Engine* first = *std::min_element(engines.begin(), engines.end(), [](Engine* a, Engine* b) {
        return a->next_time() < b->next_time();
      });
      if (first->next_time() == kNever) return;
      running_ = first->number();
      first->act();
      running_ = kNone;
    }
  }
  void wake(std::int64_t) override {}

  std::vector<Semaphore> semaphores_;
  BusyMeter meter_;
  EngineShared shared_;
  Engine vector_{isa::Engine::kVector, 1, shared_};
  Engine scalar_{isa::Engine::kScalar, 2, shared_};
  Engine gpsimd_{isa::Engine::kGpSimd, 3, shared_};
};

TEST_F(EngineTest, IndependentInstructionsOverlapTheirLatencies) {
  ResolvedQueue queue;
  for (int i = 0; i < 3; ++i) add(queue, work(100, 50));
  vector_.start(queue, nullptr, 1000);
  run({&vector_});
  EXPECT_TRUE(vector_.finished());
  EXPECT_EQ(vector_.end(), 1000 + 300 + 50);
}

TEST_F(EngineTest, ADependentInstructionWaitsForTheResultAndItsDelay) {
  ResolvedQueue queue;
  add(queue, work(100, 50));
  ResolvedOp reader = work(100, 50, 1);
  reader.dependent_delay = 7;
  add(queue, reader);
  vector_.start(queue, nullptr, 0);
  run({&vector_});
  EXPECT_EQ(vector_.end(), 150 + 7 + 150);
}

TEST_F(EngineTest, AReaderWaitsForItsProducerOnly) {
  ResolvedQueue queue;
  add(queue, work(100, 500));
  add(queue, work(100, 500));
  add(queue, work(100, 500, 2));  // begins when the first result is there, at 600, not at 700
  vector_.start(queue, nullptr, 0);
  run({&vector_});
  EXPECT_EQ(vector_.end(), 600 + 100 + 500);
}

TEST_F(EngineTest, LoopsRepeatTheirBodies) {
  ResolvedQueue queue;
  queue.loops = {{0, 0, 0, 12}, {1, 0, 0, 3}};
  ResolvedOp inner = control(ResolvedOp::Kind::kLoop, 4);
  inner.partner = 1;
  ResolvedOp inner_end = control(ResolvedOp::Kind::kEndLoop);
  inner_end.partner = 1;
  add(queue, control(ResolvedOp::Kind::kLoop, 3));
  add(queue, inner);
  add(queue, work(10, 5));
  add(queue, inner_end);
  add(queue, control(ResolvedOp::Kind::kEndLoop));
  vector_.start(queue, nullptr, 0);
  run({&vector_});
  EXPECT_EQ(vector_.end(), 3 * 4 * 10 + 5);
}

TEST_F(EngineTest, ATableIsLoadedWhenTheFunctionChanges) {
  ResolvedQueue queue;
  for (const std::uint8_t table : {1, 1, 0, 2, 1}) {
    ResolvedOp op = work(100, 0);
    op.table = table;
    add(queue, op);
  }
  scalar_.start(queue, nullptr, 0);
  run({&scalar_});
  EXPECT_EQ(scalar_.end(), 5 * 100 + 3 * 1000);
}

TEST_F(EngineTest, SemaphoresCarryResultsFromEngineToEngine) {
  ResolvedQueue producer;
  add(producer, work(100, 50), {}, {{0, 1}});
  add(producer, work(100, 50), {}, {{0, 1}});
  ResolvedQueue consumer;
  add(consumer, work(10, 5), {{0, 2}});
  scalar_.start(consumer, nullptr, 0);
  vector_.start(producer, nullptr, 0);
  EXPECT_EQ(scalar_.next_time(), kNever);
  run({&vector_, &scalar_});
  EXPECT_EQ(scalar_.end(), 200 + 50 + 28 + 15);
}

TEST_F(EngineTest, SaysWhatItWaitsFor) {
  ResolvedQueue queue;
  add(queue, work(10, 5));
  add(queue, work(10, 5), {{3, 2}});
  semaphores_[3].post(0, 1);
  scalar_.start(queue, nullptr, 0);
  run({&scalar_});
  EXPECT_FALSE(scalar_.finished());
  EXPECT_EQ(scalar_.where(), "scalar waits at instruction 1 for semaphore 3 >= 2 (holds 1)");
}

TEST_F(EngineTest, HoldersOfOnePortTakeTurnsInTheOrderOfTheirTimes) {
  ResolvedOp shared = work(100, 0);
  shared.ports = kPort;
  ResolvedQueue first;
  add(first, shared);
  ResolvedQueue second;
  add(second, work(30, 0));
  add(second, shared);  // asks at 30, begins at 100
  add(second, work(10, 0));
  ResolvedQueue free;
  add(free, work(100, 0));
  vector_.start(first, nullptr, 0);
  gpsimd_.start(second, nullptr, 0);
  scalar_.start(free, nullptr, 0);
  run({&vector_, &scalar_, &gpsimd_});
  EXPECT_EQ(vector_.end(), 100);
  EXPECT_EQ(scalar_.end(), 100);
  EXPECT_EQ(gpsimd_.end(), 210);
}

TEST_F(EngineTest, TiesForAPortGoToTheLowerEngine) {
  ResolvedOp shared = work(100, 0);
  shared.ports = kPort;
  ResolvedQueue queue;
  add(queue, shared);
  gpsimd_.start(queue, nullptr, 0);
  vector_.start(queue, nullptr, 0);
  run({&vector_, &gpsimd_});
  EXPECT_EQ(vector_.end(), 100);
  EXPECT_EQ(gpsimd_.end(), 200);
}

TEST_F(EngineTest, ABarrierLetsBothGoAfterTheLaterOne) {
  ResolvedQueue early;
  add(early, control(ResolvedOp::Kind::kCoreBarrier));
  add(early, work(10, 0));
  ResolvedQueue late;
  add(late, work(500, 0));
  add(late, control(ResolvedOp::Kind::kCoreBarrier), {}, {{1, 1}});
  Engine other(isa::Engine::kVector, 6, shared_);
  vector_.start(early, &other, 0);
  other.start(late, &vector_, 0);
  run({&vector_, &other});
  EXPECT_EQ(vector_.end(), 500 + 300 + 10);
  EXPECT_EQ(other.end(), 500 + 300);
  EXPECT_EQ(semaphores_[1].ready_time(1), 500 + 300 + 28);
}

TEST_F(EngineTest, ActsAloneUpToTheLimitOfItsTurn) {
  ResolvedQueue queue;
  for (int i = 0; i < 5; ++i) add(queue, work(100, 0));
  vector_.start(queue, nullptr, 0);
  limit_ = 250;
  running_ = vector_.number();
  vector_.act();
  EXPECT_EQ(vector_.next_time(), 300);
  running_ = kNone;
}

}  // namespace
}  // namespace trellis::sim
