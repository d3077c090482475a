#include "analysis/import/shell_words.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ShellWords : public testing::Test {
 protected:
  /// The words of the last command; what is not known in angle brackets.
  std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> result;
    const std::vector<ShellCommand> commands = reader_.read(text, "run.sh").commands;
    if (commands.empty()) return result;
    for (const ShellWord& word : commands.back())
      result.push_back(word.undetermined.empty() ? word.text
                                                 : word.text + "<" + word.undetermined + ">");
    return result;
  }
  std::string problem(const std::string& text) {
    try {
      (void)reader_.read(text, "run.sh");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  ShellReader reader_;
};

TEST_F(ShellWords, QuotesCommentsAndContinuations) {
  EXPECT_THAT(words("go 'a b' \"c d\" e\\ f g'h'\"i\" # no\n"),
              ElementsAre("go", "a b", "c d", "e f", "ghi"));
  EXPECT_THAT(words("go --a 1 \\\n  --b 2\r\n"), ElementsAre("go", "--a", "1", "--b", "2"));
  EXPECT_THAT(words("go a#b '' \"\\$X\""), ElementsAre("go", "a#b", "", "$X"));
  EXPECT_THAT(words("go $'a\\tb' \"a  $X\""), ElementsAre("go", "a\tb", "a  $X<$X>"));
}

TEST_F(ShellWords, AssignmentsExpand) {
  EXPECT_THAT(words("A=1\nB=\"$A ${A}2\"\ngo $B \"$B\" '$B'"),
              ElementsAre("go", "1", "12", "1 12", "$B"));
  EXPECT_THAT(words("A=(--x 1 # one\n  '2 3')\nA+=(4)\ngo ${A[@]} \"${A[@]}\" $A"),
              ElementsAre("go", "--x", "1", "2", "3", "4", "--x", "1", "2 3", "4", "--x"));
  EXPECT_THAT(words("export A=x\ngo ${A:-y} ${B:-\"z w\"} ${B-v}"),
              ElementsAre("go", "x", "z w", "v"));
  const ShellCommand command = reader_.read("go ${B:-v}", "run.sh").commands.back();
  EXPECT_EQ(command.back(), (ShellWord{"v", 1, "", "B"}));
}

TEST_F(ShellWords, LinesAreThoseOfTheText) {
  const auto commands = reader_.read("A=\"--x 1\n--y 2\"\n\ngo $A\n", "run.sh").commands;
  ASSERT_EQ(commands.back().size(), 5U);
  EXPECT_EQ(commands.back()[0].line, 4);
  EXPECT_EQ(commands.back()[1].line, 1);
  EXPECT_EQ(commands.back()[3].line, 2);
}

TEST_F(ShellWords, WhatBashComputesStaysMarked) {
  EXPECT_THAT(words("go $1"), ElementsAre("go", "$1<$1>"));
  EXPECT_THAT(words("go ${UNKNOWN}/a"), ElementsAre("go", "$UNKNOWN/a<$UNKNOWN>"));
  EXPECT_THAT(words("A=$(date)\ngo \"$A\""), ElementsAre("go", "$(date)<$(date)>"));
  EXPECT_THAT(words("go \"$((1+2))\" \"`date`\" ${A%x} \"$@\""),
              ElementsAre("go", "3", "`date`<`date`>", "${A%x}<${A%x}>", "$@<$@>"));
  EXPECT_THAT(words("go ~/a *.x {a,b}"),
              ElementsAre("go", "~/a<~/a>", "*.x<*.x, a pattern of file names>", "{a,b}<{a,b}>"));
}

TEST_F(ShellWords, ConditionsMarkWhatTheyAssign) {
  EXPECT_THAT(words("A=1\nif x; then\n A=2\nfi\ngo $A"),
              ElementsAre("go", "2<the condition in line 2>"));
  EXPECT_THAT(words("A=1\nif x; then A=1; fi\ngo $A"), ElementsAre("go", "1"));
  EXPECT_THAT(words("A=\"--a\"\nx && A=\"$A --b\"\ngo $A"),
              ElementsAre("go", "--a", "--b<the condition in line 2>"));
  EXPECT_THAT(words("A=(--a)\ncase $1 in\n x|y) A+=(--b) ;;\nesac\ngo ${A[@]}"),
              ElementsAre("go", "--a", "--b<the condition in line 2>"));
  EXPECT_THAT(words("A=1\nif x; then A=; fi\ngo $A"),
              ElementsAre("go", "1<the condition in line 2>"));
  EXPECT_THAT(words("for A in 1 2; do go $A; done"), ElementsAre("go", "$A<the loop in line 1>"));
}

/// Commands that give a variable a value for the rest of the script, and commands that do not.
TEST_F(ShellWords, AssignmentsHoldWhereBashHoldsThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"f() { A=2; }", "1"},
      {"f() { A=2; }\nf", "2"},
      {"f() { local A=2; }\nf", "1"},
      {"(A=2)", "1"},
      {"{ A=2; } | cat", "1"},
      {"A=2 env", "1"},
      {"((A=A*2))", "2"},
      {"let A+=4", "5"},
      {"eval 'A=2'", "2"},
      {"readonly A; A=2", "1"},
      {"source ./x.sh", "$A<source ./x.sh>"},
      {"eval \"$1\"", "$A<eval $1>"},
      {"read A", "$A<$A, which the script reads>"},
      {"declare -n B=A; B=2", "$A<declare -n, another name of a variable>"},
      {"f() { if x; then return; fi; A=2; }; f", "2<a return of the function f>"},
      {"case $1 in a) A=2;; *) exit 1;; esac", "2"},
      {"[[ ${A:=2} ]]", "$A<[[ ${A:=2} ]]>"},
  };
  for (const auto& [script, word] : cases)
    EXPECT_THAT(words("A=1\n" + std::string(script) + "\ngo $A"), ElementsAre("go", word))
        << script;
}

