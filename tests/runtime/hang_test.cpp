// A hang or a mismatch is named: who, where, what was expected, what was got.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/hangs/crash.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

milliseconds duration_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
}

TEST(Hang, ARankThatNeverArrivesIsNamedWithinTheTimeout) {
  WorldOptions options = world(4);
  options.timeout = milliseconds(200);
  options.host_threads = 4;
  std::atomic<bool> reported{false};
  std::pair<std::string, ExitCode> error;
  const auto elapsed = duration_of([&] {
    error = error_of([&] {
      run_ranks(options, [&](RankContext& context) {
        auto dp = context.new_group("dp", {0, 1, 2, 3});
        context.begin_step(12);
        Tensors tensors{at::ones({1024})};
        dp->allreduce(tensors)->wait();
        if (context.rank() == 2) {
          while (!context.stop_requested())
            std::this_thread::sleep_for(milliseconds(1));  // computes on and on
          return;
        }
        dp->broadcast(tensors)->wait();
      });
    });
  });
  EXPECT_EQ(error.second, ExitCode::kHang);
  EXPECT_THAT(
      error.first,
      AllOf(HasSubstr("communication hang"),
            HasSubstr("broadcast of 1024 Float with root member 0, #1 of dp [0, 1, 2, 3]"),
            HasSubstr("arrived: 0, 1, 3"),
            HasSubstr("missing: rank 2, which runs outside any communication since 0."),
            HasSubstr(
                "last: all-reduce sum of 1024 Float, #0 of dp [0, 1, 2, 3] (complete), step 12"),
            ContainsRegex("blocked: rank [013], [013] in broadcast of 1024 Float with root member "
                          "0, #1 of dp .*, step 12, 4096 bytes"),
            HasSubstr("waited 0.2"), HasSubstr("what to do")));
  EXPECT_GE(elapsed, milliseconds(200));
  EXPECT_LT(elapsed, milliseconds(2000));
}

/// The numbers of "NAME: 1, 2, 3" in a text.
std::set<int> numbers_after(const std::string& name, const std::string& text) {
  std::set<int> numbers;
  std::istringstream list(text.substr(std::min(text.find(name) + name.size(), text.size())));
  char comma = 0;
  for (int each = 0; list >> each; list >> comma) numbers.insert(each);
  return numbers;
}

TEST(Hang, RanksWhoseTimeoutsEndTogetherGiveOneReportOfAll) {
  for (int round = 0; round < 8; ++round) {
    WorldOptions options = world(16);
    options.timeout = milliseconds(250);
    options.host_threads = 16;
    const auto [text, code] = error_of([&] {
      run_ranks(options, [](RankContext& context) {
        auto dp = context.new_group("dp", all_ranks(16));
        dp->barrier()->wait();
        while (context.rank() == 0 && !context.stop_requested())
          std::this_thread::sleep_for(milliseconds(1));
        if (context.rank() != 0) dp->barrier()->wait();
      });
    });
    EXPECT_EQ(code, ExitCode::kHang);
    std::set<int> named = numbers_after("blocked: rank ", text);
    named.merge(numbers_after("communication hang: rank ", text));
    EXPECT_EQ(named, numbers_after("arrived: ", text)) << text;
  }
}

TEST(Hang, ARankThatEndedIsNamedAtOnce) {
  std::pair<std::string, ExitCode> error;
  const auto elapsed = duration_of([&] {
    error = error_of([] {
      run_ranks(world(3), [](RankContext& context) {
        auto tp = context.new_group("tp", all_ranks(3));
        if (context.rank() == 1) return;
        tp->barrier()->wait();
      });
    });
  });
  EXPECT_EQ(error.second, ExitCode::kHang);
  EXPECT_THAT(
      error.first,
      AllOf(HasSubstr("barrier, #0 of tp [0, 1, 2]"), HasSubstr("missing: rank 1, which has ended"),
            HasSubstr("no communication yet"), HasSubstr("no one could still arrive")));
  EXPECT_LT(elapsed, milliseconds(5000)) << "the timeout is 20 s";
}

