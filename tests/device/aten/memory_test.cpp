#include <thread>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "device/aten/state/storage.h"
#include "tests/device/aten/neuron_fixture.h"
#include "tests/device/aten/tiny_model.h"

/// The device's memory as a LibTorch program meets it: errors, statistics, pinned memory,
/// categories.
namespace trellis::device::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MemoryTest : public NeuronTest {
 protected:
  static at::TensorOptions on(int rank) {
    return at::TensorOptions(at::kFloat).device(neuron(rank));
  }
  static c10::DeviceAllocator& allocator() { return *c10::getDeviceAllocator(c10::kPrivateUse1); }
  static MemoryAccount& memory() { return recorder(0).memory(); }
  template <typename Body>
  static std::string out_of_memory(Body body) {
    try {
      body();
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
    ADD_FAILURE() << "expected an out-of-memory error";
    return "";
  }
  template <typename... Args>
  static nlohmann::json ask(const char* op, Args... args) {
    torch::jit::Stack stack{args...};
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
    return stack.empty() ? nlohmann::json() : nlohmann::json::parse(stack.back().toStringRef());
  }
  static std::int64_t of(BufferCategory category) {
    return memory().current_by_category()[static_cast<std::size_t>(category)];
  }
};

TEST_F(MemoryTest, OutOfMemoryIsLibTorchsErrorAndLeavesNoMemory) {
  const std::int64_t before = memory().current();
  EXPECT_THAT(
      out_of_memory([] { at::empty({kHbm}, on(0)); }),
      AllOf(HasSubstr("rank 0"), HasSubstr("NRT allocation failed for size 4294967296 (OOM)")));
  const Tensor a = at::empty({kHbm / 8}, on(0));
  const std::string text =
      out_of_memory([&] { a.add(1).add(1); });  // a fresh result of a kernel is charged as well
  EXPECT_THAT(text, HasSubstr("512.00 MiB fp32 [134217728]"));
  EXPECT_EQ(memory().current() - before, kHbm / 2);
}

TEST_F(MemoryTest, OutOfMemoryKeepsItsTypeThroughAutograd) {
  const Tensor a = at::empty({kHbm / 16}, on(0)).requires_grad_();  // a quarter of the memory
  const Tensor y = (a * 2).sum();
  const Tensor filler = at::empty({kHbm / 16 * 3 - (1 << 20)}, on(0));
  EXPECT_THROW(y.backward(), c10::OutOfMemoryError);
}

TEST_F(MemoryTest, AProgramThatRanOutOfMemoryGoesOn) {
  Tensor a = at::ones({kHbm / 8}, on(0)), b = at::ones({kHbm / 16}, on(0));
  out_of_memory([&] { at::empty({kHbm / 8}, on(0)); });
  a.reset();
  EXPECT_EQ(memory().stats().num_ooms, 1);
  EXPECT_GE(memory().stats().all.reserved_bytes.current, kHbm / 2 + kHbm / 4)
      << "the freed half is cached";
  allocator().emptyCache();
  EXPECT_LT(memory().stats().all.reserved_bytes.current, kHbm / 2);
  const Tensor c = at::empty({kHbm / 8}, on(0));
  c.fill_(2);
  EXPECT_EQ((c.slice(0, 0, 3) + b.slice(0, 0, 3)).sum().item<float>(), 9.0F);
}

TEST_F(MemoryTest, TheCacheIsFreedBeforeAProgramFails) {
  at::empty({kHbm / 8}, on(0));  // half of the memory, cached
  const Tensor a = at::empty({kHbm / 16 * 3}, on(0));
  EXPECT_EQ(memory().stats().num_alloc_retries, 1);
  EXPECT_EQ(memory().stats().num_ooms, 0);
}

TEST_F(MemoryTest, AnotherThreadGetsItsOwnAllocationsError) {
  std::string text;
  std::thread([&] { text = out_of_memory([] { at::empty({kHbm}, on(0)); }); }).join();
  EXPECT_THAT(text, HasSubstr("not bound to the rank"));
  at::empty({4}, on(0));  // the owner is not to blame
}

TEST_F(MemoryTest, AcceleratorFunctionsGiveTheSameNumbers) {
  const Tensor a = at::empty({1 << 20}, on(0)), b = at::empty({100}, on(0));
  const auto stats = allocator().getDeviceStats(0);
  const AllocatorStats ours = memory().stats();
  const nlohmann::json asked = ask("trellis::memory_stats", 0);
  EXPECT_EQ(stats.allocated_bytes[0].current, (4 << 20) + size_class(400));
  EXPECT_EQ(stats.allocated_bytes[1].current, size_class(400)) << "small pool";
  EXPECT_EQ(stats.allocated_bytes[2].current, 4 << 20) << "large pool";
  EXPECT_EQ(stats.requested_bytes[0].current, (4 << 20) + 400);
  EXPECT_EQ(stats.reserved_bytes[0].current, (20 + 2) << 20);
  EXPECT_EQ(asked.at("allocated_bytes").at("current"), stats.allocated_bytes[0].current);
  EXPECT_EQ(asked.at("reserved_bytes").at("peak"), stats.reserved_bytes[0].peak);
  EXPECT_EQ(asked.at("active_bytes").at("allocated"), ours.all.active_bytes.allocated);
  EXPECT_EQ(asked.at("allocation_requests"), 2);
  EXPECT_EQ(
      allocator().getMemoryInfo(0),
      std::make_pair(static_cast<std::size_t>(kHbm - (22 << 20)), static_cast<std::size_t>(kHbm)));
}

TEST_F(MemoryTest, PeaksAndAccumulatedCountersCanBeReset) {
  at::empty({1 << 20}, on(0));
  EXPECT_EQ(allocator().getDeviceStats(0).allocated_bytes[0].peak, 4 << 20);
  allocator().resetPeakStats(0);
  EXPECT_EQ(allocator().getDeviceStats(0).allocated_bytes[0].peak, 0);
  EXPECT_EQ(allocator().getDeviceStats(0).allocated_bytes[0].freed, 4 << 20);
  ask("trellis::reset_accumulated_memory_stats", 0);
  EXPECT_EQ(allocator().getDeviceStats(0).allocated_bytes[0].freed, 0);
  EXPECT_EQ(ask("trellis::memory_stats", 0).at("num_tensor_frees"), 0);
  ask("trellis::empty_cache");
  EXPECT_EQ(allocator().getDeviceStats(0).reserved_bytes[0].current, 0);
}

TEST_F(MemoryTest, ATensorThatAnotherStreamUsesStaysAllocatedUntilItIsDone) {
  Tensor a = at::empty({1000}, on(0));
  a.record_stream(c10::Stream(c10::Stream::UNSAFE, neuron(0), 1));
  a.reset();
  EXPECT_EQ(memory().stats().all.active_bytes.current, 0);
  EXPECT_EQ(memory().stats().all.allocated_bytes.current, size_class(4000));
  memory().synchronize();
  EXPECT_EQ(memory().stats().all.allocated_bytes.current, 0);
}

TEST_F(MemoryTest, ProgramsTellParametersAndGradientsByThemselves) {
  const Tensor w = at::ones({64, 64}, on(0)).requires_grad_(), x = at::ones({8, 64}, on(0));
  at::mm(x, w).sum().backward();
  EXPECT_EQ(storage_of(w).category(), BufferCategory::kParameter);
  EXPECT_EQ(storage_of(w.grad()).category(), BufferCategory::kGradient);
  EXPECT_EQ(of(BufferCategory::kParameter), 64 * 64 * 4);
  EXPECT_EQ(of(BufferCategory::kGradient), 64 * 64 * 4);
  Tensor state;
  {
    RECORD_USER_SCOPE("Optimizer.step#AdamW.step");
    state = at::zeros_like(w);
    w.detach().sub_(w.grad().mul(0.1));
  }
  EXPECT_EQ(storage_of(state).category(), BufferCategory::kOptimizerState);
  EXPECT_EQ(of(BufferCategory::kOptimizerState), 64 * 64 * 4);
}

TEST_F(MemoryTest, PinnedMemoryIsKnownAndCopiesFromItAreMarked) {
  at::HostAllocator* const host = at::getHostAllocator(c10::kPrivateUse1);
  const Tensor pageable = at::ones({100});
  EXPECT_FALSE(pageable.is_pinned());
  {
    const Tensor pinned = pageable.pin_memory();
    EXPECT_TRUE(pinned.is_cpu());
    EXPECT_TRUE(pinned.is_pinned());
    EXPECT_TRUE(pinned.slice(0, 50).is_pinned()) << "an address inside";
    EXPECT_TRUE(pinned.equal(pageable));
    EXPECT_TRUE(pinned.pin_memory().is_same(pinned));
    EXPECT_TRUE(at::empty({3}, at::TensorOptions().pinned_memory(true)).is_pinned());
    EXPECT_EQ(host->get_stats().active_requests.current, 1);
    recorder(0).cut("test");
    pinned.to(neuron(0));
    pageable.to(neuron(0));
    const auto lines = recorded(0);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].scalars, "from=cpu pinned=1");
    EXPECT_EQ(lines[1].scalars, "from=cpu");
  }
  EXPECT_EQ(host->get_stats().active_requests.current, 0);
  EXPECT_GE(host->get_stats().active_bytes.peak, 400);
}

