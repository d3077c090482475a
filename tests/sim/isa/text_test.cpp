#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tests/sim/random_program.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim::isa {
namespace {

TEST(ProgramText, ParsesBackWhatItPrints) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const Program program = testing::random_record(seed);
    const std::string text = print(program);
    const Program back = parse_program(text);
    ASSERT_EQ(print(back), text) << "seed " << seed;
    ASSERT_TRUE(back == program) << "seed " << seed << "\n" << text;
    ASSERT_EQ(back.hash(), program.hash()) << "seed " << seed;
  }
}

TEST(ProgramText, MatchesTheGoldenFile) {
  std::ifstream file(TRELLIS_SOURCE_DIR "/tests/golden/sim/tiny_gemm.txt");
  ASSERT_TRUE(file) << "the golden file is missing";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(print(testing::tiny_gemm()), expected.str());
}

std::string error_of(const std::string& text) {
  try {
    (void)parse_program(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ProgramText, NamesTheLineAndTheWordOfAMistake) {
  EXPECT_EQ(error_of("program \"p\"\nsegment\nqueue tensors\n"),
            "line 3: unknown engine \"tensors\"");
  EXPECT_EQ(error_of("segment\n"
                     "queue vector\n"
                     "  tensor_copy dts=0:fp32:p0+1\n"),
            "line 3: unknown field \"dts\" of an instruction");
  EXPECT_EQ(error_of("segment\nqueue vector\n  tensor_copy dst=0:fp32:p0+1:o9x\n"),
            "line 3: expected a number, got \"9x\"");
  EXPECT_EQ(error_of("queue vector\n"), "line 1: precedes the first segment");
  EXPECT_EQ(error_of("segment\n  matmul\n"),
            "line 2: an instruction precedes the first queue of its segment");
  EXPECT_EQ(error_of("kernel \"a\" node=99999999999\n"),
            "line 1: number \"99999999999\" is out of range");
}

TEST(ProgramHash, ChangesWithEveryInstructionField) {
  const Program base = testing::tiny_gemm();
  Program changed = base;
  changed.segments[0].queues[0][3].src0.rotate_stride += 1;
  EXPECT_NE(base.hash(), changed.hash());
  changed = base;
  changed.segments[0].queues[4][1].waits[0].value = 2;
  EXPECT_NE(base.hash(), changed.hash());
  changed = base;
  std::swap(changed.segments[0].queues[0], changed.segments[0].queues[1]);
  EXPECT_NE(base.hash(), changed.hash());
}

TEST(Names, AreInverseToParsing) {
  for (int i = 0; i < 18; ++i)
    EXPECT_EQ(parse_name<Opcode>(name(static_cast<Opcode>(i))), static_cast<Opcode>(i));
  for (int i = 0; i < 13; ++i)
    EXPECT_EQ(parse_name<DType>(name(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(parse_name<Engine>("warp"), std::nullopt);
}

TEST(AccessPattern, KnowsItsContiguousRun) {
  AccessPattern a = testing::tile(0, DType::kBf16, 4, 16);
  EXPECT_EQ(a.contiguous_bytes(), 32);
  EXPECT_EQ(a.bytes(), 128);
  a.num_dims = 3;
  a.dims = {{{100, 3}, {16, 2}, {1, 16}}};  // two rows of 16 join, the third dimension leaves a gap
  EXPECT_EQ(a.contiguous_bytes(), 64);
  a.dims[2].stride = 2;
  EXPECT_EQ(a.contiguous_bytes(), 2);
}

}  // namespace
}  // namespace trellis::sim::isa
