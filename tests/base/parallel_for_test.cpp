#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/process/parallel_for.h"

namespace trellis {
namespace {

std::vector<std::size_t> up_to(std::size_t count) {
  std::vector<std::size_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = i;
  return all;
}

TEST(ParallelFor, NotifiesInOrderWhateverEndsFirst) {
  for (const std::size_t workers : {1, 3, 8}) {
    std::atomic<int> at_once{0}, most{0};
    std::vector<std::size_t> done;
    parallel_for(
        20, workers,
        [&](std::size_t i) {
          const int now = ++at_once;
          int seen = most;
          while (now > seen && !most.compare_exchange_weak(seen, now)) {}
          std::this_thread::sleep_for(std::chrono::milliseconds(i % 4 == 0 ? 8 : 1));
          --at_once;
        },
        [&](std::size_t i) { done.push_back(i); });
    EXPECT_EQ(done, up_to(20)) << workers;
    EXPECT_LE(most, static_cast<int>(workers));
    EXPECT_EQ(most > 1, workers > 1);
  }
  parallel_for(0, 2, [](std::size_t) { FAIL(); }, [](std::size_t) { FAIL(); });
}

TEST(ParallelFor, ThrowsTheFirstErrorAndBeginsNoMore) {
  for (const std::size_t workers : {1, 4}) {
    std::atomic<int> begun{0};
    std::vector<std::size_t> done;
    const auto run = [&](std::size_t i) {
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(i == 5 ? 30 : 1));
      if (i >= 5) throw std::runtime_error(std::to_string(i));
    };
    try {
      parallel_for(1000, workers, run, [&](std::size_t i) { done.push_back(i); });
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "5") << workers;
    }
    EXPECT_EQ(done, up_to(5));
    EXPECT_LT(begun, 5 + 2 * static_cast<int>(workers));
  }
}

}  // namespace
}  // namespace trellis