TEST_F(MemoryTest, ARecordedOperationTakesAtMost64BytesOfTheHost) {
  recorder(0).phases_are_announced();  // one graph
  train(neuron(0), at::kFloat, 2);
  const RankRecorder::Impl& stream = recorder(0).impl();
  ASSERT_GT(stream.ops.size(), 100u);
  const double bytes =
      static_cast<double>(stream.host_bytes()) / static_cast<double>(stream.ops.size());
  RecordProperty("bytes_per_operation", std::to_string(bytes));
  EXPECT_LE(bytes, 64);
}

TEST_F(MemoryTest, SnapshotAndTimelineAreServices) {
  const Tensor a = at::ones({1000}, on(0));
  recorder(0).push_scope("phase=forward");
  const Tensor b = a + 1;
  recorder(0).pop_scope("phase=forward");
  const nlohmann::json snapshot = ask("trellis::memory_snapshot", -1),
                       timeline = ask("trellis::memory_timeline", 0);
  EXPECT_EQ(snapshot.at("schema"), "trellis.memory_snapshot/1");
  EXPECT_EQ(snapshot.at("segments").at(0).at("blocks").at(1).at("category"), "activation");
  EXPECT_EQ(timeline.at("schema"), "trellis.memory_timeline/1");
  EXPECT_EQ(timeline.at("phases").back().at("phase"), "forward");
  ask("trellis::keep_memory_events", 0, 0);
  EXPECT_TRUE(ask("trellis::memory_timeline", 0).at("events").empty());
  EXPECT_THROW(ask("trellis::memory_stats", 99), c10::Error);
}

}  // namespace
}  // namespace trellis::device::testing
