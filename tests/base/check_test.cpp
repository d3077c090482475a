#include "base/check.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis {
namespace {

TEST(Check, HoldsSilently) { EXPECT_NO_THROW(TRELLIS_CHECK(1 + 1 == 2, "arithmetic")); }

TEST(Check, FailureSaysWhereWhatAndThatItIsOurBug) {
  try {
    check_failed("/somewhere/base/thing.cpp", 12, "a == b", "sizes differ");
    FAIL() << "expected an exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_STREQ(error.what(),
                 "base/thing.cpp:12: internal error: sizes differ (check failed: a == b); this is "
                 "a bug in Trellis, please report it");
  }
}

TEST(Check, TextIsNotBuiltWhenTheConditionHolds) {
  int built = 0;
  const auto text = [&] {
    ++built;
    return std::string("x");
  };
  TRELLIS_CHECK(true, text());
  EXPECT_EQ(built, 0);
  EXPECT_THROW(TRELLIS_CHECK(false, text()), Error);
  EXPECT_EQ(built, 1);
}

TEST(Problems, AllLinesComeInOneConfigError) {
  Problems problems;
  EXPECT_NO_THROW(problems.throw_if_any());
  problems.add("a.yaml:1:x", "expected an integer, got 'y'");
  problems.add("a.yaml:2:z", "unknown key");
  try {
    problems.throw_if_any();
    FAIL() << "expected an exception";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_STREQ(error.what(), "a.yaml:1:x: expected an integer, got 'y'\na.yaml:2:z: unknown key");
  }
}

}  // namespace
}  // namespace trellis
