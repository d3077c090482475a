#include "device/compiler/gemm/gemm.h"
#include "device/compiler/gemm/gemm_tilings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "device/compiler/gemm/lower_gemm.h"
#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/products.h"
#include "tests/device/compiler/test_core.h"

namespace trellis::device::testing {
namespace {

struct GemmCase {
  std::int64_t batch, m, n, k;
  bool a_minor_m, b_minor_k, c_minor_m;
  DType dtype;
  int addend;  ///< 0 none, 1 bias, 2 full
  double alpha, beta;
  std::int64_t sbuf = 192 * 1024;
};

HbmView matrix(std::uint32_t buffer, DType dtype, std::int64_t batch, std::int64_t rows,
               std::int64_t columns, bool rows_minor) {
  HbmView v = contiguous(buffer, dtype,
                         rows_minor ? std::vector<std::int64_t>{batch, columns, rows}
                                    : std::vector<std::int64_t>{batch, rows, columns});
  return rows_minor ? transposed(v, 1, 2) : v;
}

double at(const HbmView& v, const Values& values, std::int64_t b, std::int64_t i, std::int64_t j) {
  return values[static_cast<std::size_t>(v.offset + b * v.strides[0] + i * v.strides[1] +
                                         j * v.strides[2])];
}

struct Operands {
  const Values &a, &b, &d;
};

/// Compares with the plain formula.
void expect_product(const GemmCase& c, const Gemm& gemm, const Operands& in, const Values& got) {
  Values all_b(static_cast<std::size_t>(c.k * c.n)), row_a(static_cast<std::size_t>(c.k)),
      sums(static_cast<std::size_t>(c.n));
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t k = 0; k < c.k; ++k) {
      for (std::int64_t n = 0; n < c.n; ++n)
        all_b[static_cast<std::size_t>(k * c.n + n)] = at(gemm.b, in.b, i, k, n);
    }
    for (std::int64_t m = 0; m < c.m; ++m) {
      for (std::int64_t k = 0; k < c.k; ++k)
        row_a[static_cast<std::size_t>(k)] = at(gemm.a, in.a, i, m, k);
      std::fill(sums.begin(), sums.end(), 0.0);
      add_rows(sums, {row_a.data(), 1}, all_b.data(), c.k);
      for (std::int64_t n = 0; n < c.n; ++n) {
        double sum = c.alpha * sums[static_cast<std::size_t>(n)];
        if (gemm.addend) sum += c.beta * at(*gemm.addend, in.d, i, m, n);
        ASSERT_NEAR(at(gemm.c, got, i, m, n), sum, 1e-2 + 1e-2 * std::abs(sum))
            << i << " " << m << " " << n;
      }
    }
  }
}

