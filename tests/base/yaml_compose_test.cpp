#include "base/yaml/yaml_compose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/input_file.h"
#include "tests/support/temporary_directory.h"

namespace trellis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class YamlCompose : public testing::Test {
 protected:
  ComposedYaml compose(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return compose_yaml(directory_.write("main.yaml", text), overrides,
                        [](const auto& path) { return read_input_file(path); });
  }
  /// The document on one line, and what became of each entry.
  std::string composed(const std::string& text, const std::vector<std::string>& overrides = {}) {
    const ComposedYaml result = compose(text, overrides);
    std::string out;
    for (const std::string& key : result.document.root().keys())
      out += key + ": " + result.document.root().flow_text(key) + "; ";
    return out;
  }
  std::string notes(const std::string& text) {
    std::string out;
    for (const YamlDefault& each : compose(text).defaults) {
      const char* kinds[] = {"taken", "nothing", "missing"};
      out += each.where.substr(each.where.rfind('/') + 1) + " " + each.entry + " " +
             kinds[static_cast<int>(each.kind)] + "; ";
    }
    return out;
  }
  std::string note(const std::string& text) { return compose(text).defaults.at(0).note; }

  TemporaryDirectory directory_;
};

TEST_F(YamlCompose, LaterEntriesWinAndTheFileItselfIsWhereItSaysSo) {
  directory_.write("base.yaml", "a: 1\nkept: {x: 1, y: 1}\n");
  EXPECT_EQ(composed("defaults: [base, _self_]\na: 2\nkept: {y: 2}\n"),
            "a: 2; kept: {x: 1, y: 2}; ");
  EXPECT_EQ(composed("defaults: [_self_, base]\na: 2\nkept: {y: 2}\n"),
            "a: 1; kept: {y: 1, x: 1}; ");
  EXPECT_EQ(composed("defaults: [base]\na: 2\n"), composed("defaults: [_self_, base]\na: 2\n"));
}

TEST_F(YamlCompose, AGroupIsBelowItsNameOrItsPackage) {
  directory_.write("optim/adam.yaml", "lr: 1\n");
  directory_.write("optim/top.yaml", "# of the whole run\n# @package _global_\nseed: 7\n");
  directory_.write("deep/optim/sgd.yaml", "lr: 2\n");
  EXPECT_EQ(composed("defaults:\n  - optim: adam\n"), "optim: {lr: 1}; ");
  EXPECT_EQ(composed("defaults:\n  - optim@model.optim: adam.yaml\n"), "model: {optim: {lr: 1}}; ");
  EXPECT_EQ(composed("defaults:\n  - optim@_global_: adam\n"), "lr: 1; ");
  EXPECT_EQ(composed("defaults:\n  - optim: [adam, top]\n"), "optim: {lr: 1}; seed: 7; ");
  EXPECT_EQ(composed("defaults:\n  - deep/optim: sgd\n"), "deep: {optim: {lr: 2}}; ");
}

TEST_F(YamlCompose, FilesHaveListsToo) {
  directory_.write("model/gpt.yaml", "defaults:\n  - optim: adam\n  - /data: text\nlayers: 2\n");
  directory_.write("model/optim/adam.yaml", "lr: 1\n");
  directory_.write("data/text.yaml", "split: a\n");
  EXPECT_EQ(composed("defaults:\n  - model: gpt\n"),
            "model: {layers: 2, optim: {lr: 1}, data: {split: a}}; ");
  EXPECT_EQ(notes("defaults:\n  - model: gpt\n"),
            "main.yaml:2 model: gpt taken; gpt.yaml:2 optim: adam taken; gpt.yaml:3 /data: text "
            "taken; ");
}

TEST_F(YamlCompose, AnotherOptionIsChosenByTheCommandLineOrByAnOverride) {
  directory_.write("optim/adam.yaml", "lr: 1\nbeta: 1\n");
  directory_.write("optim/sgd.yaml", "lr: 2\n");
  const std::string text = "defaults:\n  - optim: adam\n  - override optim: sgd\n";
  EXPECT_EQ(composed(text), "optim: {lr: 2}; ");
  EXPECT_EQ(composed(text, {"optim=adam", "optim.lr=3"}), "optim: {lr: 3, beta: 1}; ");
  EXPECT_EQ(composed(text, {"optim=null"}), "");
  EXPECT_EQ(notes("defaults:\n  - override data: x\n"),
            "main.yaml:2 override data: x nothing; main.yaml:2 override data: x missing; ");
}

TEST_F(YamlCompose, ReferencesAreResolvedInTheWhole) {
  directory_.write("model/gpt.yaml", "size: ${heads}\nsame: ${.size}\n");
  EXPECT_EQ(composed("defaults:\n  - model: gpt\nheads: 4\n"),
            "heads: 4; model: {size: 4, same: 4}; ");
  directory_.write("model/bad.yaml", "size: ${nowhere}\n");
  const ComposedYaml bad = compose("defaults:\n  - model: bad\n");
  EXPECT_THAT(bad.document.problems().lines(),
              ElementsAre(HasSubstr("bad.yaml:1:model.size: cannot resolve '${nowhere}'")));
}

TEST_F(YamlCompose, WhatIsNotThereIsNamedWithItsLine) {
  const std::string text =
      "defaults:\n"
      "  - model: none\n"
      "  - optional model: none\n"
      "  - cluster: null\n"
      "  - data: ?\?\?\n"
      "  - override hydra/launcher: slurm\n"
      "  - ../secret\n"
      "  - model: ${oc.env:M}\n"
      "  - model@_group_: none\n"
      "  - [a, b]\n";
  EXPECT_EQ(notes(text),
            "main.yaml:2 model: none missing; main.yaml:3 optional model: none nothing; "
            "main.yaml:4 cluster: null nothing; main.yaml:5 data: ?\?\? missing; "
            "main.yaml:6 override hydra/launcher: slurm nothing; main.yaml:7 ../secret missing; "
            "main.yaml:8 model: ${oc.env:M} missing; main.yaml:9 model@_group_: none missing; "
            "main.yaml:10 null missing; ");
  EXPECT_THAT(note("defaults:\n  - model: none\n"),
              HasSubstr("/model/none.yaml: put it there, or"));
  EXPECT_THAT(note("defaults:\n  - data: ?\?\?\n"), HasSubstr("data=OPTION"));
}

TEST_F(YamlCompose, FilesThatIncludeEachOtherAreRefused) {
  directory_.write("a.yaml", "defaults: [b]\n");
  directory_.write("b.yaml", "x: 1\ndefaults:\n  - a\n");
  const auto problem = [&](const std::string& text) -> std::string {
    try {
      (void)compose(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(problem("defaults: [a]\n"), HasSubstr("b.yaml:3: "));
  EXPECT_THAT(problem("defaults: [a]\n"), HasSubstr("a.yaml is included inside itself"));
  // Each doubles the number of files.
  directory_.write("0.yaml", "x: 1\n");
  for (int i = 1; i < 9; ++i)
    directory_.write(std::to_string(i) + ".yaml", "defaults: ['" + std::to_string(i - 1) + "', '" +
                                                      std::to_string(i - 1) + "']\n");
  EXPECT_THAT(problem("defaults: ['8']\n"), HasSubstr("more than 64 files"));
}

}  // namespace
}  // namespace trellis
