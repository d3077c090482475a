// Where in the program a rank communicates, and what it is in.
#include "runtime/calls/call_place.h"

#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis::runtime {
namespace {

using ::testing::EndsWith;

TEST(CallSite, TheInnermostOneCountsAndTheOuterOneComesBack) {
  EXPECT_TRUE(current_place().frames.empty()) << "no program of Python runs here";
  const CallSite outer;
  const std::int64_t line = outer.frame().line;
  {
    const CallSite inner;
    EXPECT_EQ(current_place().frames.at(0).line, line + 3);
  }
  const CallPlace place = current_place();
  ASSERT_EQ(place.frames.size(), 1u);
  EXPECT_EQ(place.frames[0].line, line);
  EXPECT_EQ(place.frames[0].file, "tests/runtime/call_place_test.cpp");
  EXPECT_THAT(place.frames[0].function, EndsWith("::TestBody"));
  std::thread([] { EXPECT_TRUE(current_place().frames.empty()) << "another thread"; }).join();
}

std::unique_ptr<at::RecordFunction> scope(const std::string& name) {
  auto guard = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (guard->isActive()) guard->before(name);
  return guard;
}

TEST(OpenScopes, AreTheInnermostOfEachKind) {
  OpenScopes scopes;
  scopes.enter();
  {
    const auto phase = scope("phase=forward"), model = scope("layer=model");
    {
      const auto mlp = scope("layer=model.mlp");
      EXPECT_EQ(current_place().scopes, "phase=forward layer=model.mlp");
      std::thread([&] { EXPECT_EQ(scopes.text(), "phase=forward layer=model.mlp"); }).join();
    }
    EXPECT_EQ(scopes.text(), "phase=forward layer=model");
  }
  EXPECT_EQ(scopes.text(), "");
  scopes.leave();
  const auto phase = scope("phase=backward");
  EXPECT_EQ(scopes.text(), "") << "it watches no longer";
}

TEST(OpenScopes, MayEndInAnyOrder) {
  OpenScopes scopes;
  scopes.enter();
  auto first = scope("layer=a"), second = scope("microbatch=1");
  first.reset();
  EXPECT_EQ(scopes.text(), "microbatch=1");
  second.reset();
  EXPECT_EQ(scopes.text(), "");
  scopes.leave();
}

TEST(CallPlace, ReadsAsAPartOfASentence) {
  EXPECT_EQ(describe(CallPlace{}), "");
  EXPECT_EQ(describe(CallPlace{"layer=x", {{"Mlp::forward", "trainer/mlp.cpp", 33}}}),
            ", in layer=x, at trainer/mlp.cpp:33 (Mlp::forward)");
}

}  // namespace
}  // namespace trellis::runtime
