#include "trainer/files/checkpoint/containers/pickle.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::checkpoint::pickle_test {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

Value read(const std::string& pickle) {
  return read_pickle(std::as_bytes(std::span(pickle)), {.where = "test"});
}

/// The most address space that the process has had so far, in KiB.
std::int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPeak:")) return std::stoll(line.substr(7));
  return 0;
}

std::string error_of(const std::string& pickle) {
  try {
    return "no error: " + read(pickle).text();
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Pickle, WhatIsWrittenIsRead) {
  Value dict = Value::dict({{"a", 1}, {2, "b"}, {true, 0.25}, {Value::tuple({1, "x"}), {}}});
  dict.set("nested", Value::list({Value::tuple({}), Value::tuple({1}), Value::size({2, 3}),
                                  Value::bytes("\x00\x7f\x80\xff"s), std::int64_t{1} << 62, -1,
                                  70000, 300, std::string(1000, 'y'), 1e300}));
  dict.set("type", Value::dtype(DType::kFloat8E5M2));
  dict.set("ordered", Value::ordered_dict({{"z", 1}, {"a", 2}}));
  dict.set("space", Value::instance("argparse.Namespace", Value::dict({{"lr", 0.1}})));
  dict.set("device", Value::object({.form = ValueObject::Form::kCall,
                                    .class_name = "torch.device",
                                    .arguments = {"cpu"}}));
  Value::List many;
  for (int i = 0; i < 2500; ++i) many.emplace_back(i);
  dict.set("many", Value::list(many));
  const Value again = read(write_pickle(dict));
  EXPECT_EQ(again, dict) << again.text();
  EXPECT_EQ(again.at("space").at("lr").as_double(), 0.1);
  EXPECT_EQ(again.at(1).as_double(), 0.25) << "True and 1 are one key";
}

TEST(Pickle, ValuesAreCopiedOnWrite) {
  Value one = Value::dict({{"a", 1}}), two = one;
  two.set("a", 2);
  two.erase("b");
  EXPECT_EQ(one.at("a").as_int(), 1);
  Value list = Value::list({1}), other = list;
  other.append(2);
  EXPECT_EQ(list.items().size(), 1);
  EXPECT_THROW((void)one.as_int(), ConfigError);
  EXPECT_THROW((void)one.at("missing"), ConfigError);
}

TEST(Pickle, NothingIsRun) {
  EXPECT_THAT(error_of("\x80\x02"
                       "cposix\nsystem\nX\x02\0\0\0ls\x85R."s),
              HasSubstr("names 'posix.system'"));
  EXPECT_THAT(error_of("\x80\x02"
                       "cos\nsystem\nX\x02\0\0\0ls\x85R."s),
              HasSubstr("names 'os.system'"));
  EXPECT_THAT(error_of("\x80\x02"
                       "c__builtin__\neval\nX\x02\0\0\0ls\x85R."s),
              HasSubstr("names 'builtins.eval'"));
  EXPECT_THAT(error_of("\x80\x04\x8c\x08"
                       "builtins\x8c\x07getattr\x93."s),
              HasSubstr("names 'builtins.getattr'"));
  EXPECT_THAT(error_of("\x80\x02(S'ls'\nios\nsystem\n."s), HasSubstr("not an opcode"));
  EXPECT_THAT(error_of("\x80\x02\x82\x01."s), HasSubstr("not an opcode")) << "extension registry";
  EXPECT_THAT(error_of("\x80\x02K\x01)R."s), HasSubstr("no class"));
  EXPECT_THAT(error_of("\x80\x02K\x01Q."s), HasSubstr("persistent id"));
}

TEST(Pickle, SizesAreCheckedBeforeMemoryIsTaken) {
  const std::string ones(4, '\xff'), eight = "\0\0\0\0\0\0\0\x10"s;
  for (const std::string& opcode :
       {"X"s + "\xff\xff\xff\x7f", "B"s + ones, "\x8d" + eight, "\x8e" + eight, "\x96" + eight,
        "T"s + ones, "\x95" + eight, "\x8b"s + "\xff\xff\xff\x7f", "\x8a\xff"s}) {
    const std::string pickle = "\x80\x04" + opcode + std::string(80, '.');
    const std::int64_t before = peak_kib();
    ASSERT_GT(before, 0);
    EXPECT_THAT(error_of(pickle), testing::AnyOf(HasSubstr("are left"), HasSubstr("frame")));
    EXPECT_LT(peak_kib(), before + 1024 * 1024) << "the least of these asks for 2 GiB";
  }
  EXPECT_THAT(error_of("\x80\x02Nr\xff\xff\xff\x7f."s), HasSubstr("memo index"));
  EXPECT_THAT(error_of("\x80\x02Nq\xff."s), HasSubstr("memo index"));
  EXPECT_THAT(error_of("\x80\x02h\x05."s), HasSubstr("never stored"));
  EXPECT_THAT(error_of("\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01."s), HasSubstr("more than 64 bits"));
  EXPECT_THAT(error_of("\x80\x02\x8a\x09\0\0\0\0\0\0\0\x80\0."s), HasSubstr("63 bits and sign"));
  EXPECT_EQ(read("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0."s).as_int(), INT64_MAX);
}

TEST(Pickle, SharedPartsDoNotExplode) {
  std::string bomb = "\x80\x02]q\0"s;  // every list holds the one before twice
  for (char i = 1; i < 60; ++i) {
    bomb += "](h"s + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "eq" + i;
  }
  EXPECT_THAT(error_of(bomb + "."), HasSubstr("unfold"));
  std::string keys = "\x80\x02)q\0"s;  // a tuple of tuples as a key
  for (char i = 1; i < 60; ++i)
    keys += "h"s + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "\x86q" + i;
  EXPECT_THAT(error_of("\x80\x02}" + keys.substr(2) + "Ns."), HasSubstr("key"));
  // A long list that is copied again and again.
  std::string copies = "\x80\x02](" + std::string(20'000, 'N') + "eq\0c__builtin__\nset\nq\x01"s;
  for (int i = 0; i < 20'000; ++i) copies += "h\x01h\0\x85R0"s;
  EXPECT_THAT(error_of(copies + "."), HasSubstr("copies more"));
}

TEST(Pickle, CyclesAndDepthAreErrors) {
  EXPECT_THAT(error_of("\x80\x02]q\0h\0a."s), HasSubstr("contains itself"));
  EXPECT_THAT(error_of("\x80\x02}q\0K\x01h\0s."s), HasSubstr("contains itself"));
  EXPECT_THAT(error_of("\x80\x02" + std::string(300, ']') + std::string(299, 'a') + "."),
              HasSubstr("nested deeper"));
  // A million lists in each other, dropped: they must end without recursion.
  std::string deep = "\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a');
  EXPECT_EQ(error_of(deep + "0N."), "no error: None");
  EXPECT_THAT(error_of(deep + "."), HasSubstr("nested deeper"));
}

TEST(Pickle, MalformedStreamsAreNamed) {
  for (const std::string& pickle :
       {""s, "\x80\x02"s, "\x80\x02."s, "\x80\x02N"s, "\x80\x01N."s, "\x80\x02(N."s, "\x80\x02t."s,
        "\x80\x02Na."s, "\x80\x02]]Ns."s, "\x80\x02}(Nu."s, "\x80\x02}]Ns."s, "\x80\x02Nb."s,
        "\x80\x02N0."s, "\x80\x02(0."s, "\x80\x02\x85."s,
        "\x80\x02"
        "cfloat\n."s,
        "\x80\x02"
        "ctorch\nSize\nK\x01\x85R."s,
        "\x80\x02"
        "c_codecs\nencode\nX\x01\0\0\0a\x85R."s})
    EXPECT_THAT(error_of(pickle), HasSubstr("test: pickle, offset")) << pickle;
}

}  // namespace
}  // namespace trellis::checkpoint::pickle_test
