#include "base/yaml/yaml.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis {
namespace {

using testing::ElementsAre;

TEST(Yaml, ReadsEveryType) {
  const auto document = YamlDocument::parse(R"(
flag: true
count: -3
big: 9223372036854775807
rate: 1e-5
whole: 3
name: "quoted: text"
number_as_text: 0012
sizes: [1, 2, 3]
names:
  - a
  - b
sbuf: 24 MiB
clock: 1.4 GHz
hop: 7 ns
link: 820 GB/s
peak: 92 TFLOPS
nothing: ~
)",
                                            "a.yaml");
  const YamlMap root = document.root();
  EXPECT_TRUE(root.get<bool>("flag", false));
  EXPECT_EQ(root.required<int>("count"), -3);
  EXPECT_EQ(root.required<std::int64_t>("big"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(root.required<double>("rate"), 1e-5);
  EXPECT_EQ(root.required<double>("whole"), 3.0);
  EXPECT_EQ(root.required<std::string>("name"), "quoted: text");
  EXPECT_EQ(root.required<std::string>("number_as_text"), "0012");
  EXPECT_THAT(root.required<std::vector<int>>("sizes"), ElementsAre(1, 2, 3));
  EXPECT_THAT(root.required<std::vector<std::string>>("names"), ElementsAre("a", "b"));
  EXPECT_EQ(root.required<Bytes>("sbuf"), Bytes(24 << 20));
  EXPECT_EQ(root.required<Hertz>("clock"), Hertz(1.4e9));
  EXPECT_EQ(root.required<Picoseconds>("hop"), Picoseconds(7000));
  EXPECT_EQ(root.required<BytesPerSecond>("link"), BytesPerSecond(820e9));
  EXPECT_EQ(root.required<FlopsPerSecond>("peak"), FlopsPerSecond(92e12));
  EXPECT_EQ(root.optional<int>("nothing"), std::nullopt);
  EXPECT_EQ(root.get<int>("nothing", 5), 5);
  EXPECT_EQ(root.get<int>("absent", 6), 6);
  root.reject_unknown();
  EXPECT_THAT(document.problems().lines(), ElementsAre());
}

TEST(Yaml, EveryMistakeIsReportedInOnePass) {
  const auto document = YamlDocument::parse(R"(model:
  num_layers: many
  hidden_size: 12.5
  small: 3000000000
  quoted: "4"
  bare: 24
  wrong: 24 ns
  flag: yes
  list: 3
  mixed: [1, x]
  scalar: {a: 1}
  eps: .inf
  layres: 3
)",
                                            "m.yaml");
  const YamlMap model = document.root().map("model");
  EXPECT_EQ(model.get<int>("num_layers", 7), 7);
  (void)model.required<std::int64_t>("hidden_size");
  (void)model.required<int>("small");
  (void)model.required<int>("quoted");
  (void)model.required<Bytes>("bare");
  (void)model.required<Bytes>("wrong");
  (void)model.required<bool>("flag");
  (void)model.required<std::vector<int>>("list");
  (void)model.required<std::vector<int>>("mixed");
  (void)model.required<std::string>("scalar");
  (void)model.required<double>("eps");
  (void)model.required<int>("missing");
  (void)model.get<int>("layers", 1);
  model.reject_unknown();
  EXPECT_THAT(
      document.problems().lines(),
      ElementsAre(
          "m.yaml:2:model.num_layers: expected an integer that fits in 32 bits, got 'many'",
          "m.yaml:3:model.hidden_size: expected an integer, got '12.5'",
          "m.yaml:4:model.small: expected an integer that fits in 32 bits, got '3000000000'",
          "m.yaml:5:model.quoted: expected an integer that fits in 32 bits, got the quoted text "
          "\"4\"",
          "m.yaml:6:model.bare: expected a number of bytes with its unit, such as '24 MiB', got "
          "'24'",
          "m.yaml:7:model.wrong: expected a number of bytes with its unit, such as '24 MiB', got "
          "'24 ns'",
          "m.yaml:8:model.flag: expected true or false, got 'yes'",
          "m.yaml:9:model.list: expected a list, got '3'",
          "m.yaml:10:model.mixed.1: expected an integer that fits in 32 bits, got 'x'",
          "m.yaml:11:model.scalar: expected a text, got a mapping",
          "m.yaml:12:model.eps: expected a finite number, got '.inf'",
          "m.yaml:1:model.missing: this key is required and missing",
          "m.yaml:13:model.layres: unknown key, did you mean 'layers'?"));
  EXPECT_THROW(document.problems().throw_if_any(), ConfigError);
}

TEST(Yaml, UnknownKeyWithoutNearNameAndAllowAny) {
  const auto document = YamlDocument::parse("zebra: 1\nfree: {x: 1}\n", "a.yaml");
  const YamlMap root = document.root();
  root.allow_any("free");
  root.reject_unknown();
  EXPECT_THAT(document.problems().lines(), ElementsAre("a.yaml:1:zebra: unknown key"));
}

TEST(Yaml, KnownKeysAreSharedByAllViewsOfAMapping) {
  const auto document = YamlDocument::parse("a: {x: 1, y: 2}\n", "a.yaml");
  EXPECT_EQ(document.root().map("a").get<int>("x", 0), 1);
  EXPECT_EQ(document.root().map("a").get<int>("y", 0), 2);
  document.root().map("a").reject_unknown();
  EXPECT_TRUE(document.problems().empty());
}

TEST(Yaml, HasDoesNotMakeAKeyKnown) {
  const auto document = YamlDocument::parse("x: 1\n", "a.yaml");
  EXPECT_TRUE(document.root().has("x"));
  EXPECT_FALSE(document.root().is_map("x"));
  document.root().reject_unknown();
  EXPECT_THAT(document.problems().lines(), ElementsAre("a.yaml:1:x: unknown key"));
}

TEST(Yaml, DuplicateKeysAreProblemsAndTheFirstValueStays) {
  const auto document = YamlDocument::parse("a:\n  x: 1\n  y: 2\n  x: 3\n", "d.yaml");
  EXPECT_THAT(document.problems().lines(),
              ElementsAre("d.yaml:4:a.x: duplicate key, first given at d.yaml:2"));
  EXPECT_EQ(document.root().map("a").get<int>("x", 0), 1);
}

TEST(Yaml, MapsAndListsOfMaps) {
  const auto document = YamlDocument::parse(
      "list:\n  - {name: a}\n  - {name: b}\n  - 3\nscalar: 1\nempty:\n", "l.yaml");
  const YamlMap root = document.root();
  const auto maps = root.list_of_maps("list");
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_EQ(maps[1].required<std::string>("name"), "b");
  EXPECT_EQ(maps[1].where("name"), "l.yaml:3:list.1.name");
  EXPECT_THAT(root.map("empty").keys(), ElementsAre());
  EXPECT_THAT(root.map("absent").keys(), ElementsAre());
  EXPECT_THAT(root.map("scalar").keys(), ElementsAre());
  EXPECT_TRUE(root.list_of_maps("absent").empty());
  EXPECT_TRUE(root.list_of_maps("scalar").empty());
  EXPECT_THAT(root.keys(), ElementsAre("list", "scalar", "empty"));
  EXPECT_THAT(document.problems().lines(),
              ElementsAre("l.yaml:4:list.2: expected a mapping, got '3'",
                          "l.yaml:5:scalar: expected a mapping, got '1'",
                          "l.yaml:5:scalar: expected a list of mappings, got '1'"));
}

TEST(Yaml, RawAndProblemServeCallersOwnChecks) {
  const auto document = YamlDocument::parse("a:\n  b: 12 apples\n", "a.yaml");
  const YamlMap a = document.root().map("a");
  EXPECT_EQ(a.raw("b"), "12 apples");
  EXPECT_EQ(a.raw("c"), "");
  EXPECT_EQ(document.root().raw("a"), "");
  a.problem("b", "expected pears");
  EXPECT_THAT(document.problems().lines(), ElementsAre("a.yaml:2:a.b: expected pears"));
}

TEST(Yaml, AnchorsAndAliases) {
  const auto document = YamlDocument::parse("base: &b {x: 1}\ncopy: *b\n", "a.yaml");
  EXPECT_EQ(document.root().map("copy").get<int>("x", 0), 1);
  document.root().map("base").reject_unknown();
  EXPECT_EQ(document.problems().lines().size(), 1u)
      << "reading the copy must not make the original's keys known";
}

/// As PyYAML reads them, which OmegaConf builds on.
TEST(Yaml, MergeKeys) {
  const auto merged = [](const std::string& text) {
    return YamlDocument::parse(text, "m.yaml").root().flow_text("r");
  };
  EXPECT_EQ(merged("r: {<<: {lr: 5, decay: 2}, name: a}"), "{lr: 5, decay: 2, name: a}");
  EXPECT_EQ(merged("d: &d {x: 1, y: {z: 2}}\nr:\n  x: 3\n  <<: *d\n"), "{y: {z: 2}, x: 3}");
  EXPECT_EQ(merged("d: &d {x: 1}\ne: &e {x: 2, y: 3}\nr: {<<: [*d, *e], z: 4}"),
            "{x: 1, y: 3, z: 4}");
  EXPECT_EQ(merged("r: {<<: {x: 1}, <<: {y: 2, x: 3}}"), "{x: 1, y: 2}");
  EXPECT_EQ(merged("c: 7\nd: &d {x: \"${c}\", y: \"${.x}\"}\nr: {<<: *d, x: 1}"), "{y: 1, x: 1}");
  EXPECT_EQ(merged("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nr: {<<: *b}"), "{x: 1, y: 2}");
  EXPECT_EQ(merged("r: {'<<': {x: 1}}"), "{<<: {x: 1}}");  // in quotes it is a name
  const auto document = YamlDocument::parse("d: &d\n  x: 1\nr:\n  <<: *d\n", "m.yaml");
  EXPECT_EQ(document.root().map("r").where("x"), "m.yaml:2:r.x");
  EXPECT_TRUE(document.problems().lines().empty());
}

std::string config_error(const std::string& text) {
  try {
    (void)YamlDocument::parse(text, "bad.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Yaml, WhatIsNoYamlIsRefusedWithItsPlace) {
  EXPECT_EQ(config_error("a: [1, 2\nb: 3\n"),
            "bad.yaml:2:2: not valid YAML: end of sequence flow not found");
  EXPECT_EQ(config_error("- 1\n"),
            "bad.yaml:1: expected a mapping (key: value) at the top of the file");
  EXPECT_EQ(config_error("just text\n"),
            "bad.yaml:1: expected a mapping (key: value) at the top of the file");
  EXPECT_EQ(config_error("a: 1\n---\nb: 2\n"),
            "bad.yaml:2: expected one YAML document, got several ('---')");
  EXPECT_EQ(config_error("[1, 2]: 3\n"),
            "bad.yaml:1: expected a plain name as key, got a list or a mapping (is a closing "
            "bracket missing?)");
  EXPECT_EQ(config_error("? [1, 2]\n: 3\n"),
            "bad.yaml:1: expected a plain name as key, got a list or a mapping (is a closing "
            "bracket missing?)");
  EXPECT_EQ(config_error("a: &x [1, *x]\n"),
            "bad.yaml:1: an alias refers to a value that contains it");
  EXPECT_EQ(config_error("a: {<<: 3}\n"),
            "bad.yaml:1:a.<<: a merge key: expected a mapping or a list of mappings, such as "
            "*anchor, got something else");
  EXPECT_EQ(config_error("a: 1\nb: gr\xf6sse\n"),
            "bad.yaml:2: expected a text in UTF-8, got the byte \\xf6: save it as UTF-8");
  EXPECT_EQ(config_error(""), "no error");
  EXPECT_EQ(config_error("# only a comment\n"), "no error");
}

TEST(Yaml, LoadsAFileAndNamesAMissingOne) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("trellis_yaml_" + std::to_string(::getpid()) + ".yaml");
  std::ofstream(path) << "a: 1\n";
  EXPECT_EQ(YamlDocument::load(path, {"b=2"}).root().get<int>("b", 0), 2);
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_TRUE(YamlDocument::load(path).root().keys().empty());
  std::filesystem::remove(path);
  try {
    (void)YamlDocument::load(path);
    FAIL() << "expected an exception";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), path.string() + ": cannot read: there is no such file");
  }
  EXPECT_THROW((void)YamlDocument::load(std::filesystem::temp_directory_path()), ConfigError);
}

