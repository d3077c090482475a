#include "device/driver/memory/memory_account.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "device/driver/record/out_of_memory.h"
#include "device/driver/reports/memory_report.h"

namespace trellis::device::memory_account_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// A rank's recorder as the device uses it.
class MemoryAccountTest : public ::testing::Test {
 protected:
  RankRecorder recorder{3, 3, Bytes(64 * kMiB), true};
  MemoryAccount& memory = recorder.memory();

  MemoryBlock* allocate(std::int64_t bytes, BufferCategory category) {
    return memory.allocate(bytes, category, recorder.scope_id(), recorder.new_buffer());
  }
  void record_add(const MemoryBlock& a) {
    const auto view = recorder.interned().view({{4, 256}, {256, 1}, 0, DType::kFp32});
    const std::array<Operand, 1> in{Operand{a.buffer, view}};
    const std::array<std::int64_t, 1> bytes{a.requested};
    recorder.record("aten::add_.Scalar", "", in, {}, bytes);
  }
};

TEST_F(MemoryAccountTest, PeakRemembersItsCategoriesAndPhase) {
  allocate(1000, BufferCategory::kParameter);
  recorder.push_scope("phase=forward");
  memory.release(*allocate(3000, BufferCategory::kActivation));
  recorder.pop_scope("phase=forward");
  recorder.push_scope("phase=backward");
  allocate(500, BufferCategory::kGradient);
  EXPECT_EQ(memory.current(), 1024 + 512);
  EXPECT_EQ(memory.peak(), 1024 + 3072);
  EXPECT_EQ(memory.peak_reserved(), 2 * kMiB);
  const json row = memory_row(recorder);
  EXPECT_EQ(row.at("peak_phase"), "forward");
  EXPECT_EQ(row.at("at_peak").at("activation_bytes"), 3072);
  EXPECT_EQ(row.at("at_peak").at("gradient_bytes"), 0);
  EXPECT_EQ(row.at("current").at("gradient_bytes"), 512);
  memory.reset_peak();
  EXPECT_EQ(memory.peak(), 1024 + 512);
  EXPECT_EQ(memory_row(recorder).at("at_peak").at("gradient_bytes"), 512);
}

TEST_F(MemoryAccountTest, EachPhaseHasItsPeakAndLaterCategories) {
  recorder.push_scope("phase=init");
  MemoryBlock* const weight = allocate(2000, BufferCategory::kTemporary);
  memory.release(*allocate(9000, BufferCategory::kTemporary));
  recorder.pop_scope("phase=init");
  recorder.push_scope("phase=forward");
  recorder.push_scope("layer=model.layers.0");
  MemoryBlock* const kept = allocate(1000, BufferCategory::kActivation);
  recorder.pop_scope("layer=model.layers.0");
  recorder.push_scope("layer=model.layers.1");
  memory.release(*allocate(5000, BufferCategory::kTemporary));
  memory.recategorize(*weight, BufferCategory::kParameter);
  memory.release(*kept);
  const json phases = memory_row(recorder).at("phases");
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases.at(0).at("phase"), "init");
  EXPECT_EQ(phases.at(0).at("peak_bytes"), 2048 + 10240);
  EXPECT_EQ(phases.at(0).at("at_peak").at("parameter_bytes"), 2048)
      << "it lived at the peak and is a parameter since";
  EXPECT_EQ(phases.at(0).at("at_peak").at("temporary_bytes"), 10240);
  EXPECT_EQ(phases.at(1).at("phase"), "forward");
  EXPECT_EQ(phases.at(1).at("peak_bytes"), 2048 + 1024 + 5120) << "the highest of its layers";
  EXPECT_EQ(phases.at(1).at("at_peak").at("activation_bytes"), 1024);
  EXPECT_EQ(phases.at(1).at("peak_reserved_bytes"), 2 * kMiB);
  EXPECT_EQ(phases.at(0).at("at_start").at("parameter_bytes"), 0) << "nothing lived yet";
  EXPECT_EQ(phases.at(1).at("at_start").at("parameter_bytes"), 2048)
      << "it lived when the phase began and is a parameter since";
  EXPECT_EQ(phases.at(1).at("at_start").at("temporary_bytes"), 0) << "freed before";
  EXPECT_EQ(phases.at(1).at("at_start").at("activation_bytes"), 0)
      << "before the first layer's, although the second layer began with it";
  EXPECT_FALSE(memory_row(recorder).contains("live_at_peak"));
}

