#include "base/json/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis {
namespace {

std::string json_error_of(const std::string& text) {
  try {
    (void)parse_json(text, "run.json", "a report");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonText, DocumentsAndWhatIsNone) {
  EXPECT_EQ(parse_json("{\"a\": [1]}", "run.json", "a report"), (nlohmann::json{{"a", {1}}}));
  EXPECT_EQ(json_error_of(""), "run.json: the file is empty; expected a report");
  EXPECT_THAT(json_error_of("{\n \"a\": x}"),
              testing::StartsWith("run.json: this is no JSON: parse error at line 2, column 7"));
  EXPECT_THAT(json_error_of("[1e999]"), testing::StartsWith("run.json: this is no JSON: "));
}

/// As the parser without a callback builds them, in about the same time.
TEST(JsonText, LongListsAndObjects) {
  nlohmann::json document = {{"list", nlohmann::json::array()},
                             {"object", nlohmann::json::object()}};
  for (int i = 0; i < 200'000; ++i) {
    document["list"].push_back({i, -i, i * 0.5, nullptr, true, "ä\n"});
    document["object"][std::to_string(i)] = nlohmann::json::object({{"x", {1}}});
  }
  const std::string text = document.dump();
  EXPECT_EQ(parse_json(text, "run.json", "a report"), document);
  EXPECT_EQ(parse_json("{\"a\": 1, \"a\": [2]}", "x", "y"), nlohmann::json::parse("{\"a\": [2]}"));
}

TEST(JsonText, DeepNestingIsRefused) {
  for (const char* unit : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += unit;
    EXPECT_THAT(json_error_of(text), testing::HasSubstr("nested more than 200 deep"));
  }
}

}  // namespace
}  // namespace trellis
