#include "device/compiler/gemm/gemm_mx.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {
namespace {

/// Small numbers in the packed layout, whose sums of products are exact in fp32.
struct MxNumbers {
  Values packed, scales;
  Values plain;  ///< [k][columns]

  MxNumbers(DType dtype, std::int64_t k, std::int64_t columns, std::mt19937& random)
      : plain(static_cast<std::size_t>(k * columns)) {
    std::uniform_int_distribution<int> draw(-3, 3), power(125, 129);
    for (std::int64_t i = 0; i < k / 32 * columns; ++i) scales.push_back(power(random));
    for (std::int64_t row = 0; row < k / 4; ++row) {
      for (std::int64_t c = 0; c < columns; ++c) {
        std::uint32_t element = 0;
        for (int part = 0; part < 4; ++part) {
          const double value = draw(random);
          element |= encode(mx_format(dtype), value) << (part * mx_bits(dtype));
          plain[static_cast<std::size_t>((4 * row + part) * columns + c)] =
              value * std::exp2(scales[static_cast<std::size_t>(row / 8 * columns + c)] - 127);
        }
        packed.push_back(element);
      }
    }
  }
};

struct MxCase {
  std::int64_t m, n, k;
  DType dtype;
  std::int64_t sbuf = 256 * 1024;
};

void check_mx(const MxCase& c) {
  auto core = test_core(c.sbuf);
  core.limits.core_version = 4;
  ProgramBuilder builder("mx", core);
  const auto operand = [&](std::int64_t columns, std::int32_t slot) {
    const auto data = builder.add_hbm("data", c.k / 4 * columns * isa::size_bytes(c.dtype), slot),
               scales = builder.add_hbm("scales", c.k / 32 * columns, slot + 1);
    return MxOperand{contiguous(data, c.dtype, {c.k / 4, columns}),
                     contiguous(scales, DType::kUInt8, {c.k / 32, columns})};
  };
  MxGemm gemm{operand(c.m, 0), operand(c.n, 2), {}};
  gemm.c = contiguous(builder.add_hbm("c", c.m * c.n * 4, 4), DType::kFp32, {c.m, c.n});
  lower_mx_gemm(builder, builder.add_kernel({"mx", 0, 0, false}), gemm);
  const auto program = builder.finish();
  for (const auto& v : isa::validate(program, core.limits))
    ADD_FAILURE() << name(v.engine) << " " << v.index << ": " << v.text;

  std::mt19937 random(3);
  const MxNumbers a(c.dtype, c.k, c.m, random), b(c.dtype, c.k, c.n, random);
  for (std::uint32_t seed : {0u, 1u, 2u}) {
    Interpreter run(program, core.limits, in_double(seed));
    for (const auto& [to, from] : {std::pair{&gemm.a, &a}, std::pair{&gemm.b, &b}}) {
      run.write(to->data.buffer, c.dtype, from->packed);
      run.write(to->scales.buffer, DType::kUInt8, from->scales);
    }
    run.run();
    const Values got = run.read(gemm.c.buffer, DType::kFp32, c.m * c.n);
    for (std::int64_t m = 0; m < c.m; m += c.m > 200 ? 7 : 1) {
      for (std::int64_t n = 0; n < c.n; n += c.n > 200 ? 5 : 1) {
        double sum = 0;
        for (std::int64_t k = 0; k < c.k; ++k)
          sum += a.plain[static_cast<std::size_t>(k * c.m + m)] *
                 b.plain[static_cast<std::size_t>(k * c.n + n)];
        ASSERT_EQ(got[static_cast<std::size_t>(m * c.n + n)], sum)
            << "seed " << seed << ": " << m << " " << n;
      }
    }
  }
}

constexpr DType kE4 = DType::kFp8E4M3FnX4, kE5 = DType::kFp8E5M2X4, kE2 = DType::kFp4E2M1X4;

TEST(MxGemm, OneTile) { check_mx({128, 512, 512, kE4}); }
TEST(MxGemm, SmallestContraction) { check_mx({70, 45, 32, kE4}); }
TEST(MxGemm, RestOfK) { check_mx({130, 90, 1120, kE5}); }
TEST(MxGemm, ManyTiles) { check_mx({300, 1100, 1024, kE4}); }
TEST(MxGemm, Fp4) { check_mx({140, 600, 544, kE2}); }
TEST(MxGemm, BlocksFollowEachOther) { check_mx({140, 2300, 544, kE2, 60 * 1024}); }
TEST(MxGemm, BothStream) { check_mx({280, 1300, 1056, kE4, 64 * 1024}); }

/// Rounded to the nearest, ties to even; magnitudes above the largest number saturate; every code
/// but NaN and infinity survives.
TEST(MxNumbers, MiniFloatsRound) {
  for (const DType dtype : {kE4, kE5, kE2}) {
    const MiniFloat f = mx_format(dtype);
    for (std::uint32_t code = 0; code < 1u << mx_bits(dtype); ++code) {
      if (std::abs(decode(f, code)) > f.most) continue;
      EXPECT_EQ(encode(f, decode(f, code)), code);
    }
    EXPECT_EQ(decode(f, encode(f, 2 * f.most)), f.most);
  }
  EXPECT_EQ(decode(mx_format(kE2), encode(mx_format(kE2), 2.5)), 2);
  EXPECT_EQ(decode(mx_format(kE2), encode(mx_format(kE2), 3.5)), 4);
  EXPECT_EQ(decode(mx_format(kE4), encode(mx_format(kE4), 1.0 / 1024)), 0);
}

}  // namespace
}  // namespace trellis::device::testing
