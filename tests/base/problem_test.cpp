#include "base/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/yaml/yaml.h"

namespace trellis {
namespace {

using testing::SizeIs;

TEST(Problem, HasThePartsOfItsLine) {
  const Problem problem =
      parse_problem("run.yaml:12:model.num_layers: must be at least 1, got 0; raise it");
  EXPECT_EQ(problem,
            (Problem{"run.yaml", 12, "model.num_layers", "at least 1", "0",
                     "run.yaml:12:model.num_layers: must be at least 1, got 0; raise it"}));
}

TEST(Problem, OfAnOverrideHasNoLine) {
  const Problem problem = parse_problem("command line:seed: must be greater than 0, got 0");
  EXPECT_EQ(problem.file, "command line");
  EXPECT_EQ(problem.line, 0);
  EXPECT_EQ(problem.key, "seed");
  EXPECT_EQ(problem.expected, "greater than 0");
  EXPECT_EQ(problem.got, "0");
}

TEST(Problem, OfAPlaceWithoutKeyHasNoKey) {
  const Problem problem = parse_problem("run.yaml:3:7: not valid YAML: end of map not found");
  EXPECT_EQ(problem.line, 3);
  EXPECT_EQ(problem.key, "");
  EXPECT_EQ(parse_problem("no place: at all").file, "");
  EXPECT_EQ(parse_problem("").text, "");
}

TEST(Problem, AFileNameMayHoldWhatSeparates) {
  const std::string file = "a:7:b: c.yaml";
  const Problem problem =
      parse_problem(file + ":12:model.lr: expected a finite number, got 'x'", file);
  EXPECT_EQ(problem.file, file);
  EXPECT_EQ(problem.line, 12);
  EXPECT_EQ(problem.key, "model.lr");
  EXPECT_EQ(problem.got, "'x'");
}

TEST(Problem, TextsThatSayOnlyWhatCameKeepIt) {
  EXPECT_EQ(parse_problem("r.yaml:1:a: not supported (got true): there is none; remove it").got,
            "true");
  EXPECT_EQ(parse_problem("r.yaml:1:a: unknown value `x`; expected b or c").expected, "b or c");
  EXPECT_EQ(parse_problem("r.yaml:1:a: forgotten values").got, "");
}

TEST(Problem, WhatTheReaderReportsIsReadBack) {
  const YamlDocument document =
      YamlDocument::parse("a: x\nb: {c: [1]}\nzebra: 1\n", "in.yaml", {"d=y"});
  const YamlMap root = document.root();
  root.get<int>("a", 0);
  root.map("b").get<bool>("c", false);
  root.get<double>("d", 0);
  root.reject_unknown();
  ASSERT_THAT(document.problems().lines(), SizeIs(4));
  std::string text;
  for (const std::string& line : document.problems().lines()) text += line + "\n";
  const std::vector<Problem> problems = parse_problems(text, "in.yaml");
  ASSERT_THAT(problems, SizeIs(4));
  EXPECT_EQ(problems[0], (Problem{"in.yaml", 1, "a", "an integer that fits in 32 bits", "'x'",
                                  document.problems().lines()[0]}));
  EXPECT_EQ(problems[1].key, "b.c");
  EXPECT_EQ(problems[1].got, "a list");
  EXPECT_EQ(problems[2].file, "command line");
  EXPECT_EQ(problems[2].key, "d");
  EXPECT_EQ(problems[3].key, "zebra");
  EXPECT_EQ(problems[3].line, 3);
}

TEST(Problem, AnIndentedLineContinuesTheOneBefore) {
  const std::vector<Problem> problems =
      parse_problems("run.yaml:1:a: expected one of\n  b\n  c\nrun.yaml:2:d: unknown key\n");
  ASSERT_THAT(problems, SizeIs(2));
  EXPECT_EQ(problems[0].text, "run.yaml:1:a: expected one of\n  b\n  c");
  EXPECT_EQ(problems[1].key, "d");
}

}  // namespace
}  // namespace trellis
