// Calls that all ranks make and leave together: what one throws in them all throw, and go on.
#include <array>
#include <memory>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/output_error.h"
#include "runtime/links/process_link.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kTogether = 4;

constexpr int kCalls = 7;

/// The error that each rank threw in each call; "": none.
using Thrown = std::array<std::array<std::string, kCalls>, kTogether>;

/// Each process gives the other three bytes and two integers, from its first rank.
void exchange(RankContext& rank, int call) {
  if (rank.link() == nullptr) return (void)rank.exchange_bytes({}, {});
  const int other = 1 - rank.link()->process();
  const auto given = [call](int process) {
    return std::vector{at::full({3}, 10 * process + call, at::kByte),
                       at::full({2}, process - call, at::kInt)};
  };
  const auto got = rank.exchange_bytes({{other, given(rank.link()->process())}}, {other});
  if (!rank.leads_process()) {
    EXPECT_TRUE(got.empty());
    return;
  }
  const Tensors expected = given(other);
  EXPECT_TRUE(at::equal(got.at(other).narrow(0, 0, 3), expected[0]));
  EXPECT_TRUE(at::equal(got.at(other).narrow(0, 3, 8).clone().view(at::kInt), expected[1]));
}

/// Rank 2 fails in the first, third, fourth and sixth call, at different places.
void body(RankContext& rank, Thrown& thrown) {
  const bool fails = rank.rank() == 2;
  for (int call = 0; call < kCalls; ++call) {
    try {
      rank.together([&] {
        if (call == 0 && fails) throw ConfigError("at the begin");
        rank.process_barrier();
        rank.host_barrier();
        if (call == 2 && fails) throw OutputError("in the middle");
        rank.host_barrier();
        if (call == 3 && fails) throw std::out_of_range("at the end");
        if (call == 5 && fails) throw ConfigError("before it gave");
        exchange(rank, call);
      });
    } catch (const ConfigError& error) {
      thrown[rank.rank()][call] = std::string("ConfigError: ") + error.what();
    } catch (const OutputError& error) {
      thrown[rank.rank()][call] = std::string("OutputError: ") + error.what();
    } catch (const Error& error) {
      thrown[rank.rank()][call] = std::string("Error: ") + error.what();
    }
    rank.host_barrier();  // those who catch it are where the others are
    const auto group = rank.new_group("tp", all_ranks(kTogether));
    Tensors sum{at::ones({3})};
    group->allreduce(sum)->wait();
    EXPECT_EQ(sum[0][0].item<float>(), kTogether);
  }
}

void check(const Thrown& thrown) {
  for (const auto& calls : thrown) {
    EXPECT_THAT(calls[0], AllOf(HasSubstr("ConfigError: at the begin"), HasSubstr("by rank 2")));
    EXPECT_EQ(calls[1], "");
    EXPECT_THAT(calls[2], AllOf(HasSubstr("OutputError: in the middle"), HasSubstr("by rank 2")));
    EXPECT_THAT(calls[3], AllOf(HasSubstr("Error: at the end"), HasSubstr("by rank 2")));
    EXPECT_EQ(calls[4], "");
    EXPECT_THAT(calls[5], AllOf(HasSubstr("ConfigError: before it gave"), HasSubstr("by rank 2")));
    EXPECT_EQ(calls[6], "");
  }
}

TEST(Together, WhatOneRankThrowsAllThrowAndGoOn) {
  Thrown thrown;
  run_ranks(world(kTogether), [&](RankContext& rank) { body(rank, thrown); });
  check(thrown);
}

TEST(Together, AcrossProcessesToo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Thrown thrown;
  std::vector<std::thread> processes;
  for (int process = 0; process < 2; ++process) {
    processes.emplace_back([&, process] {
      ProcessLink link({"a test", process, 2, "127.0.0.1"}, store, 20s, {});
      WorldOptions options = world(kTogether);
      options.link = &link;
      EXPECT_NO_THROW(run_ranks(options, [&](RankContext& rank) { body(rank, thrown); }));
    });
  }
  for (std::thread& process : processes) process.join();
  check(thrown);
}

}  // namespace
}  // namespace trellis::runtime::testing
