// The records that a rank's recorder keeps, and the files that a world writes when it ends badly.
#include "runtime/calls/flight_recorder.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"

namespace trellis::runtime {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Exchange> exchange(std::uint64_t sequence) {
  static const auto group =
      std::make_shared<const GroupInfo>(GroupInfo{"tp", {0, 1}, 0, 2, "tp [0, 1]"});
  return std::make_shared<Exchange>(group, sequence);
}

Side side(CommOp op, std::int64_t elements) {
  Side side;
  side.call.op = op;
  side.call.elements = elements;
  return side;
}

TEST(FlightRecorder, KeepsWhatAMemberGivesAndGets) {
  FlightRecorder recorder;
  recorder.add(side(CommOp::kAllGather, 8), exchange(0), 1);
  recorder.add(side(CommOp::kReduceScatter, 8), exchange(1), 1);
  recorder.add(side(CommOp::kAllReduce, 8), exchange(2), 2);
  const auto entries = recorder.entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].input_elements, 4);
  EXPECT_EQ(entries[0].output_elements, 8);
  EXPECT_EQ(entries[1].input_elements, 8);
  EXPECT_EQ(entries[1].output_elements, 4);
  EXPECT_EQ(entries[1].in_step, 1);
  EXPECT_EQ(entries[2].in_step, 0);
  EXPECT_EQ(entries[2].ended_ns, 0) << "it never completed";
}

TEST(FlightRecorder, AFullOneBeginsWithAWholeStep) {
  FlightRecorder recorder;
  const std::int64_t each = 300;
  const auto steps = static_cast<std::int64_t>(FlightRecorder::kCapacity) / each + 3;
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::int64_t i = 0; i < each; ++i)
      recorder.add(side(CommOp::kBarrier, 0), exchange(static_cast<std::uint64_t>(i)), step);
  }
  const auto entries = recorder.entries();
  ASSERT_FALSE(entries.empty());
  EXPECT_EQ(entries.front().in_step, 0);
  EXPECT_EQ(entries.size() % static_cast<std::size_t>(each), 0u);
  EXPECT_EQ(entries.back().step, steps);
}

TEST(FlightDumps, AreWrittenOnceAndTheErrorSaysWhere) {
  WorldOptions options;
  options.world_size = 3;
  int times = 0;
  std::vector<FlightDump> got;
  options.dump = [&](const std::vector<FlightDump>& dumps) {
    ++times;
    got = dumps;
    return std::string("  dumps: here");
  };
  try {
    run_ranks(options, [](RankContext& context) {
      auto tp = context.new_group("tp", {0, 1, 2});
      tp->barrier()->wait();
      if (context.rank() == 1) throw Error(ExitCode::kDoesNotFit, "rank 1 is full");
      tp->barrier()->wait();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is full\n  dumps: here"));
  }
  EXPECT_EQ(times, 1);
  ASSERT_EQ(got.size(), 3u);
  ASSERT_EQ(got[1].entries.size(), 1u);
  EXPECT_GT(got[1].entries[0].ended_ns, 0);
  EXPECT_EQ(got[1].groups.size(), 2u) << "its own and the host's";
}

TEST(FlightDumps, NeitherAGoodRunNorWrongInputWritesAny) {
  WorldOptions options;
  options.world_size = 2;
  options.dump = [](const std::vector<FlightDump>&) {
    ADD_FAILURE();
    return std::string();
  };
  EXPECT_NO_THROW(run_ranks(options, [](RankContext& context) { context.host_barrier(); }));
  EXPECT_THROW(run_ranks(options, [](RankContext&) { throw ConfigError("wrong"); }), ConfigError);
}

}  // namespace
}  // namespace trellis::runtime
