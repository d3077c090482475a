#include "device/compiler/gemm.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/device/compiler/interpreter.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {
namespace {

struct Case {
  std::int64_t batch, m, n, k;
  bool a_minor_m, b_minor_k, c_minor_m;
  DType dtype;
  int addend;  ///< 0 none, 1 bias, 2 full
  double alpha, beta;
  std::int64_t sbuf = 192 * 1024;
};

HbmView matrix(std::uint32_t buffer, DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t columns, bool rows_minor) {
  HbmView v = contiguous(buffer, dtype, rows_minor ? std::vector<std::int64_t>{batch, columns, rows} : std::vector<std::int64_t>{batch, rows, columns});
  return rows_minor ? transposed(v, 1, 2) : v;
}

double at(const HbmView& v, const Values& values, std::int64_t b, std::int64_t i, std::int64_t j) {
  return values[static_cast<std::size_t>(v.offset + b * v.strides[0] + i * v.strides[1] + j * v.strides[2])];
}

void check(const Case& c) {
  const auto core = test_core(c.sbuf);
  ProgramBuilder builder("gemm", core);
  const std::int64_t size = isa::size_bytes(c.dtype);
  Gemm gemm;
  const auto a = builder.add_hbm("a", c.batch * c.m * c.k * size, 0), b = builder.add_hbm("b", c.batch * c.k * c.n * size, 1);
  const auto out = builder.add_hbm("c", c.batch * c.m * c.n * size, 2), d = builder.add_hbm("d", c.batch * c.m * c.n * size, 3);
  gemm.a = matrix(a, c.dtype, c.batch, c.m, c.k, c.a_minor_m);
  gemm.b = matrix(b, c.dtype, c.batch, c.k, c.n, c.b_minor_k);
  gemm.c = matrix(out, c.dtype, c.batch, c.m, c.n, c.c_minor_m);
  gemm.alpha = c.alpha;
  gemm.beta = c.beta;
  if (c.addend == 1) gemm.addend = HbmView{d, c.dtype, {c.batch, c.m, c.n}, {0, 0, 1}, 0};
  if (c.addend == 2) gemm.addend = contiguous(d, c.dtype, {c.batch, c.m, c.n});
  const auto kernel = builder.add_kernel({"mm", 0, 0, false});
  lower_gemm(builder, kernel, gemm);
  const auto program = builder.finish();
  for (const auto& v : isa::validate(program, core.limits)) ADD_FAILURE() << name(v.engine) << " " << v.index << ": " << v.text;

  std::mt19937 random(7);
  std::uniform_int_distribution<int> draw(-4, 4);
  const auto fill = [&](std::int64_t n) {
    Values values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(draw(random) * 0.25);
    return values;
  };
  const Values va = fill(c.batch * c.m * c.k), vb = fill(c.batch * c.k * c.n), vd = fill(c.batch * c.m * c.n);
  Values first;
  for (std::uint32_t seed : {0u, 1u, 2u}) {
    Interpreter run(program, core.limits, seed);
    run.write(a, c.dtype, va);
    run.write(b, c.dtype, vb);
    run.write(d, c.dtype, vd);
    run.run();
    const Values got = run.read(out, c.dtype, c.batch * c.m * c.n);
    if (seed == 0) {
      first = got;
    } else {
      ASSERT_EQ(first, got) << "the schedule changes the result: a race";
    }
  }
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t m = 0; m < c.m; ++m) {
      for (std::int64_t n = 0; n < c.n; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < c.k; ++k) sum += at(gemm.a, va, i, m, k) * at(gemm.b, vb, i, k, n);
        sum *= c.alpha;
        if (gemm.addend) sum += c.beta * at(*gemm.addend, vd, i, m, n);
        ASSERT_NEAR(at(gemm.c, first, i, m, n), sum, 1e-2 + 1e-2 * std::abs(sum)) << i << " " << m << " " << n;
      }
    }
  }
}

constexpr DType kF = DType::kFp32, kB = DType::kBf16;

TEST(Gemm, OneTile) { check({1, 128, 512, 128, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, OddSizes) { check({1, 70, 37, 45, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, BothTransposed) { check({1, 130, 150, 260, false, true, false, kB, 0, 1, 1}); }
TEST(Gemm, TransposedResult) { check({1, 140, 60, 70, false, false, true, kF, 0, 1, 1}); }
TEST(Gemm, ManyTiles) { check({1, 700, 1100, 300, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, ManyTilesTransposed) { check({1, 1100, 700, 300, false, true, false, kF, 0, 1, 1}); }
TEST(Gemm, SmallMemory) { check({1, 700, 600, 700, true, true, false, kF, 0, 1, 1, 64 * 1024}); }
TEST(Gemm, Bias) { check({1, 300, 520, 130, false, true, false, kB, 1, 1, 1}); }
TEST(Gemm, ScaledAddend) { check({1, 200, 600, 130, false, true, false, kF, 2, 0.5, 2}); }
TEST(Gemm, Batched) { check({3, 140, 50, 60, false, false, false, kF, 2, 1, 1}); }
TEST(Gemm, Vector) { check({1, 1, 200, 300, false, true, false, kF, 0, 1, 1}); }
TEST(Gemm, LongContraction) { check({1, 20, 30, 9000, false, true, false, kF, 2, 1, 1}); }

}  // namespace
}  // namespace trellis::device::testing