TEST(UnlimitedMemoryAccount, GivesPastTheCapacityAndRemembersTheFirstRefusalAndThePeak) {
  RankRecorder recorder(0, 0, Bytes(64 * kMiB), true, true);
  MemoryAccount& memory = recorder.memory();
  const auto allocate = [&](std::int64_t bytes, BufferCategory category) {
    return memory.allocate(bytes, category, recorder.scope_id(), recorder.new_buffer());
  };
  recorder.push_scope("phase=forward");
  recorder.push_scope("layer=model.layers.0");
  allocate(40 * kMiB, BufferCategory::kActivation);
  EXPECT_EQ(memory_row(recorder).at("num_ooms"), 0);
  recorder.pop_scope("layer=model.layers.0");
  recorder.push_scope("layer=model.layers.1");
  MemoryBlock* const second = allocate(30 * kMiB, BufferCategory::kActivation);
  ASSERT_NE(second, nullptr);
  MemoryBlock* const third = allocate(50 * kMiB, BufferCategory::kTemporary);
  memory.release(*third);
  memory.release(*second);
  memory.release(*allocate(20 * kMiB, BufferCategory::kTemporary));
  const json row = memory_row(recorder);
  EXPECT_EQ(row.at("num_ooms"), 2);
  EXPECT_EQ(row.at("first_refusal"), (json{{"phase", "forward"},
                                           {"layer", "model.layers.1"},
                                           {"bytes", 30 * kMiB},
                                           {"allocated_before", 40 * kMiB}}));
  EXPECT_EQ(row.at("peak_bytes"), 120 * kMiB);
  EXPECT_EQ(row.at("capacity_bytes"), 64 * kMiB);
  ASSERT_EQ(row.at("live_at_peak").size(), 2u);
  EXPECT_EQ(row.at("live_at_peak").at(0), (json{{"category", "activation"},
                                                {"phase", "forward"},
                                                {"component", "model.layers.*"},
                                                {"bytes", 70 * kMiB},
                                                {"tensors", 2}}));
  EXPECT_EQ(row.at("live_at_peak").at(1).at("bytes"), 50 * kMiB);
}

TEST_F(MemoryAccountTest, WhatAnOptimizerStepLeavesIsItsState) {
  MemoryBlock* const before = allocate(1000, BufferCategory::kTemporary);
  record_add(*before);
  const std::uint32_t since = memory.op();
  MemoryBlock* const state = allocate(1000, BufferCategory::kTemporary);
  MemoryBlock* const gradient = allocate(1000, BufferCategory::kGradient);
  memory.release(*allocate(5000, BufferCategory::kTemporary));
  memory.keep_since(since, BufferCategory::kOptimizerState);
  EXPECT_EQ(state->category, BufferCategory::kOptimizerState);
  EXPECT_EQ(before->category, BufferCategory::kTemporary);
  EXPECT_EQ(gradient->category, BufferCategory::kGradient);
  EXPECT_EQ(memory.current_by_category()[static_cast<std::size_t>(BufferCategory::kOptimizerState)],
            1024);
}

TEST_F(MemoryAccountTest, OutOfMemoryShowsWhatIsThereAndChangesNothing) {
  recorder.push_scope("phase=forward");
  recorder.push_scope("microbatch=2");
  recorder.push_scope("layer=model.layers.1");
  MemoryBlock* const big = allocate(40 * kMiB, BufferCategory::kActivation);
  record_add(*big);
  for (int i = 0; i < 12; ++i) allocate(100, BufferCategory::kParameter);
  ASSERT_EQ(allocate(30 * kMiB, BufferCategory::kTemporary), nullptr);
  const std::string text = out_of_memory(recorder, 30 * kMiB, BufferCategory::kTemporary, true);
  EXPECT_THAT(text, AllOf(HasSubstr("rank 3, phase forward, micro-batch 2, layer model.layers.1"),
                          HasSubstr("tried to allocate 31457280 B"),
                          HasSubstr("NRT allocation failed for size 31457280 (OOM)"),
                          HasSubstr("NRT_RESOURCE (status 4)"),
                          HasSubstr("67108864 B (64.00 MiB): 42.00 MiB reserved"),
                          HasSubstr("22.00 MiB not reserved")));
  EXPECT_THAT(
      text,
      AllOf(HasSubstr(
                "40.00 MiB fp32 [4, 256], activation, made in phase forward, layer model.layers.1"),
            HasSubstr("activation 40.00 MiB"), HasSubstr("tensor_model_parallel_size"),
            HasSubstr("--instance trn1."), HasSubstr("empty_cache()")));
  std::size_t reported = 0;
  for (std::size_t at = text.find("(after operation"); at != std::string::npos;
       at = text.find("(after operation", at + 1))
    ++reported;
  EXPECT_EQ(reported, 10u) << "the ten largest";
  EXPECT_EQ(memory.current(), 40 * kMiB + 12 * 256);
  EXPECT_THAT(out_of_memory(recorder, 1, BufferCategory::kInput, false),
              AllOf(HasSubstr("not bound"), Not(HasSubstr("model.layers.1"))));
}