void check_gemm(const GemmCase& c) {
  const auto core = test_core(c.sbuf);
  ProgramBuilder builder("gemm", core);
  const std::int64_t size = isa::size_bytes(c.dtype);
  Gemm gemm;
  const auto a = builder.add_hbm("a", c.batch * c.m * c.k * size, 0),
             b = builder.add_hbm("b", c.batch * c.k * c.n * size, 1);
  const auto out = builder.add_hbm("c", c.batch * c.m * c.n * size, 2),
             d = builder.add_hbm("d", c.batch * c.m * c.n * size, 3);
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
  for (const auto& v : isa::validate(program, core.limits))
    ADD_FAILURE() << name(v.engine) << " " << v.index << ": " << v.text;

  std::mt19937 random(7);
  std::uniform_int_distribution<int> draw(-4, 4);
  const auto fill = [&](std::int64_t n) {
    Values values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(draw(random) * 0.25);
    return values;
  };
  const Values va = fill(c.batch * c.m * c.k), vb = fill(c.batch * c.k * c.n),
               vd = fill(c.batch * c.m * c.n);
  Values first;
  for (std::uint32_t seed : {0u, 1u, 2u}) {
    Interpreter run(program, core.limits, in_double(seed));
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
  expect_product(c, gemm, {va, vb, vd}, first);
}

void check_tiling(GemmTiling tiling) {
  const auto core = test_core();
  constexpr std::int64_t kM = 512, kK = 256, kN = 1024;
  ProgramBuilder builder("gemm", core);
  const auto a = builder.add_hbm("a", kM * kK * 4, 0), b = builder.add_hbm("b", kK * kN * 4, 1),
             out = builder.add_hbm("c", kM * kN * 4, 2);
  Gemm gemm;
  gemm.a = transposed(contiguous(a, DType::kFp32, {kK, kM}), 0, 1);
  gemm.b = contiguous(b, DType::kFp32, {kK, kN});
  gemm.c = contiguous(out, DType::kFp32, {kM, kN});
  gemm.four_passes = true;
  lower_gemm_tiling(builder, builder.add_kernel({"mm", 0, 0, false}), gemm, tiling);
  const auto program = builder.finish();
  for (const auto& v : isa::validate(program, core.limits))
    ADD_FAILURE() << name(v.engine) << " " << v.index << ": " << v.text;
  const auto va = [](std::int64_t k, std::int64_t m) {
    return static_cast<double>((k * 7 + m * 3) % 9 - 4);
  };
  const auto vb = [](std::int64_t k, std::int64_t n) {
    return static_cast<double>((k * 5 + n * 11) % 7 - 3);
  };
  Values values_a, values_b;
  for (std::int64_t k = 0; k < kK; ++k) {
    for (std::int64_t m = 0; m < kM; ++m) values_a.push_back(va(k, m));
    for (std::int64_t n = 0; n < kN; ++n) values_b.push_back(vb(k, n));
  }
  for (std::uint32_t seed : {0u, 1u}) {
    Interpreter run(program, core.limits, in_double(seed));
    run.write(a, DType::kFp32, values_a);
    run.write(b, DType::kFp32, values_b);
    run.run();
    const Values got = run.read(out, DType::kFp32, kM * kN);
    for (std::int64_t m = 0; m < kM; m += 37) {
      for (std::int64_t n = 0; n < kN; n += 13) {
        double sum = 0;
        for (std::int64_t k = 0; k < kK; ++k) sum += va(k, m) * vb(k, n);
        ASSERT_EQ(got[static_cast<std::size_t>(m * kN + n)], sum) << m << " " << n;
      }
    }
  }
}

TEST(Gemm, OneTile) { check_gemm({1, 128, 512, 128, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, OddSizes) { check_gemm({1, 70, 37, 45, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, BothTransposed) { check_gemm({1, 130, 150, 260, false, true, false, kB, 0, 1, 1}); }
TEST(Gemm, TransposedResult) { check_gemm({1, 140, 60, 70, false, false, true, kF, 0, 1, 1}); }
TEST(Gemm, ManyTiles) { check_gemm({1, 700, 1100, 300, true, false, false, kF, 0, 1, 1}); }
TEST(Gemm, ManyTilesTransposed) {
  check_gemm({1, 1100, 700, 300, false, true, false, kF, 0, 1, 1});
}
TEST(Gemm, SmallMemory) {
  check_gemm({1, 700, 600, 700, true, true, false, kF, 0, 1, 1, 64 * 1024});
}
TEST(Gemm, Bias) { check_gemm({1, 300, 520, 130, false, true, false, kB, 1, 1, 1}); }
TEST(Gemm, ScaledAddend) { check_gemm({1, 200, 600, 130, false, true, false, kF, 2, 0.5, 2}); }
TEST(Gemm, Batched) { check_gemm({3, 140, 50, 60, false, false, false, kF, 2, 1, 1}); }
TEST(Gemm, Vector) { check_gemm({1, 1, 200, 300, false, true, false, kF, 0, 1, 1}); }
TEST(Gemm, LongContraction) { check_gemm({1, 20, 30, 9000, false, true, false, kF, 2, 1, 1}); }

TEST(Gemm, UnequalPiecesOfTransposedRows) {
  check_gemm({1, 140, 150, 2200, false, true, false, kB, 0, 1, 1});
}
TEST(Gemm, ManyUnequalPiecesOfTransposedRows) {
  check_gemm({1, 130, 20, 5480, false, true, false, kB, 1, 1, 1});
}
/// True for a product [m, k] · [k, n] whose left side lies in memory as [k, m] if it passes through
/// HBM.
bool passes_through_hbm(std::int64_t m, std::int64_t k, std::int64_t n) {
  auto core = test_core();
  core.dma.hbm_interleave = Bytes(4096);
  core.dma.hbm_strided_efficiency = 0.25;
  ProgramBuilder builder("gemm", core);
  Gemm gemm;
  gemm.a = transposed(contiguous(builder.add_hbm("a", m * k * 2, 0), kB, {k, m}), 0, 1);
  gemm.b = contiguous(builder.add_hbm("b", k * n * 2, 1), kB, {k, n});
  gemm.c = contiguous(builder.add_hbm("c", m * n * 2, 2), kB, {m, n});
  lower_gemm(builder, builder.add_kernel({"mm", 0, 0, false}), gemm);
  const auto program = builder.finish();
  return std::any_of(program.buffers.begin(), program.buffers.end(),
                     [](const isa::Buffer& b) { return b.name == "scratch"; });
}

/// Panels of 8,192 rows of K leave room for short descriptors only.
TEST(Gemm, ALongContractionIsCutWhereThatMakesPanelsWider) {
  EXPECT_TRUE(passes_through_hbm(8192, 8192, 256));
  EXPECT_FALSE(passes_through_hbm(2048, 2048, 2048));
  check_gemm({1, 200, 150, 2304, true, false, false, kB, 0, 1, 1, 48 * 1024});
}

TEST(Gemm, DoubleBufferedBlocks) {
  check_gemm({1, 1100, 2100, 512, true, false, false, kB, 0, 1, 1, 32 * 1024});
}
TEST(Gemm, DoubleBufferedBlocksTransposed) {
  check_gemm({1, 1100, 1100, 640, false, false, false, kB, 1, 1, 1, 32 * 1024});
}
TEST(Gemm, Tiled) { check_tiling(GemmTiling::kTiled); }
TEST(Gemm, Hoisted) { check_tiling(GemmTiling::kHoisted); }
TEST(Gemm, BlockedFree) { check_tiling(GemmTiling::kBlockedFree); }

}  // namespace
}  // namespace trellis::device::testing
