#include "base/escape.h"

#include <cstdlib>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trellis {
namespace {

using nlohmann::json;

/// Everything that a terminal, a line, a spreadsheet, HTML, DOT or Markdown could interpret.
const std::string kHostile =
    "a\x1b[31mred\x07\nforged: ok\r\t\x7f\xc2\x9b"
    "31m\xe2\x80\xae"
    "gnp\xff\xc3|<script>alert('x')</script>\"&`[l](j)\\";

bool has_control(const std::string& text, const std::string& kept) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 || byte == 0x7F) && kept.find(c) == std::string::npos) return true;
  }
  return text.find("\xc2\x9b") != std::string::npos ||
         text.find("\xe2\x80\xae") != std::string::npos || text.find('\xff') != std::string::npos;
}

TEST(Escape, ALineOfATerminalHasNoControls) {
  const std::string line = terminal_line(kHostile);
  EXPECT_FALSE(has_control(line, ""));
  EXPECT_TRUE(line.starts_with(
      "a\\u001b[31mred\\u0007\\nforged: ok\\r\\t\\u007f\\u009b31m\\u202egnp\\xff\\xc3|"));
  EXPECT_EQ(terminal_line("plain äöü 漢字 🌱 ×"), "plain äöü 漢字 🌱 ×");
}

TEST(Escape, WhatIsShownIsBounded) {
  const std::string fits(kMostShownBytes, 'x'), half = "ä" + std::string(kMostShownBytes - 3, 'x');
  EXPECT_EQ(terminal_line(fits), fits);
  EXPECT_EQ(terminal_line(fits + "y"), fits + "… (16385 bytes in all)");
  EXPECT_EQ(terminal_line(half + "ää"), half + "… (16387 bytes in all)");  // no half of a character
  EXPECT_EQ(terminal_lines("a\n" + fits + "y\nb"), "a\n" + fits + "… (16385 bytes in all)\nb");
  EXPECT_EQ(terminal_text(fits + "y"), fits + "y");
}

TEST(Escape, WhatIsNoUtf8IsFound) {
  EXPECT_EQ(find_no_utf8("gr\xf6sse"), 2U);
  EXPECT_EQ(find_no_utf8("größe 🌱"), std::nullopt);
  EXPECT_TRUE(has_controls("a\tb"));
  EXPECT_FALSE(has_controls(std::string(kMostShownBytes + 1, 'x')));
}

TEST(Escape, ATextKeepsItsLines) {
  EXPECT_FALSE(has_control(terminal_text(kHostile), "\n\t"));
  EXPECT_EQ(terminal_text("a\n\tb\x1b"), "a\n\tb\\u001b");
}

TEST(Escape, TheTextOfADocumentSaysTheSameAfterIt) {
  const json document = {{"name", "a\x1b[2J\x7f\xc2\x9b\xe2\x80\xae\n"}};
  EXPECT_EQ(json::parse(terminal_text(document.dump(1))), document);
}

TEST(Escape, UnfinishedCharacters) {
  EXPECT_EQ(unfinished_utf8("ab"), 0U);
  EXPECT_EQ(unfinished_utf8("a\xc3"), 1U);
  EXPECT_EQ(unfinished_utf8("a\xe2\x80"), 2U);
  EXPECT_EQ(unfinished_utf8("a\xf0\x9f\x8c"), 3U);
  EXPECT_EQ(unfinished_utf8("a\xc3\xa4"), 0U);
  EXPECT_EQ(unfinished_utf8("a\xff"), 0U);
}

TEST(Escape, NoCellOfCsvIsAFormula) {
  for (const std::string start : {"=", "+", "-", "@", "\t", "\r"}) {
    EXPECT_TRUE(csv_cell(start + "cmd|' /C calc'!A0").starts_with("\"'" + start)) << start;
  }
  EXPECT_EQ(csv_cell("a,\"b\"\nc"), "\"a,\"\"b\"\"\nc\"");
  EXPECT_EQ(csv_cell("plain"), "plain");
  EXPECT_EQ(csv_cell("a\x1b"), "a\\u001b");
}

TEST(Escape, HtmlAndXmlHaveNoElementsOfATexts) {
  EXPECT_EQ(xml_text("<a href=\"x\" b='y'>&"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;");
  EXPECT_FALSE(has_control(xml_text(kHostile), "\n\t"));
  EXPECT_EQ(json_in_script("{\"a\": \"</script>\"}").find('<'), std::string::npos);
  EXPECT_EQ(json::parse(json_in_script("{\"a\": \"</script>\"}")), (json{{"a", "</script>"}}));
}

TEST(Escape, DotAndMarkdown) {
  EXPECT_EQ(dot_text("a\"]; b\\\nc\x1b"), "\"a\\\"]; b\\\\\\nc\\\\u001b\"");
  EXPECT_EQ(markdown_text("a | [b](c) <d>\n| e |"), "a \\| \\[b\\](c) &lt;d>\\\\n\\| e \\|");
}

/// The text that bash makes of the word.
std::string read_by_bash(const std::string& word) {
  const std::string command = "printf %s " + word;
  const std::string script = "bash -c \"$TRELLIS_ESCAPE_TEST\"";
  ::setenv("TRELLIS_ESCAPE_TEST", command.c_str(), 1);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(script.c_str(), "r"),
                                                             &::pclose);
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  return text;
}

TEST(Escape, BashReadsAWordBack) {
  EXPECT_EQ(shell_word("plain-1_x.yaml"), "plain-1_x.yaml");
  EXPECT_EQ(shell_word(""), "''");
  for (const std::string& text :
       {std::string("it's $HOME `x` \\n"), std::string("a\nb\x1b'\\\x7f"), std::string("\xff\t")}) {
    EXPECT_EQ(read_by_bash(shell_word(text)), text);
    EXPECT_FALSE(has_control(shell_word(text), "")) << text;
  }
}

}  // namespace
}  // namespace trellis
