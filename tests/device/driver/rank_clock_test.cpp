#include <gtest/gtest.h>

#include "base/error.h"
#include "device/driver/session.h"
#include "device/driver/timing/rank_clock.h"

/// Properties of a rank's simulated clock, fed through the recorder as the device feeds it.
namespace trellis::device {
namespace {

class RankClockTest : public ::testing::Test {
 protected:
  Session session{SessionOptions{.instance = "trn2.48xlarge", .world_size = 4}};
  RankRecorder& rank = session.rank(0);
  RankClock& clock = rank.clock();

  Operand tensor(std::uint64_t buffer, std::int64_t n, DType dtype = DType::kBf16) {
    return {buffer, rank.interned().view({{n, n}, {n, 1}, 0, dtype})};
  }
  /// out = a · b in a separate graph.
  void run(std::int64_t n, std::string_view schema = "aten::mm") {
    const std::array<Operand, 2> in{tensor(rank.new_buffer(), n), tensor(rank.new_buffer(), n)};
    rank.cut("test");
    const std::array<Operand, 1> out{tensor(rank.new_buffer(), n)};
    const std::array<std::int64_t, 3> bytes{2 * n * n, 2 * n * n, 2 * n * n};
    rank.record(schema, "", in, out, bytes);
    rank.cut("test");
  }
  std::shared_ptr<TimeMark> mark(int stream = 0) {
    auto mark = std::make_shared<TimeMark>();
    clock.mark(stream, mark);
    return mark;
  }
  std::int64_t read() {
    clock.read();
    return clock.now().value;
  }
  static std::int64_t between(const std::shared_ptr<TimeMark>& a,
                              const std::shared_ptr<TimeMark>& b) {
    return (b->time.value() - a->time.value()).value;
  }
};

TEST_F(RankClockTest, AnIdleDeviceHasNoTimeAndWorkTakesSome) {
  EXPECT_EQ(read(), 0);
  run(256);
  const std::int64_t once = read();
  EXPECT_GT(once, 0);
  EXPECT_EQ(read(), once) << "reading is no work";
}

TEST_F(RankClockTest, PartsAddUpHoweverOftenTheClockIsRead) {
  const auto a = mark();
  run(256);
  const auto b = mark();
  run(512);
  const auto c = mark();
  const std::int64_t total = read();
  EXPECT_EQ(between(a, b) + between(b, c), between(a, c));
  EXPECT_EQ(between(a, c), total);
}

TEST_F(RankClockTest, TwiceAsLargeTakesLonger) {
  run(64);  // pays for the first launch
  std::vector<std::shared_ptr<TimeMark>> marks{mark()};
  for (const std::int64_t n : {256, 512, 1024}) {
    run(n);
    marks.push_back(mark());
  }
  read();
  EXPECT_LT(between(marks[0], marks[1]), between(marks[1], marks[2]));
  EXPECT_LT(between(marks[1], marks[2]), between(marks[2], marks[3]));
}

TEST_F(RankClockTest, EqualWorkTakesEqualTimeInEveryStep) {
  std::vector<std::int64_t> steps;
  std::int64_t before = 0;
  for (int step = 0; step < 4; ++step) {
    run(256);
    run(128);
    rank.host_waits();
    session.end_step(0, step);
    steps.push_back(read() - before);
    before += steps.back();
  }
  EXPECT_EQ(steps[1], steps[0]);
  EXPECT_EQ(steps[3], steps[0]);
}

TEST_F(RankClockTest, ALogOfManyEqualStepsIsReadAsIfItHadBeenReadEachStep) {
  run(256);
  session.end_step(0, 0);
  const std::int64_t first = read();
  run(256);
  session.end_step(0, 1);
  const std::int64_t each = read() - first;
  for (int step = 2; step < 1002; ++step) {
    run(256);
    session.end_step(0, step);
  }
  EXPECT_EQ(read(), first + 1001 * each);
}

TEST_F(RankClockTest, ALongLogIsReadWhereItsTimeCanBeAskedFor) {
  run(256);
  read();  // pays for the first launch
  const auto begin = mark();
  run(256);
  const auto once = mark();
  read();
  const std::int64_t each = between(begin, once);
  for (std::size_t i = 0; i < RankClock::kMostEntries + 10; ++i) run(256);
  const auto end = mark();
  read();
  EXPECT_EQ(between(once, end), static_cast<std::int64_t>(RankClock::kMostEntries + 10) * each);
}

TEST_F(RankClockTest, ALongLogIsForgottenWhereItsTimeWasNeverAskedFor) {
  for (std::size_t i = 0; i < RankClock::kMostEntries; ++i) run(256);
  EXPECT_EQ(read(), 0) << "a clock that was never read counts from there";
  run(256);
  EXPECT_GT(read(), 0);
}

TEST_F(RankClockTest, AHostThatWaitsLetsTheQueueRunDry) {
  run(256);
  run(256);
  const std::int64_t ahead = read();
  run(256);
  rank.host_waits();
  run(256);
  const std::int64_t waited = read() - ahead;
  EXPECT_EQ(waited, ahead) << "one launch from an empty queue in each pair";
  rank.host_waits();
  for (int i = 0; i < 2; ++i) {
    run(256);
    rank.host_waits();
  }
  EXPECT_GT(read() - ahead - waited, waited) << "two such launches";
}

TEST_F(RankClockTest, StreamsRunConcurrentlyAndWaitForEvents) {
  run(512);
  const auto on_default = mark(0);
  rank.set_stream(1);
  run(256);
  const auto concurrent = mark(1);
  clock.wait(1, on_default);
  run(256);
  const auto after = mark(1);
  read();
  EXPECT_LT(concurrent->time.value(), on_default->time.value());
  EXPECT_GT(after->time.value(), on_default->time.value());
}

TEST_F(RankClockTest, ACommunicationIsHiddenByWorkUntilItIsWaitedFor) {
  const auto exchange = [&](bool work) {
    const std::int64_t n = 1024;
    const std::array<Operand, 1> buffer{tensor(rank.new_buffer(), n)};
    const std::array<std::int64_t, 2> bytes{2 * n * n, 2 * n * n};
    const auto begin = mark();
    const std::int64_t handle = rank.comm_start(
        {sim::CollectiveKind::kAllReduce, "dp", {0, 1, 2, 3}, 0, n * n, DType::kBf16}, buffer,
        buffer, bytes);
    if (work) run(1024);
    rank.comm_wait(handle);
    rank.cut("test");
    const auto end = mark();
    read();
    return between(begin, end);
  };
  run(64);
  const auto begin = mark();
  run(1024);
  const auto end = mark();
  const std::int64_t alone = exchange(false), concurrent = exchange(true);
  EXPECT_GT(alone, 0);
  EXPECT_LT(concurrent, alone + between(begin, end));
  EXPECT_GE(concurrent, between(begin, end));
}

TEST_F(RankClockTest, AnOperationWithoutLoweringIsEstimatedAndTakesTime) {
  run(256, "aten::linalg_svd");
  EXPECT_GT(read(), 0);
}

TEST_F(RankClockTest, SlicesPartitionTheStreamsTime) {
  run(64);
  clock.start_slices();
  const std::int64_t before = clock.now().value;
  rank.correlate(7);
  run(256);
  rank.correlate(8);
  run(512, "aten::add.Tensor");
  const std::vector<DeviceSlice> slices = clock.stop_slices();
  std::int64_t sum = 0;
  Picoseconds at{};
  std::vector<std::uint64_t> operations;
  for (const DeviceSlice& slice : slices) {
    EXPECT_EQ(slice.start, at) << slice.name;
    at = slice.end;
    sum += (slice.end - slice.start).value;
    if (slice.kind == DeviceSlice::Kind::kOperation) operations.push_back(slice.correlation);
  }
  EXPECT_EQ(sum, clock.now().value - before);
  EXPECT_EQ(operations, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_NE(slices.back().shapes.find("512"), std::string::npos) << slices.back().shapes;
}

TEST(RankClockAloneTest, WithoutASessionThereIsNoTime) {
  RankRecorder recorder(0, 0, Bytes(1 << 20), true);
  EXPECT_THROW(recorder.clock().read(), Error);
}

}  // namespace
}  // namespace trellis::device
