#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include "tests/device/aten/time_fixture.h"

/// Streams and events of simulated time, through LibTorch's own device-independent interfaces.
namespace trellis::device::testing {
namespace {

using ::testing::HasSubstr;

const c10::impl::VirtualGuardImpl guard_of_device() {
  return c10::impl::VirtualGuardImpl(c10::kPrivateUse1);
}

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

class EventTest : public TimedDevice {
 protected:
  EventTest() : stream(guard_of_device().getStream(neuron())) {}
  c10::Stream stream;
};

TEST_F(EventTest, ElapsedTimesOfPartsAddUp) {
  const at::Tensor a = ones(256);
  const c10::Event begin = mark(stream);
  a.mm(a);
  const c10::Event middle = mark(stream);
  a.mm(a).add_(a);
  const c10::Event end = mark(stream);
  EXPECT_GT(begin.elapsedTime(middle), 0);
  EXPECT_DOUBLE_EQ(begin.elapsedTime(middle) + middle.elapsedTime(end), begin.elapsedTime(end));
  EXPECT_DOUBLE_EQ(end.elapsedTime(begin), -begin.elapsedTime(end));
}

TEST_F(EventTest, LargerProductsTakeLongerAndEqualOnesTheSame) {
  const auto time_of = [&](std::int64_t n) {
    const at::Tensor a = ones(n);
    const c10::Event begin = mark(stream);
    a.mm(a);
    const c10::Event end = mark(stream);
    return begin.elapsedTime(end);
  };
  time_of(64);  // pays for the first launch
  const double small = time_of(512), large = time_of(1024);
  EXPECT_LT(small, large);
  EXPECT_DOUBLE_EQ(time_of(512), small);
}

TEST_F(EventTest, AnOperatorThatTheCompilerDoesNotKnowTakesTimeToo) {
  const at::Tensor a = ones(64);
  const c10::Event begin = mark(stream);
  at::special_bessel_j0(a);
  at::complex(a, a).mul(2);
  const c10::Event end = mark(stream);
  EXPECT_GT(begin.elapsedTime(end), 0);
}

TEST_F(EventTest, TimingIsForEventsThatWereMadeForIt) {
  const c10::Event untimed = mark(stream, c10::EventFlag::PYTORCH_DEFAULT), timed = mark(stream);
  EXPECT_THAT(error_of([&] { (void)timed.elapsedTime(untimed); }), HasSubstr("enable_timing=True"));
  const c10::Event never(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  EXPECT_THAT(error_of([&] { (void)timed.elapsedTime(never); }), HasSubstr("recorded"));
}

TEST_F(EventTest, AFreedOrForeignEventIsNamed) {
  const auto guard = guard_of_device();
  void* event = nullptr;
  guard.record(&event, stream, 0, c10::EventFlag::BACKEND_DEFAULT);
  guard.destroyEvent(event, 0);
  EXPECT_THAT(error_of([&] { guard.block(event, stream); }), HasSubstr("freed"));
  EXPECT_THAT(error_of([&] { (void)guard.queryEvent(&event); }), HasSubstr("freed"));
  guard.destroyEvent(event, 0);  // harmless
}

TEST_F(EventTest, DevicesHaveSeparateClocks) {
  const c10::Event here = mark(stream), there = mark(guard_of_device().getStream(neuron(1)));
  EXPECT_THAT(error_of([&] { (void)here.elapsedTime(there); }), HasSubstr("its own clock"));
  EXPECT_THAT(error_of([&] { there.block(stream); }), HasSubstr("neuron:1"));
}

TEST_F(EventTest, AnotherThreadsEventHasNoTime) {
  const c10::Event begin = mark(stream);
  std::string error;
  std::thread([&] {
    const c10::Event foreign = mark(stream);
    error = error_of([&] { (void)begin.elapsedTime(foreign); });
  }).join();
  EXPECT_THAT(error, HasSubstr("not bound to rank 0"));
}

TEST_F(EventTest, AStreamThatWasNeverHandedOutIsNamed) {
  const c10::Stream made_up(c10::Stream::UNSAFE, neuron(), 7);
  EXPECT_THAT(error_of([&] { made_up.synchronize(); }), HasSubstr("stream 7"));
  EXPECT_THAT(error_of([&] { guard_of_device().exchangeStream(made_up); }), HasSubstr("stream 7"));
}

TEST_F(EventTest, NewStreamsAreTheDefaultOneUnlessHostCcIsOn) {
  EXPECT_EQ(guard_of_device().getNewStream(neuron()), stream);
  EXPECT_EQ(guard_of_device().getStreamFromGlobalPool(neuron()), stream);
}

TEST_F(EventTest, TheAcceleratorInterfaceReachesTheDevice) {
  EXPECT_EQ(at::getAccelerator(true).value(), c10::kPrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), 2);
  EXPECT_EQ(at::accelerator::getCurrentStream(0), stream);
  ones(64);
  at::accelerator::synchronizeDevice(0);
  EXPECT_TRUE(stream.query());
}

class StreamTest : public TimedDevice {
 protected:
  StreamTest() : TimedDevice(true) {}
};

TEST_F(StreamTest, ThePoolHasThreeStreams) {
  const auto guard = guard_of_device();
  std::vector<c10::Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(guard.getNewStream(neuron()));
  EXPECT_NE(streams[0], guard.getDefaultStream(neuron()));
  EXPECT_NE(streams[0], streams[1]);
  EXPECT_NE(streams[1], streams[2]);
  EXPECT_EQ(streams[3], streams[0]);
}

TEST_F(StreamTest, WorkOnTwoStreamsOverlapsUntilOneWaits) {
  const auto guard = guard_of_device();
  const c10::Stream first = guard.getDefaultStream(neuron()), second = guard.getNewStream(neuron());
  const at::Tensor a = ones(1024), b = ones(64);
  first.synchronize();
  const c10::Event begin = mark(first);
  a.mm(a);
  const c10::Event long_work = mark(first);
  {
    const c10::StreamGuard on_second(second);
    EXPECT_EQ(guard.getStream(neuron()), second);
    b.mm(b);
    const c10::Event concurrent = mark(second);
    long_work.block(second);
    b.mm(b);
    const c10::Event after = mark(second);
    EXPECT_LT(begin.elapsedTime(concurrent), begin.elapsedTime(long_work));
    EXPECT_GT(begin.elapsedTime(after), begin.elapsedTime(long_work));
  }
  EXPECT_EQ(guard.getStream(neuron()), first);
}

}  // namespace
}  // namespace trellis::device::testing