TEST(Yaml, ASourceGivesWhatLoadingAgainGives) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("trellis_source_" + std::to_string(::getpid()) + ".yaml");
  std::ofstream(path)
      << "a: &x {b: 1, c: [1, 2]}\nd: *x\ne: ${multiply:${a.b}, 3}\ne: twice\nname: n\n";
  const YamlSource source = YamlSource::load(path);
  const std::vector<std::vector<std::string>> all = {
      {}, {"a.b=7"}, {"a.c.1=x", "d.b=null", "f.g.h=[1, {i: 2}]"}, {"a.b.c=1"}, {}};
  for (const auto& overrides : all) {
    const YamlDocument once = source.with(overrides), again = YamlDocument::load(path, overrides);
    EXPECT_EQ(once.resolved_text(), again.resolved_text());
    EXPECT_EQ(once.problems().lines(), again.problems().lines());
    (void)once.root().get<int>("a", 0);
    once.root().reject_unknown();  // leaves no trace in the source
  }
  std::filesystem::remove(path);
}

TEST(Yaml, AnOverrideReadsAsTheSameTextInAFile) {
  for (const char* value :
       {"1",        "-1",   "1.5",   "1e-3",       "true", "null",  "~",   "Null",
        "nullable", "abc",  "a/b.c", "2024-01-01", "0x10", "\"1\"", "'x'", "[1, 2]",
        "{b: 2}",   "a: b", "1:2",   "- 1",        "x #y", "&z 1"}) {
    const std::string text = value;
    const bool is_block = text == "- 1" || text == "a: b";  // YAML that needs its own line
    const YamlDocument in_file = YamlDocument::parse(
                           is_block ? "a:\n  " + text + "\n" : "a: " + text + "\n", "t"),
                       given = YamlDocument::parse("a: 0\n", "t", {"a=" + text});
    EXPECT_EQ(given.resolved_text(), in_file.resolved_text()) << text;
    EXPECT_EQ(given.root().optional<int>("a"), in_file.root().optional<int>("a")) << text;
    EXPECT_EQ(given.root().optional<std::string>("a"), in_file.root().optional<std::string>("a"))
        << text;
    EXPECT_EQ(given.root().optional<bool>("a"), in_file.root().optional<bool>("a")) << text;
  }
}

}  // namespace
}  // namespace trellis
