#include "base/log.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(Log, GoesToStderrWithItsLevelAndStaysOffStdout) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_info("loss {} is {not} a format");
  log_warning("careful");
  const std::string error_output = testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_THAT(error_output, HasSubstr("info] loss {} is {not} a format\n"));
  EXPECT_THAT(error_output, EndsWith("warning] careful\n"));
}

TEST(Log, LowestLevelFilters) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::kWarning);
  log_info("quiet");
  log(LogLevel::kError, "loud");
  set_log_level(LogLevel::kDebug);
  log(LogLevel::kDebug, "detail");
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_THAT(output, Not(HasSubstr("quiet")));
  EXPECT_THAT(output, HasSubstr("error] loud\n"));
  EXPECT_THAT(output, HasSubstr("debug] detail\n"));
}

TEST(Log, ATapGetsEachMessageOnceWhileItLives) {
  testing::internal::CaptureStderr();
  std::vector<std::string> got;
  log_info("before");
  {
    const LogTap tap([&](LogLevel level, std::string_view text) {
      got.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(text));
    });
    log_info("one {}");
    log_warning("two");
    log(LogLevel::kError, "three");
  }
  log_info("after");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("info] one {}\n"));
  EXPECT_THAT(got, testing::ElementsAre("1 one {}", "2 two", "3 three"));
}

}  // namespace
}  // namespace trellis