TEST_F(MemoryAccountTest, AnyThreadMayAllocateAndRelease) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::array<std::vector<MemoryBlock*>, kThreads> kept;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 2000; ++i) {
        MemoryBlock* const block = memory.allocate(1 + i % 3000, static_cast<BufferCategory>(t), 0,
                                                   static_cast<std::uint64_t>(i));
        if (i % 50 == 0) {
          kept[t].push_back(block);
        } else {
          memory.release(*block);
        }
        if (i % 500 == 0) memory.empty_cache();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int64_t expected = 0;
  for (std::size_t t = 0; t < kThreads; ++t) {
    std::int64_t bytes = 0;
    for (const MemoryBlock* block : kept[t]) bytes += block->size;
    EXPECT_EQ(memory.current_by_category()[t], bytes);
    expected += bytes;
  }
  EXPECT_EQ(memory.current(), expected);
  EXPECT_EQ(memory.stats().allocation_requests, kThreads * 2000);
}

TEST_F(MemoryAccountTest, SnapshotAndTimelineSayWhatTheStatisticsSay) {
  recorder.push_scope("phase=forward");
  MemoryBlock* const kept = allocate(1000, BufferCategory::kActivation);
  MemoryBlock* const held = allocate(2 * kMiB, BufferCategory::kTemporary);
  memory.record_stream(*held);
  record_add(*kept);
  recorder.pop_scope("phase=forward");
  recorder.push_scope("phase=backward");
  memory.release(*held);
  memory.release(*allocate(3 * kMiB, BufferCategory::kGradient));
  const json stats = memory_stats(memory), snapshot = memory_snapshot(recorder),
             timeline = memory_timeline(recorder);

  std::int64_t reserved = 0, allocated = 0, active = 0;
  for (const json& segment : snapshot.at("segments")) {
    reserved += segment.at("total_size").get<std::int64_t>();
    allocated += segment.at("allocated_size").get<std::int64_t>();
    active += segment.at("active_size").get<std::int64_t>();
  }
  EXPECT_EQ(reserved, stats.at("reserved_bytes").at("current"));
  EXPECT_EQ(allocated, stats.at("allocated_bytes").at("current"));
  EXPECT_EQ(active, stats.at("active_bytes").at("current"));
  EXPECT_EQ(allocated - active, 2 * kMiB) << "held for a stream";
  const json& block = snapshot.at("segments").at(0).at("blocks").at(0);
  EXPECT_EQ(block.at("state"), "active_allocated");
  EXPECT_EQ(block.at("phase"), "forward");
  EXPECT_EQ(block.at("requested_size"), 1000);

  EXPECT_EQ(timeline.at("after").at("allocated_bytes"), stats.at("allocated_bytes").at("current"));
  EXPECT_EQ(timeline.at("after").at("reserved_bytes"), stats.at("reserved_bytes").at("current"));
  ASSERT_EQ(timeline.at("phases").size(), 2u);
  EXPECT_EQ(timeline.at("phases").at(1).at("phase"), "backward");
  EXPECT_EQ(timeline.at("phases").at(1).at("at_peak").at("by_category").at("gradient_bytes"),
            3 * kMiB);
  EXPECT_EQ(timeline.at("phases").at(1).at("first_op"), 1);

  memory.synchronize();
  EXPECT_EQ(memory.stats().all.allocated_bytes.current, memory.stats().all.active_bytes.current);
  memory.set_timeline_capacity(0);
  EXPECT_TRUE(memory_timeline(recorder).at("events").empty());
  EXPECT_EQ(memory_timeline(recorder).at("after").at("allocated_bytes"), 1024);
}

}  // namespace
}  // namespace trellis::device::memory_account_test
