#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::testing::tiny_gemm;

TEST(Simulator, AnswersCallsFromManyThreadsAlike) {
  Simulator simulator(load_system("trn1.32xlarge"));
  const CoreTiming expected = simulator.time_program(tiny_gemm(20));
  std::vector<CoreTiming> got(8);
  {
    std::vector<std::jthread> threads;
    for (auto& timing : got)
      threads.emplace_back([&] { timing = simulator.time_program(tiny_gemm(20)); });
  }
  for (const auto& timing : got) EXPECT_EQ(timing, expected);
}

TEST(Simulator, IsAloneInItsProcess) {
  auto first = std::make_unique<Simulator>(load_system("trn1.32xlarge"));
  EXPECT_THROW(Simulator(load_system("trn1.32xlarge")), Error);
  const CoreTiming trn1 = first->time_program(tiny_gemm(20));
  first.reset();
  Simulator second(
      load_system("trn2.48xlarge"));  // one after the other is fine, with another configuration
  EXPECT_NE(second.time_program(tiny_gemm(20)), trn1);
}

TEST(Simulator, ReportsADeadlockToTheCallerAndGoesOn) {
  Simulator simulator(load_system("trn1.32xlarge"));
  isa::Program stuck = tiny_gemm(3);
  stuck.segments[0].queues[2].clear();
  stuck.segments[0].queues[1].clear();
  EXPECT_THROW((void)simulator.time_program(stuck), Error);
  EXPECT_GT(simulator.time_program(tiny_gemm(3)).segments[0].duration.value, 0);
}

TEST(Simulator, EmptySegmentsTakeNoTime) {
  Simulator simulator(load_system("trn1.32xlarge"));
  isa::Program empty;
  empty.segments.resize(2);
  for (const auto& segment : simulator.time_program(empty).segments)
    EXPECT_EQ(segment.duration.value, 0);
}

}  // namespace
}  // namespace trellis::sim
