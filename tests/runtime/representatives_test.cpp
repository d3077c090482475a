// Worlds of which only some ranks run: the others count as arrived, wherever they would be waited
// for.
#include <mutex>
#include <set>

#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using ::testing::HasSubstr;

WorldOptions represented(int ranks, std::vector<int> representatives) {
  WorldOptions options = world(ranks);
  options.shape_only = true;
  options.representatives = std::move(representatives);
  options.timeout = std::chrono::milliseconds(2000);
  return options;
}

TEST(Representatives, OnlyTheyRunAndKnowTheirPlaceInTheWorld) {
  std::mutex mutex;
  std::set<int> ran;
  run_ranks(represented(100000, {0, 50000, 99999}), [&](RankContext& context) {
    EXPECT_EQ(context.world_size(), 100000);
    context.host_barrier();
    const std::lock_guard lock(mutex);
    ran.insert(context.rank());
  });
  EXPECT_EQ(ran, (std::set<int>{0, 50000, 99999}));
}

TEST(Representatives, NoneWaitsForRanksThatDoNotRun) {
  run_ranks(represented(8, {0, 4}), [](RankContext& context) {
    const int first = context.rank();
    auto tp = context.new_group("tp", {first, first + 1});
    auto dp = context.new_group("dp", {first, first + 2});
    Tensors all{at::zeros({4})};
    tp->allreduce(all)->wait();
    at::Tensor shard = at::zeros({2}), whole = at::zeros({4});
    dp->all_gather_single(whole, shard)->wait();
    auto across = context.new_group("pp", {first, first + 3});
    Tensors message{at::zeros({3})};
    if (first == 0) across->send(message, 1, 0)->wait();
    across->recv(message, 1, 0)->wait();
    tp->barrier()->wait();
  });
}

TEST(Representatives, ThoseThatRunStillMeet) {
  for (const bool agree : {true, false}) {
    const auto run = [&] {
      run_ranks(represented(8, {0, 4}), [&](RankContext& context) {
        auto pp = context.new_group("pp", {0, 4});
        Tensors tensors{at::zeros({agree || context.rank() == 0 ? 4 : 5})};
        pp->allreduce(tensors)->wait();
      });
    };
    if (agree) {
      run();
      continue;
    }
    const auto [text, code] = error_of(run);
    EXPECT_EQ(code, ExitCode::kHang);
    EXPECT_THAT(text, HasSubstr("rank 0"));
    EXPECT_THAT(text, HasSubstr("rank 4"));
  }
}

TEST(Representatives, AHangNamesThoseThatRunOnly) {
  const auto [text, code] = error_of([] {
    run_ranks(represented(8, {0, 4}), [](RankContext& context) {
      auto everyone = context.new_group("world", all_ranks(8));
      Tensors tensors{at::zeros({4})};
      if (context.rank() == 0) everyone->allreduce(tensors)->wait();
    });
  });
  EXPECT_EQ(code, ExitCode::kHang);
  EXPECT_THAT(text, HasSubstr("missing: rank 4"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("missing: rank 1")));
}

TEST(Representatives, WrongListsAreTheUsersMistake) {
  const auto refused = [](WorldOptions options, const std::string& text) {
    const auto [said, code] = error_of([&] { run_ranks(options, [](RankContext&) {}); });
    EXPECT_EQ(code, ExitCode::kConfig);
    EXPECT_THAT(said, HasSubstr(text));
  };
  refused(represented(4, {0, 4}), "ascending ranks of a world of 4, got 0, 4");
  refused(represented(4, {2, 1}), "ascending ranks");
  refused(represented(4, {1, 1}), "ascending ranks");
  refused(represented(4, {-1, 1}), "ascending ranks");
  WorldOptions with_data = represented(4, {0});
  with_data.shape_only = false;
  refused(with_data, "shape_only");
}

}  // namespace
}  // namespace trellis::runtime::testing
