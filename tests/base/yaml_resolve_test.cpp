#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/yaml/yaml.h"

/// Overrides and interpolation: what happens between the file's text and what the reader sees.
namespace trellis {
namespace {

using testing::ElementsAre;

YamlDocument parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return YamlDocument::parse(text, "r.yaml", overrides);
}

TEST(YamlOverride, ReplacesCreatesAndIndexes) {
  const auto document = parse("a: {b: 1}\nlist: [1, 2]\nempty:\n",
                              {"a.b=5", "+new.deep.key=text", "list.1=9", "flow=[x, y]",
                               "blank=", "none=null", "empty.k=1", "url=s3://bucket/a=b"});
  const YamlMap root = document.root();
  EXPECT_EQ(root.map("a").get<int>("b", 0), 5);
  EXPECT_EQ(root.map("new").map("deep").get<std::string>("key", ""), "text");
  EXPECT_THAT(root.required<std::vector<int>>("list"), ElementsAre(1, 9));
  EXPECT_THAT(root.required<std::vector<std::string>>("flow"), ElementsAre("x", "y"));
  EXPECT_EQ(root.optional<std::string>("blank"), "");
  EXPECT_EQ(root.optional<std::string>("none"), std::nullopt);
  EXPECT_EQ(root.map("empty").get<int>("k", 0), 1);
  EXPECT_EQ(root.get<std::string>("url", ""), "s3://bucket/a=b");
  EXPECT_THAT(document.problems().lines(), ElementsAre());
}

TEST(YamlOverride, MistakesNameTheCommandLine) {
  const auto document = parse("a: 1\nlist: [1]\nx: {n: 2}\n",
                              {"a.b=1", "list.7=1", "novalue", "=3", "a..b=3", "x.n=abc"});
  EXPECT_EQ(document.root().map("x").get<int>("n", 0), 0);
  EXPECT_THAT(
      document.problems().lines(),
      ElementsAre(
          "command line:a.b: cannot set 'b': a (r.yaml:1) is a single value",
          "command line:list.7: cannot set '7': list (r.yaml:2) is a list without that index",
          "command line: expected key.path=value, got 'novalue'",
          "command line: expected key.path=value, got '=3'",
          "command line: expected key.path=value, got an empty name in 'a..b=3'",
          "command line:x.n: expected an integer that fits in 32 bits, got 'abc'"));
}

TEST(YamlOverride, ValueThatIsNoYamlIsRefused) {
  try {
    (void)parse("a: 1\n", {"a='x"});
    FAIL() << "expected an exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "command line:a: not valid YAML: illegal EOF in scalar");
  }
}

TEST(YamlInterpolation, AbsoluteRelativeAndPasted) {
  const auto document = parse(R"(
trainer: {devices: 8, nodes: 2}
model:
  hidden: 64
  same: ${.hidden}
  up: ${..trainer.devices}
  absolute: ${trainer.devices}
  name: run_${.hidden}_on_${trainer.nodes}
  section: ${trainer}
  item: ${sizes.1}
sizes: [10, 20]
chain: ${model.same}
)");
  const YamlMap model = document.root().map("model");
  EXPECT_EQ(model.required<int>("same"), 64);
  EXPECT_EQ(model.required<int>("up"), 8);
  EXPECT_EQ(model.required<int>("absolute"), 8);
  EXPECT_EQ(model.required<std::string>("name"), "run_64_on_2");
  EXPECT_EQ(model.map("section").required<int>("devices"), 8);
  EXPECT_EQ(model.required<int>("item"), 20);
  EXPECT_EQ(document.root().required<int>("chain"), 64);
  EXPECT_THAT(document.problems().lines(), ElementsAre());
}

TEST(YamlInterpolation, SeesOverrides) {
  const auto document = parse("a: 1\nb: ${a}\n", {"a=7", "c=${b}"});
  EXPECT_EQ(document.root().required<int>("b"), 7);
  EXPECT_EQ(document.root().required<int>("c"), 7);
}

TEST(YamlInterpolation, Multiply) {
  const auto document = parse(R"(
a: 6
m:
  b: 7
  references: ${multiply:${a}, ${.b}}
  paths: ${multiply:a, m.b}
  relative: ${multiply:.b, 2}
  numbers: ${multiply:1.5, 3}
  nested: ${multiply:${multiply:2, 3}, 4}
  sum: ${sum:${.b}, -1, a}
)");
  const YamlMap m = document.root().map("m");
  EXPECT_EQ(m.required<int>("references"), 42);
  EXPECT_EQ(m.required<int>("paths"), 42);
  EXPECT_EQ(m.required<int>("relative"), 14);
  EXPECT_EQ(m.required<double>("numbers"), 4.5);
  EXPECT_EQ(m.required<int>("nested"), 24);
  EXPECT_EQ(m.required<int>("sum"), 12);
  EXPECT_THAT(document.problems().lines(), ElementsAre());
}

TEST(YamlInterpolation, MistakesAreProblems) {
  const auto document = parse(R"(model: {hidden: 1, list: [1]}
missing: ${model.hiden}
open: x${model.hidden
above: ${...x}
empty: ${}
function: ${oc.env:HOME}
few: ${multiply:2}
words: ${multiply:2, model}
pasted: a${model}
)");
  EXPECT_THAT(
      document.problems().lines(),
      ElementsAre("r.yaml:2:missing: cannot resolve '${model.hiden}': no key 'model.hiden', did "
                  "you mean 'model.hidden'?",
                  "r.yaml:3:open: cannot resolve 'x${model.hidden': '${' without '}'",
                  "r.yaml:4:above: cannot resolve '${...x}': '...x' goes above the top of the file",
                  "r.yaml:5:empty: cannot resolve '${}': '${}' names nothing",
                  "r.yaml:6:function: cannot resolve '${oc.env:HOME}': unknown function 'oc.env', "
                  "expected ${multiply:a, b} or ${sum:a, b}",
                  "r.yaml:7:few: cannot resolve '${multiply:2}': multiply needs two arguments: "
                  "${multiply:a, b}",
                  "r.yaml:8:words: cannot resolve '${multiply:2, model}': multiply needs numbers, "
                  "'model' is none",
                  "r.yaml:9:pasted: cannot resolve 'a${model}': a mapping, a list or null cannot "
                  "be inside a text"));
}

TEST(YamlInterpolation, CyclesAreFound) {
  EXPECT_THAT(
      parse("a: ${b}\nb: ${a}\n").problems().lines(),
      ElementsAre("r.yaml:2:b: cannot resolve '${a}': the reference leads back to itself at a"));
  EXPECT_THAT(
      parse("a: ${a}\n").problems().lines(),
      ElementsAre("r.yaml:1:a: cannot resolve '${a}': the reference leads back to itself at a"));
  EXPECT_THAT(
      parse("a: {b: '${a}'}\n").problems().lines(),
      ElementsAre(
          "r.yaml:1:a.b: cannot resolve '${a}': the reference leads back to itself at a.b"));
}

/// A value that depends on a reference that cannot be resolved is no second mistake.
TEST(YamlInterpolation, OneMistakeIsSaidOnce) {
  const auto document = parse(
      "a: ${b}\nb: ${a}\nc: x${b}\nd: ${sum:b, 1}\ne: ${none}\nf: ${e.g}\nh: ${e}\ni: {j: "
      "'${none}'}\n");
  const YamlMap root = document.root();
  for (const char* key : {"a", "b", "d", "f"}) (void)root.required<int>(key);
  (void)root.required<std::string>("c");
  (void)root.map("e").required<int>("x");
  (void)root.map("h").map("y").required<int>("x");
  EXPECT_THAT(document.problems().lines(),
              ElementsAre(testing::StartsWith("r.yaml:2:b: cannot resolve '${a}'"),
                          testing::StartsWith("r.yaml:5:e: cannot resolve '${none}'"),
                          testing::StartsWith("r.yaml:8:i.j: cannot resolve '${none}'")));
}

TEST(YamlInterpolation, GrowthIsBounded) {
  std::string doubling = "k0: {x: 1, y: 2}\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = "${k" + std::to_string(i - 1) + "}";
    doubling += "k" + std::to_string(i) + ": {x: '" + before + "', y: '" + before + "'}\n";
  }
  EXPECT_THROW((void)parse(doubling), ConfigError);

  std::string aliases = "k0: &k0 {x: 1, y: 2}\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = "*k" + std::to_string(i - 1);
    aliases += "k" + std::to_string(i) + ": &k" + std::to_string(i) + " {x: " + before +
               ", y: " + before + "}\n";
  }
  EXPECT_THROW((void)parse(aliases), ConfigError);

  std::string text = "k0: 0123456789\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = "${k" + std::to_string(i - 1) + "}";
    text += "k" + std::to_string(i) + ": '" + before + before + "'\n";
  }
  EXPECT_FALSE(parse(text).problems().empty());

  std::string chain;
  for (int i = 0; i < 5000; ++i)
    chain += "k" + std::to_string(i) + ": ${k" + std::to_string(i + 1) + "}\n";
  EXPECT_FALSE(parse(chain + "k5000: 1\n").problems().empty());
}

TEST(YamlResolvedText, ReadsBackAsTheSameDocument) {
  const auto document =
      parse("a: 1\nb: [\"2\", '${a}', x]\nc: {d: ~, e: \"a: b # c\"}\n", {"c.f=true"});
  const std::string text = document.resolved_text();
  EXPECT_EQ(text, "a: 1\nb:\n  - \"2\"\n  - 1\n  - x\nc:\n  d: ~\n  e: \"a: b # c\"\n  f: true\n");
  EXPECT_EQ(parse(text).resolved_text(), text);
}

}  // namespace
}  // namespace trellis
