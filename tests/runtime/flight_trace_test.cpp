// The trace of a world that failed.
#include "runtime/hangs/flight_trace.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "traces/text_writer.h"

namespace trellis::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(FlightTrace, WhatDidNotCompleteIsAnOpenSliceAndSoIsWhatEachRankDid) {
  WorldOptions options;
  options.world_size = 3;
  std::vector<FlightDump> dumps;
  options.dump = [&](const std::vector<FlightDump>& all) {
    dumps = all;
    return std::string();
  };
  const std::int64_t origin = host_time_ns();
  EXPECT_THROW(run_ranks(options,
                         [](RankContext& context) {
                           auto dp = context.new_group("dp", {0, 1, 2});
                           context.begin_step(7);
                           std::vector<at::Tensor> tensors{at::ones({8})};
                           dp->allreduce(tensors)->wait();
                           RECORD_USER_SCOPE("layer=head");
                           const CallSite here;
                           if (context.rank() != 2) dp->broadcast(tensors)->wait();
                         }),
               Error);
  std::ostringstream text;
  traces::write_text(flight_timeline(dumps, origin), text);
  EXPECT_THAT(
      text.str(),
      AllOf(ContainsRegex("slice [0-9]+ \\+[0-9]+ [^\n]*rank 0[^\n]*all-reduce sum of 8 Float"),
            ContainsRegex("slice [0-9]+ open [^\n]*rank 1[^\n]*broadcast of 8 Float"),
            ContainsRegex("open [^\n]*rank 0[^\n]*waits in broadcast of 8 Float"),
            HasSubstr("layer=head"), HasSubstr("\"tests/runtime/flight_trace_test.cpp:")));
}

TEST(FlightTrace, ProcessesAppendTheirPartsAndErrorsAreNamed) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("flight_trace_test_" + std::to_string(getpid()) + ".pftrace");
  std::filesystem::remove(file);
  EXPECT_EQ(append_flight_trace(file, {}, 0, 0), "");
  FlightDump dump;
  dump.now = "waits";
  EXPECT_THAT(append_flight_trace(file, {dump}, 0, 0), HasSubstr("trace of the end: /"));
  const auto size = std::filesystem::file_size(file);
  (void)append_flight_trace(file, {dump}, 0, 1);
  EXPECT_GT(std::filesystem::file_size(file), 2 * size - 64);
  std::filesystem::remove(file);
  EXPECT_THAT(append_flight_trace("/proc/nothing/x", {dump}, 0, 0),
              HasSubstr("not written: /proc/nothing/x: No such file"));
}

}  // namespace
}  // namespace trellis::runtime
