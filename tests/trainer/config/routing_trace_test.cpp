#include "trainer/config/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// Four layers, of which 1 and 3 have four experts.
ModelSection every_second_layer() {
  ModelSection model;
  model.num_layers = 4;
  model.moe.emplace();
  model.moe->num_experts = 4;
  model.moe->top_k = 2;
  model.moe->frequency = 2;
  model.moe->first_layer = 1;
  return model;
}

class RoutingTrace : public testing::Test {
 protected:
  std::string write(const std::string& text) { return directory_.write("report.json", text); }
  std::string problem_of(const std::string& text) {
    ModelSection model = every_second_layer();
    try {
      set_simulated_routing(model, "trace:" + write(text));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  TemporaryDirectory directory_;
};

TEST_F(RoutingTrace, SharesAreThoseOfEachLayer) {
  ModelSection model = every_second_layer();
  const std::string file = write(R"({"other": 1, "routing": [
      {"layer": 1, "assigned": [4, 2, 2, 0], "kept": [1, 1, 1, 0]},
      {"layer": 3, "assigned": [0, 1, 1, 2]}]})");
  for (const std::string& path : {file, directory_.path().string()}) {
    set_simulated_routing(model, "trace:" + path);
    EXPECT_THAT(model.moe->simulated_shares, ElementsAre(Pair(1, ElementsAre(0.5, 0.25, 0.25, 0)),
                                                         Pair(3, ElementsAre(0, 0.25, 0.25, 0.5))));
  }
}

TEST_F(RoutingTrace, OtherRoutingsAreThoseOfAllLayersWithExperts) {
  ModelSection model = every_second_layer();
  set_simulated_routing(model, "balanced");
  EXPECT_TRUE(model.moe->simulated_shares.empty());
  set_simulated_routing(model, "hot:0=0.4");
  EXPECT_THAT(model.moe->simulated_shares, ElementsAre(Pair(1, testing::_), Pair(3, testing::_)));
  EXPECT_EQ(model.moe->simulated_shares.at(1), model.moe->simulated_shares.at(3));
}

TEST_F(RoutingTrace, AnotherShapeIsNamedWithItsNumbers) {
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [1, 1, 1, 1]}]})"),
              HasSubstr("expected experts in the 2 layers 1, 3 of this model, got 1 layers (1)"));
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [1, 1, 1, 1]},
                                         {"layer": 3, "assigned": [1, 1, 2]}]})"),
              HasSubstr("layer 3: expected 4 experts, got 3"));
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [1, 1, 1, 1]},
                                         {"layer": 3, "assigned": [3, 1, 0, 0]}]})"),
              HasSubstr("layer 3: expert 0 has 0.75 of the picks; a token picks an expert once: "
                        "expected at most 0.5 with top_k 2"));
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [0, 0, 0, 0]},
                                         {"layer": 3, "assigned": [1, 1, 1, 1]}]})"),
              HasSubstr("layer 1: no token was routed"));
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [1, -1, 1, 1]},
                                         {"layer": 3, "assigned": [1, 1, 1, 1]}]})"),
              HasSubstr("layer 1: expert 1 has -1 picks"));
}

TEST_F(RoutingTrace, WhatIsNoTraceIsNamed) {
  const char* expected = "expected the report of a run with experts";
  for (const char* text :
       {"", "[]", "{}", R"({"routing": []})", R"({"routing": 3})", R"({"routing": [7]})",
        R"({"routing": [{"layer": 1}]})", R"({"routing": [{"layer": 1, "assigned": [0.5]}]})"})
    EXPECT_THAT(problem_of(text), HasSubstr(expected)) << text;
  EXPECT_THAT(problem_of(R"({"routing": [{"layer": 1, "assigned": [1]},
                                         {"layer": 1, "assigned": [1]}]})"),
              HasSubstr("routing[1]: layer 1 for the second time"));
  EXPECT_THROW((void)read_routing_trace(directory_.path() / "none.json"), ConfigError);
  EXPECT_THROW((void)file_of_routing_trace("trace:"), ConfigError);
  EXPECT_EQ(file_of_routing_trace("zipf:1"), std::nullopt);
}

}  // namespace
}  // namespace trellis::trainer