TEST_F(ShellWords, ScriptsInWordsAreRead) {
  EXPECT_THAT(words("run() { torchrun \"$@\"; }; run x.py 'a b'"),
              ElementsAre("torchrun", "x.py", "a b"));
  EXPECT_THAT(words("export A=5; B=4; bash -c 'torchrun x.py --a $A --b $B'"),
              ElementsAre("bash", "-c", "torchrun", "x.py", "--a", "5", "--b", "$B<$B>"));
}

TEST_F(ShellWords, ListsForOtherScripts) {
  const auto lists = reader_.read("A=(--x 1)\nB=\"--y $1\"\nC=(\"${A[@]}\" --z)\n", "x.sh").lists;
  ASSERT_EQ(lists.size(), 2U);
  EXPECT_EQ(lists[0].back().undetermined, "$1");
  EXPECT_EQ(lists[1].back(), (ShellWord{"--z", 3}));
}

TEST_F(ShellWords, RedirectionsAndDocumentsAreNoWords) {
  EXPECT_THAT(words("go a > b 2>&1 < c | tee d"), ElementsAre("tee", "d"));
  EXPECT_THAT(words("go a 2>&1 >b"), ElementsAre("go", "a"));
  EXPECT_THAT(words("cat <<EOF > x\n'open\nEOF\ngo"), ElementsAre("go"));
}

/// Where no parser is needed, it finds the same words.
TEST_F(ShellWords, PlainTextsNeedNoParser) {
  for (const std::string text : {"--a 1 \\\n  --b 'c d' # no\n--e \"f\" g\\ h\r\n",
                                 "export A=1\ntorchrun x.py --a ''\n", "train.py --a it\\'s\n"}) {
    std::vector<ShellCommand> plain;
    ASSERT_TRUE(read_plain_words(text, plain)) << text;
    const std::vector<ShellCommand> parsed = reader_.read(":;\n" + text, "run.sh").commands;
    if (plain.front().front().text == "export") plain.erase(plain.begin());
    ASSERT_EQ(plain.size(), parsed.size()) << text;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      ASSERT_EQ(plain[i].size(), parsed[i].size()) << text;
      for (std::size_t j = 0; j < plain[i].size(); ++j)
        EXPECT_EQ(plain[i][j].text, parsed[i][j].text);
    }
  }
  std::vector<ShellCommand> plain;
  for (const char* text : {"--a $X", "eval --a", "--a *", "if --a", "sh -c 'x.py --a'", "--a ~"})
    EXPECT_FALSE(read_plain_words(text, plain)) << text;
}

TEST_F(ShellWords, BadTextsAreNamed) {
  for (const auto& [text, line] :
       {std::pair("a\ngo 'x", 2), std::pair("go \"x\n", 1), std::pair("\n\nA=(1 2", 3),
        std::pair("go $(date", 1), std::pair("go ${A", 1), std::pair("cat <<EOF\nx", 1)})
    EXPECT_THAT(problem(text),
                StartsWith(fmt::format("run.sh:{}: this is no script of bash", line)));
  EXPECT_THAT(problem("x\ntrap 'A=1' DEBUG"), StartsWith("run.sh:2: 'trap A=1 DEBUG'"));
}

TEST_F(ShellWords, WithoutTheParserTheArgumentsAreAskedFor) {
  const std::string before = std::getenv("TRELLIS_PYTHON");
  ::setenv("TRELLIS_PYTHON", "/bin/false", 1);
  EXPECT_THAT(problem("go $A"), HasSubstr("tree-sitter-bash"));
  EXPECT_THAT(problem("go $A"), HasSubstr("write the arguments into a text file"));
  ::setenv("TRELLIS_PYTHON", before.c_str(), 1);
}

TEST_F(ShellWords, ExpansionsAreBounded) {
  std::string bomb = "A=0123456789\n";
  for (int i = 0; i < 64; ++i) bomb += "A=$A$A\n";
  EXPECT_THAT(problem(bomb), HasSubstr("expand to more than"));
  std::string list = "A=(0 1)\n";
  for (int i = 0; i < 64; ++i) list += "A+=(\"${A[@]}\")\n";
  EXPECT_THAT(problem(list), HasSubstr("expand to more than"));
  std::string nested, loops;
  for (int i = 0; i < 3000; ++i) nested += "${A:-";
  EXPECT_THAT(problem("go " + nested + std::string(3000, '}')), HasSubstr("nested too deep"));
  for (int i = 0; i < 30; ++i) loops += fmt::format("while x; do A{}=$B; B=1$A{};", i, i / 2);
  for (int i = 0; i < 30; ++i) loops += "done;";
  EXPECT_THAT(problem(loops), HasSubstr("nested too deep"));
}

/// Every prefix of a script ends in words or in a named error.
TEST_F(ShellWords, AnyPrefixIsReadOrRefused) {
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
