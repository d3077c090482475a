#include "analysis/validate/ci_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<Check> checks() {
  return {{"good.yaml", {}},
          {"bad.yaml",
           {parse_problem("bad.yaml:3:model.lr: expected a finite number, got '<x> & \"y\"'",
                          "bad.yaml"),
            parse_problem("command line:seed: must be greater than 0, got 0")}},
          {"run", {parse_problem("run: instance: other")}, /*judged=*/false}};
}

TEST(CiReports, JUnitHasACaseForEachCheck) {
  const std::string text = junit_xml("trellis validate", checks());
  for (const char* part :
       {"tests=\"3\" failures=\"1\" errors=\"1\"", "name=\"good.yaml\"/>",
        "<failure message=\"2 problems\">", "&lt;x&gt; &amp; &quot;y&quot;", "<error message="}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(CiReports, SarifPointsAtTheLineAndNamesTheKeyAsRule) {
  const json log = sarif_log("trellis validate", checks());
  EXPECT_EQ(log.at("version"), "2.1.0");
  const json& run = log.at("runs").at(0);
  const json& results = run.at("results");
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].at("ruleId"), "model.lr");
  const json& place = results[0].at("locations").at(0).at("physicalLocation");
  EXPECT_EQ(place.at("artifactLocation").at("uri"), "bad.yaml");
  EXPECT_EQ(place.at("region").at("startLine"), 3);
  const json& override_place = results[1].at("locations").at(0).at("physicalLocation");
  EXPECT_EQ(override_place.at("artifactLocation").at("uri"), "bad.yaml")
      << "an override is of the file that was checked with it";
  EXPECT_FALSE(override_place.contains("region"));
  EXPECT_EQ(run.at("tool").at("driver").at("rules").size(), 3u);
}

TEST(CiReports, AProblemLeavesOutWhatItDoesNotSay) {
  EXPECT_EQ(problem_json(parse_problem("a: b")), (json{{"text", "a: b"}}));
  const json whole = problem_json(parse_problem("r.yaml:7:a.b: must be at least 1, got 0"));
  EXPECT_EQ(whole, (json{{"file", "r.yaml"},
                         {"line", 7},
                         {"key", "a.b"},
                         {"expected", "at least 1"},
                         {"got", "0"},
                         {"text", "r.yaml:7:a.b: must be at least 1, got 0"}}));
}

TEST(CiReports, BytesThatAreNoTextAreStillAFile) {
  const std::vector<Check> odd{
      {"a.yaml", {parse_problem("a.yaml:1:k: got \xff\x1b[31m", "a.yaml")}}};
  EXPECT_NO_THROW(
      static_cast<void>(sarif_log("t", odd).dump(1, ' ', false, json::error_handler_t::replace)));
  EXPECT_EQ(junit_xml("t", odd).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace trellis::analysis
