#include "base/activity.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/log.h"

namespace trellis {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Reads what is written on stderr, piece by piece.
class StderrPipe {
 public:
  StderrPipe() : kept_(::dup(STDERR_FILENO)) {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
    ::dup2(ends_[1], STDERR_FILENO);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~StderrPipe() {
    ::dup2(kept_, STDERR_FILENO);
    for (const int end : {ends_[0], ends_[1], kept_}) ::close(end);
  }
  std::string since_last() {
    std::string text;
    std::array<char, 4096> block{};
    for (ssize_t n = 0; (n = ::read(ends_[0], block.data(), block.size())) > 0;)
      text.append(block.data(), static_cast<std::size_t>(n));
    return text;
  }

 private:
  int kept_;
  std::array<int, 2> ends_{};
};

void wait_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Activity, IsSaidWhenNothingElseIs) {
  StderrPipe err;
  Activity work("judging layouts");
  work.count(7, 9);
  wait_ms(1000);
  EXPECT_THAT(err.since_last(), IsEmpty()) << "short work says nothing";
  wait_ms(1000);
  EXPECT_THAT(err.since_last(), HasSubstr("... judging layouts: 7 of 9 (1 s)\n"));
  {
    const Activity inner("");
    wait_ms(1800);
    EXPECT_THAT(err.since_last(), IsEmpty()) << "someone else says what is done";
  }
  work.now("simulating");
  wait_ms(1800);
  EXPECT_THAT(err.since_last(), HasSubstr("... simulating ("));
}

TEST(Activity, WaitsAfterALineOfTheLog) {
  StderrPipe err;
  const Activity work("work");
  wait_ms(900);
  log_info("a line");
  wait_ms(900);
  const std::string text = err.since_last();
  EXPECT_THAT(text, HasSubstr("a line"));
  EXPECT_THAT(text, testing::Not(HasSubstr("... work")));
}

TEST(Activity, EndsWithItsWork) {
  StderrPipe err;
  for (int i = 0; i < 1000; ++i) const Activity work("short");  // each starts and ends a thread
  wait_ms(1700);
  EXPECT_THAT(err.since_last(), IsEmpty());
}

}  // namespace
}  // namespace trellis