TEST(Hang, RanksThatWaitForEachOtherAreNamedAtOnce) {
  const auto [text, code] = error_of([] {
    run_ranks(world(2), [](RankContext& context) {
      auto pp = context.new_group("pp", {0, 1});
      Tensors in{at::empty({4})};
      pp->recv(in, 1 - context.rank(), 3)->wait();  // both receive, no one sends
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text, AllOf(HasSubstr("receive of 4 Float with tag 3, #0 of pp [0, 1]"),
                          HasSubstr("waits in another communication")));
}

TEST(Hang, GroupsInCrossedOrderAreNamed) {
  const auto [text, code] = error_of([] {
    run_ranks(world(2), [](RankContext& context) {
      auto tp = context.new_group("tp", {0, 1});
      auto dp = context.new_group("dp", {0, 1});
      (context.rank() == 0 ? tp : dp)->barrier()->wait();
      (context.rank() == 0 ? dp : tp)->barrier()->wait();
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text,
              AllOf(HasSubstr("barrier, #0 of tp [0, 1]"), HasSubstr("barrier, #0 of dp [0, 1]")));
}

TEST(Hang, ARankThatNeverMadeTheGroupIsNamed) {
  const auto [text, code] = error_of([] {
    run_ranks(world(2), [](RankContext& context) {
      if (context.rank() == 0) context.new_group("tp", {0, 1})->barrier()->wait();
    });
  });
  EXPECT_THAT(text, HasSubstr("missing: rank 1, which has not made this group and has ended"));
}

TEST(Hang, SlowRanksThatShareAHostThreadAreNotLate) {
  WorldOptions options = world(6);
  options.timeout = milliseconds(150);
  options.host_threads = 1;
  // Rank 0 arrives first and waits 6 × 60 ms for the others, each of which is quick enough once it
  // runs.
  EXPECT_NO_THROW(run_ranks(options, [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(6));
    std::this_thread::sleep_for(milliseconds(60));
    group->barrier()->wait();
  }));
}

TEST(Hang, ABarrierMayHaveItsOwnTimeout) {
  WorldOptions options = world(2);
  options.host_threads = 2;
  options.timeout = milliseconds(50);
  const auto slow_rank_0 = [&](milliseconds timeout) {
    run_ranks(options, [&](RankContext& context) {
      if (context.rank() == 0) std::this_thread::sleep_for(milliseconds(400));
      context.host_barrier(timeout);
    });
  };
  EXPECT_NO_THROW(slow_rank_0(std::chrono::hours(1))) << "such as one that writes a checkpoint";
  EXPECT_EQ(error_of([&] { slow_rank_0({}); }).second, ExitCode::kHang);
}

TEST(Hang, AWorkMayHaveItsOwnTimeout) {
  const auto [text, code] = error_of([] {
    WorldOptions options = world(2);
    options.host_threads = 2;
    run_ranks(options, [](RankContext& context) {
      auto group = context.new_group("dp", {0, 1});
      if (context.rank() == 1) {
        while (!context.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
        return;
      }
      Tensors tensors{at::ones({1})};
      c10d::AllreduceOptions with_timeout;
      with_timeout.timeout = milliseconds(50);
      group->allreduce(tensors, with_timeout)->wait();
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text, HasSubstr("waited 0.0"));
}

/// A rank whose code never asks whether to stop.
[[gnu::noinline]] void compute_for_ever(const std::atomic<bool>& never) {
  while (!never) {}
}

TEST(HangDeathTest, ARankThatGoesOnIsReportedWithItsStackAndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    WorldOptions options = world(3);
    options.host_threads = 3;
    options.timeout = milliseconds(200);
    options.exit_when_stuck = true;
    static const std::atomic<bool> never{false};
    run_ranks(options, [](RankContext& context) {
      auto dp = context.new_group("dp", all_ranks(3));
      if (context.rank() == 1) compute_for_ever(never);
      dp->barrier()->wait();
    });
  };
  const std::string own_program = std::string("(") + program_invocation_short_name + ")";
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(4),
              AllOf(HasSubstr("error: communication hang: rank"),
                    HasSubstr("missing: rank 1, which runs outside any communication"),
                    HasSubstr("rank 1 goes on all the same"),
                    HasSubstr("native stack, innermost first:\n"), HasSubstr(own_program),
                    Not(HasSubstr("rank 0 goes on")), Not(HasSubstr("does not answer"))));
}

[[gnu::noinline]] int overflow(volatile char* caller) {
  volatile char frame[4096];
  frame[0] = caller[0];
  if (frame[0] != 0) return 0;  // never
  return overflow(frame) + frame[0];
}

TEST(CrashDeathTest, AnOverflownStackLeavesDumpsAndEndsByItsSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    const CrashHandler handler;
    WorldOptions options = world(2);
    options.dump = [](const std::vector<FlightDump>& dumps) {
      return "dumps of " + std::to_string(dumps.size()) + " ranks";
    };
    run_ranks(options, [](RankContext& context) {
      volatile char begin = 0;
      if (context.rank() == 1) overflow(&begin);
    });
  };
  EXPECT_DEATH(run(), "the process crashes: signal 11, Segmentation fault\ndumps of 2 ranks\n");
}

TEST(Incomplete, WhatOnlySomeMembersDidIsAFaultWhenAllHaveEnded) {
  const auto text_of = [](const std::function<void(RankContext&)>& body) {
    const auto [text, code] = error_of([&] { run_ranks(world(3), body); });
    EXPECT_EQ(code, ExitCode::kHang);
    return text;
  };
  const auto start = [](const std::function<void(const Group&, Tensors&)>& what) {
    return [what](RankContext& context) {
      auto group = context.new_group("pp", all_ranks(3));
      Tensors tensors{at::ones({4})};
      if (context.rank() == 0) what(group, tensors);
    };
  };
  EXPECT_THAT(
      text_of(start([](const Group& group, Tensors& tensors) { group->send(tensors, 2, 5); })),
      HasSubstr("send of 4 Float with tag 5, #0 of pp [0, 1, 2]: rank 0 did it, rank 2 did not"));
  EXPECT_THAT(
      text_of(start([](const Group& group, Tensors& tensors) { group->recv(tensors, 1, 5); })),
      HasSubstr(
          "receive of 4 Float with tag 5, #0 of pp [0, 1, 2]: rank 0 did it, rank 1 did not"));
  EXPECT_THAT(
      text_of(start([](const Group& group, Tensors& tensors) { group->allreduce(tensors); })),
      HasSubstr("all-reduce sum of 4 Float, #0 of pp [0, 1, 2]: rank 0 did it, rank 1, 2 did not"));
}

TEST(Incomplete, AGroupThatAMemberNeverMadeIsAFault) {
  const auto [text, code] = error_of([] {
    run_ranks(world(2), [](RankContext& context) {
      if (context.rank() == 0) context.new_group("tp", {0, 1});
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text, HasSubstr("group tp [0, 1]: rank 1 never made it"));
}

/// A program of two ranks that ends in a deadlock.
struct Deadlock {
  bool either_reports;  ///< whichever rank waits last
  std::function<void(RankContext&)> body;
};

std::vector<Deadlock> deadlocks() {
  const auto tensor = [](std::int64_t size) { return Tensors{at::ones({size})}; };
  const auto both_receive = [=](RankContext& rank) {
    Tensors in = tensor(4);
    rank.new_group("pp", {0, 1})->recv(in, 1 - rank.rank(), 3)->wait();
  };
  const auto crossed_groups = [](RankContext& rank) {
    const Group tp = rank.new_group("tp", {0, 1}), dp = rank.new_group("dp", {0, 1});
    (rank.rank() == 0 ? tp : dp)->barrier()->wait();
    (rank.rank() == 0 ? dp : tp)->barrier()->wait();
  };
  const auto rank_that_ends = [](RankContext& rank) {
    const Group tp = rank.new_group("tp", {0, 1});
    if (rank.rank() == 0) tp->barrier()->wait();
  };
  const auto rank_without_group = [](RankContext& rank) {
    if (rank.rank() == 0) rank.new_group("tp", {0, 1})->barrier()->wait();
  };
  const auto message_that_no_one_takes = [=](RankContext& rank) {
    Tensors out = tensor(4);
    const Group pp = rank.new_group("pp", {0, 1});
    if (rank.rank() == 0) pp->send(out, 1, 5);
  };
  const auto two_sizes = [=](RankContext& rank) {
    Tensors sum = tensor(4 + rank.rank());
    rank.new_group("dp", {0, 1})->allreduce(sum)->wait();
  };
  const auto two_operations = [=](RankContext& rank) {
    Tensors all = tensor(4);
    const Group dp = rank.new_group("dp", {0, 1});
    (rank.rank() == 0 ? dp->allreduce(all) : dp->broadcast(all))->wait();
  };
  return {{true, both_receive},
          {true, crossed_groups},
          {false, rank_that_ends},
          {false, rank_without_group},
          {false, message_that_no_one_takes},
          {false, two_sizes},
          {false, two_operations}};
}

/// A report without its times, and without ranks and their groups where it may be of either rank.
std::string lasting(std::string text, bool either_reports) {
  text = std::regex_replace(text, std::regex(R"([0-9.]+(e-[0-9]+)? ?s\b)"), "T");
  if (!either_reports) return text;
  text = std::regex_replace(text, std::regex("(rank |arrived: )[01]"), "$1R");
  return std::regex_replace(text, std::regex("of (tp|dp) "), "of GROUP ");
}

TEST(Hang, ASimulationFindsTheDeadlocksOfTheRun) {
  for (const Deadlock& deadlock : deadlocks()) {
    WorldOptions values = world(2), shapes = world(2);
    shapes.shape_only = true;
    const auto expected = error_of([&] { run_ranks(values, deadlock.body); });
    const auto got = error_of([&] { run_ranks(shapes, deadlock.body); });
    EXPECT_EQ(expected.second, ExitCode::kHang);
    EXPECT_EQ(got.second, ExitCode::kHang);
    EXPECT_EQ(lasting(got.first, deadlock.either_reports),
              lasting(expected.first, deadlock.either_reports));
  }
}

TEST(Failure, AnExceptionNamesItsRank) {
  const auto failing = [](const std::function<void()>& fail) {
    run_ranks(world(3), [&](RankContext& context) {
      if (context.rank() == 2) fail();
    });
  };
  EXPECT_THAT(error_of([&] { failing([] { throw ConfigError("no such file"); }); }).first,
              HasSubstr("no such file\n  raised by rank 2"));
  EXPECT_THROW(failing([] { throw ConfigError("no such file"); }), ConfigError);
  try {
    failing([] { TORCH_CHECK(false, "shapes differ"); });
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("shapes differ"), HasSubstr("raised by rank 2")));
  }
}

/// Rank 0 and rank 1 of a pair start different things; returns the error.
std::pair<std::string, ExitCode> mismatch(
    const std::function<void(RankContext&, const Group&)>& body) {
  return error_of([&] {
    run_ranks(world(2), [&](RankContext& context) {
      auto group = context.new_group("tp", {0, 1});
      Tensors before{at::ones({5})};
      group->allreduce(before)->wait();
      body(context, group);
    });
  });
}

TEST(Mismatch, DifferentOperationsNameBothSides) {
  for (int repeat = 0; repeat < 20; ++repeat) {  // whoever comes first: the same text
    const auto [text, code] = mismatch([](RankContext& context, const Group& group) {
      Tensors tensors{at::ones({8})};
      if (context.rank() == 0) {
        group->allreduce(tensors)->wait();
      } else {
        group->broadcast(tensors)->wait();
      }
    });
    EXPECT_EQ(code, ExitCode::kHang);
    EXPECT_THAT(
        text,
        AllOf(HasSubstr("communication mismatch: #1 of tp [0, 1]: expected all-reduce sum "
                        "of 8 Float (rank 0), got broadcast of 8 Float "
                        "with root member 0 (rank 1)"),
              HasSubstr("    all-reduce sum of 5 Float, #0 of tp [0, 1] (complete), 20 bytes\n"),
              HasSubstr("what to do")));
  }
}

TEST(Mismatch, TypeSizeReductionRootAndPartsAreCompared) {
  const auto text_of = [](const std::function<void(int, const Group&)>& start) {
    return mismatch([&](RankContext& context, const Group& group) { start(context.rank(), group); })
        .first;
  };
  EXPECT_THAT(
      text_of([](int rank, const Group& group) {
        Tensors tensors{at::ones({8}, rank == 0 ? at::kFloat : at::kDouble)};
        group->allreduce(tensors)->wait();
      }),
      HasSubstr(
          "expected all-reduce sum of 8 Float (rank 0), got all-reduce sum of 8 Double (rank 1)"));
  EXPECT_THAT(
      text_of([](int rank, const Group& group) {
        Tensors tensors{at::ones({8 + rank})};
        group->allreduce(tensors)->wait();
      }),
      HasSubstr(
          "expected all-reduce sum of 8 Float (rank 0), got all-reduce sum of 9 Float (rank 1)"));
  EXPECT_THAT(text_of([](int rank, const Group& group) {
                Tensors tensors{at::ones({8})};
                c10d::AllreduceOptions options;
                options.reduceOp = rank == 0 ? c10d::ReduceOp::MAX : c10d::ReduceOp::AVG;
                group->allreduce(tensors, options)->wait();
              }),
              HasSubstr("expected all-reduce max of 8 Float (rank 0), got all-reduce average of 8 "
                        "Float (rank 1)"));
  EXPECT_THAT(text_of([](int rank, const Group& group) {
                Tensors tensors{at::ones({8})};
                c10d::BroadcastOptions options;
                options.rootRank = rank;
                group->broadcast(tensors, options)->wait();
              }),
              HasSubstr("got broadcast of 8 Float with root member 1 (rank 1)"));
  EXPECT_THAT(text_of([](int rank, const Group& group) {
                Tensors tensors{at::ones({rank == 0 ? 3 : 5}), at::ones({rank == 0 ? 5 : 3})};
                group->allreduce_coalesced(tensors)->wait();
              }),
              AllOf(HasSubstr("in 2 tensors (3, 5)"), HasSubstr("in 2 tensors (5, 3)")));
}

TEST(Mismatch, SplitSizesAndMessagesAreCompared) {
  EXPECT_THAT(mismatch([](RankContext& context, const Group& group) {
                at::Tensor in = at::ones({4});
                at::Tensor out = at::ones({4});
                std::vector<std::int64_t> one_three{1, 3};
                std::vector<std::int64_t> even{2, 2};
                group->all_to_all_single(out, in, context.rank() == 0 ? even : one_three, one_three)
                    ->wait();
              }).first,
              HasSubstr("rank 1 expected 1 elements from rank 0, got 3"));
  EXPECT_THAT(mismatch([](RankContext& context, const Group& group) {
                Tensors tensors{at::ones({4 + context.rank()})};
                if (context.rank() == 0) {
                  group->send(tensors, 1, 2)->wait();
                  group->barrier()->wait();
                } else {
                  group->recv(tensors, 0, 2)->wait();
                }
              }).first,
              HasSubstr("expected receive of 5 Float with tag 2 (rank 1), got send of 4 Float with "
                        "tag 2 (rank 0)"));
}

TEST(Mismatch, BothSidesGetTheErrorEvenWhenOneCatchesIt) {
  std::atomic<int> errors{0};
  run_ranks(world(2), [&](RankContext& context) {
    auto group = context.new_group("tp", {0, 1});
    Tensors tensors{at::ones({1 + context.rank()})};
    try {
      group->allreduce(tensors)->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kHang);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST(Misuse, IsExplained) {
  const auto text_of = [](const std::function<void(const Group&)>& start) -> std::string {
    try {
      run_ranks(world(2), [&](RankContext& context) { start(context.new_group("tp", {0, 1})); });
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(text_of([](const Group& group) {
                at::Tensor shard = at::ones({3});
                at::Tensor whole = at::ones({5});
                group->all_gather_single(whole, shard)->wait();
              }),
              HasSubstr("expected a gathered tensor of 6 Float (2 members x 3), got 5 Float"));
  EXPECT_THAT(text_of([](const Group& group) {
                Tensors tensors{at::ones({2}, at::kComplexFloat)};
                group->allreduce(tensors)->wait();
              }),
              HasSubstr("cannot combine elements of type ComplexFloat by sum"));
  EXPECT_THAT(text_of([](const Group& group) {
                Tensors tensors{at::ones({2}, at::kFloat)};
                c10d::AllreduceOptions options;
                options.reduceOp = c10d::ReduceOp::BXOR;
                group->allreduce(tensors, options)->wait();
              }),
              HasSubstr("elements of type Float by bitwise xor: expected an integer type"));
  EXPECT_THAT(text_of([](const Group& group) {
                std::thread([&] {
                  Tensors tensors{at::ones({2})};
                  EXPECT_THAT(
                      [&] { group->allreduce(tensors); },
                      ::testing::ThrowsMessage<c10::Error>(HasSubstr("called on another thread")));
                }).join();
              }),
              "no error");
}

}  // namespace
}  // namespace trellis::runtime::testing
