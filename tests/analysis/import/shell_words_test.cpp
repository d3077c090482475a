#include "analysis/import/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

/// The words of the last command; what is not known in angle brackets.
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result;
  const std::vector<ShellCommand> commands = read_shell_commands(text, "run.sh");
  if (commands.empty()) return result;
  for (const ShellWord& word : commands.back())
    result.push_back(word.undetermined.empty() ? word.text
                                               : word.text + "<" + word.undetermined + ">");
  return result;
}

std::string problem(const std::string& text) {
  try {
    (void)read_shell_commands(text, "run.sh");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ShellWords, QuotesCommentsAndContinuations) {
  EXPECT_THAT(words("go 'a b' \"c d\" e\\ f g'h'\"i\" # no\n"),
              ElementsAre("go", "a b", "c d", "e f", "ghi"));
  EXPECT_THAT(words("go --a 1 \\\n  --b 2\r\n"), ElementsAre("go", "--a", "1", "--b", "2"));
  EXPECT_THAT(words("go a#b '' \"\\$X\""), ElementsAre("go", "a#b", "", "$X"));
}

TEST(ShellWords, AssignmentsExpand) {
  EXPECT_THAT(words("A=1\nB=\"$A ${A}2\"\ngo $B \"$B\" '$B'"),
              ElementsAre("go", "1", "12", "1 12", "$B"));
  EXPECT_THAT(words("A=(--x 1 # one\n  '2 3')\nA+=(4)\ngo ${A[@]} \"${A[@]}\" $A"),
              ElementsAre("go", "--x", "1", "2", "3", "4", "--x", "1", "2 3", "4", "--x"));
  EXPECT_THAT(words("export A=x\ngo ${A:-y} ${B:-\"z w\"} ${B-v}"),
              ElementsAre("go", "x", "z", "w", "v"));
}

TEST(ShellWords, LinesAreThoseOfTheText) {
  const auto commands = read_shell_commands("A=\"--x 1\n--y 2\"\n\ngo $A\n", "run.sh");
  ASSERT_EQ(commands.back().size(), 5U);
  EXPECT_EQ(commands.back()[0].line, 4);
  EXPECT_EQ(commands.back()[1].line, 1);
  EXPECT_EQ(commands.back()[3].line, 2);
}

TEST(ShellWords, WhatBashComputesStaysMarked) {
  EXPECT_THAT(words("go $1"), ElementsAre("go", "$1<$1>"));
  EXPECT_THAT(words("go ${UNKNOWN}/a"), ElementsAre("go", "$UNKNOWN/a<$UNKNOWN>"));
  EXPECT_THAT(words("A=$(rm -rf \"a )b\")\ngo $A"),
              ElementsAre("go", "$(rm<$(rm -rf \"a )b\")>", "-rf<$(rm -rf \"a )b\")>",
                          "\"a<$(rm -rf \"a )b\")>", ")b\")<$(rm -rf \"a )b\")>"));
  EXPECT_THAT(
      words("go \"$((1+2))\" \"`date`\" ${A%x} \"$@\""),
      ElementsAre("go", "$((1+2))<$((1+2))>", "`date`<`date`>", "${A%x}<${A%x}>", "$@<$@>"));
}

TEST(ShellWords, ConditionsMarkWhatTheyAssign) {
  EXPECT_THAT(words("A=1\nif x; then\n A=2\nfi\ngo $A"),
              ElementsAre("go", "2<the condition in line 2>"));
  EXPECT_THAT(words("A=1\nif x; then A=1; fi\ngo $A"), ElementsAre("go", "1"));
  EXPECT_THAT(words("A=\"--a\"\nx && A=\"$A --b\"\ngo $A"),
              ElementsAre("go", "--a", "--b<the condition in line 2>"));
  EXPECT_THAT(words("A=(--a)\ncase $1 in\n x|y) A+=(--b) ;;\nesac\ngo ${A[@]}"),
              ElementsAre("go", "--a", "--b<the condition in line 2>"));
  EXPECT_THAT(words("A=1\nif x; then A=; fi\ngo $A"),
              ElementsAre("go", "1<the condition in line 2>"));
  EXPECT_THAT(words("for A in 1 2; do go $A; done"), ElementsAre("go", "$A<$A>"));
}

TEST(ShellWords, RedirectionsAndDocumentsAreNoWords) {
  EXPECT_THAT(words("go a > b 2>&1 < c | tee d"), ElementsAre("tee", "d"));
  EXPECT_THAT(words("go a 2>&1 >b"), ElementsAre("go", "a"));
  EXPECT_THAT(words("cat <<EOF > x\n'open\nEOF\ngo"), ElementsAre("go"));
}

TEST(ShellWords, BadTextsAreNamed) {
  EXPECT_THAT(problem("a\ngo 'x"), StartsWith("run.sh:2: this single quote is never closed"));
  EXPECT_THAT(problem("go \"x\n"), StartsWith("run.sh:1: this double quote is never closed"));
  EXPECT_THAT(problem("\n\nA=(1 2"), StartsWith("run.sh:3: this list is never closed"));
  EXPECT_THAT(problem("go $(date"), StartsWith("run.sh:1: '(' is never closed"));
  EXPECT_THAT(problem("go ${A"), StartsWith("run.sh:1: '{' is never closed"));
  EXPECT_THAT(problem("cat <<EOF\nx"), HasSubstr("never ends"));
}

TEST(ShellWords, ExpansionsAreBounded) {
  std::string bomb = "A=0123456789\n";
  for (int i = 0; i < 64; ++i) bomb += "A=$A$A\n";
  EXPECT_THAT(problem(bomb), HasSubstr("expand to more than"));
  std::string list = "A=(0 1)\n";
  for (int i = 0; i < 64; ++i) list += "A+=(\"${A[@]}\")\n";
  EXPECT_THAT(problem(list), HasSubstr("expand to more than"));
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += "${A:-";
  EXPECT_THAT(problem("go " + nested + std::string(1000, '}')), HasSubstr("nested more than"));
}

/// Every prefix of a script ends in words or in a named error.
TEST(ShellWords, AnyPrefixIsReadOrRefused) {
  const std::string script =
      "#!/bin/bash\nA=(--x \"$1\" '2' $(d) `e`)\nif [ -n \"${B:-c}\" ]; then A+=(--y); fi\n"
      "f() { echo $#; }\ncat <<E\nt\nE\nwhile x; do break; done\ngo ${A[@]} 2>&1 | tee l &\n";
  for (std::size_t length = 0; length <= script.size(); ++length) {
    const std::string text = problem(script.substr(0, length));
    EXPECT_TRUE(text.empty() || text.starts_with("run.sh:")) << length << ": " << text;
  }
}

}  // namespace
}  // namespace trellis::analysis
