// Layer norms and their derivatives against the formula, on rows of any length: in one piece,
// several on a partition, and walked once per stage.
#include <cmath>

#include "tests/device/compiler/graph_fixture.h"

namespace trellis::device::testing {
namespace {

using sim::isa::Engine;
using sim::isa::Opcode;

struct NormCase {
  std::int64_t rows, columns;
  DType dtype = DType::kFp32;
  std::int64_t sbuf = 192 * 1024;
  double low = -2, high = 2;  ///< of x
};

/// Statistics of a row's elements.
struct Moments {
  double mean = 0, rstd = 0;
};

std::vector<Moments> moments(const Values& x, std::int64_t columns, double eps) {
  std::vector<Moments> out;
  for (std::size_t first = 0; first < x.size(); first += static_cast<std::size_t>(columns)) {
    Moments m;
    double squares = 0;
    for (std::int64_t c = 0; c < columns; ++c)
      m.mean += x[first + static_cast<std::size_t>(c)] / static_cast<double>(columns);
    for (std::int64_t c = 0; c < columns; ++c)
      squares += std::pow(x[first + static_cast<std::size_t>(c)] - m.mean, 2);
    m.rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + eps);
    out.push_back(m);
  }
  return out;
}

std::string shape_of(const NormCase& c) {
  return "normalized_shape=[" + std::to_string(c.columns) + "] eps=1e-5";
}

double tolerance_of(DType dtype) { return dtype == DType::kFp32 ? 1e-3 : 0.02; }

struct Forward {
  explicit Forward(const NormCase& c, DType weights = DType::kFp32) : g(c.sbuf) {
    x = g.input({c.rows, c.columns}, c.dtype), w = g.input({c.columns}, weights),
    b = g.input({c.columns}, c.dtype);
    y = g.output({c.rows, c.columns}, c.dtype), mean = g.output({c.rows, 1}),
    rstd = g.output({c.rows, 1});
    g.node("native_layer_norm", {x, w, b}, {y, mean, rstd}, shape_of(c));
    in = g.random(x, c.low, c.high), weight = g.random(w, 0.5, 2), bias = g.random(b, -1, 1);
  }
  GraphFixture g;
  std::uint32_t x = 0, w = 0, b = 0, y = 0, mean = 0, rstd = 0;
  Values in, weight, bias;
};

void expect_forward(const NormCase& c, double tolerance) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.columns);
  Forward f(c);
  ASSERT_NO_FATAL_FAILURE(f.g.run());
  const auto m = moments(f.in, c.columns, 1e-5);
  f.g.expect(f.mean, [&](std::int64_t i) { return m[static_cast<std::size_t>(i)].mean; });
  f.g.expect(f.rstd, [&](std::int64_t i) { return m[static_cast<std::size_t>(i)].rstd; }, 1e-3);
  const auto want = [&](std::int64_t i) {
    const auto& row = m[static_cast<std::size_t>(i / c.columns)];
    const auto column = static_cast<std::size_t>(i % c.columns);
    return (f.in[static_cast<std::size_t>(i)] - row.mean) * row.rstd * f.weight[column] +
           f.bias[column];
  };
  f.g.expect(f.y, want, tolerance);
}

TEST(LayerNorm, RowsOfAnyLength) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const auto& [rows, columns] : {std::pair{1, 1},
                                        {3, 5},
                                        {130, 33},
                                        {300, 512},
                                        {260, 513},
                                        {512, 768},
                                        {513, 100},
                                        {1024, 64},
                                        {257, 1500},
                                        {128, 2560}}) {
      expect_forward({rows, columns, dtype}, tolerance_of(dtype));
    }
  }
}

/// Small SBUF: the rows are walked once per stage.
TEST(LayerNorm, RowsThatDoNotFit) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const std::int64_t columns : {1500, 2049})
      expect_forward({130, columns, dtype, 16 * 1024}, tolerance_of(dtype));
  }
}

/// The mean of the squares less the square of the mean would have no digit left. What is left of
/// the mean's last digit, 0.0005, is 0.01 deviations.
TEST(LayerNorm, ALargeMeanAndASmallVariance) {
  for (const std::int64_t columns : {512, 700, 1300})
    expect_forward({140, columns, DType::kFp32, 192 * 1024, 8190, 8190.25}, 0.01);
}

struct Backward {
  explicit Backward(const NormCase& c, bool of_weights = true) : g(c.sbuf) {
    grad = g.input({c.rows, c.columns}, c.dtype), x = g.input({c.rows, c.columns}, c.dtype),
    w = g.input({c.columns}, c.dtype), b = g.input({c.columns}, c.dtype);
    mean = g.input({c.rows, 1}), rstd = g.input({c.rows, 1});
    dx = g.output({c.rows, c.columns}, c.dtype), dw = g.output({c.columns}, c.dtype),
    db = g.output({c.columns}, c.dtype);
    g.node("native_layer_norm_backward", {grad, x, mean, rstd, w, b},
           of_weights ? std::vector{dx, dw, db} : std::vector{dx},
           "normalized_shape=[" + std::to_string(c.columns) + "]");
    dy = g.random(grad, -1, 1), in = g.random(x, c.low, c.high), weight = g.random(w, 0.5, 2),
    g.random(b);
    Values means, rstds;
    for (Moments& m : statistics = moments(in, c.columns, 1e-5))
      means.push_back(m.mean), rstds.push_back(m.rstd);
    g.set(mean, means), g.set(rstd, rstds);
  }
  GraphFixture g;
  std::uint32_t grad = 0, x = 0, w = 0, b = 0, mean = 0, rstd = 0, dx = 0, dw = 0, db = 0;
  Values dy, in, weight;
  std::vector<Moments> statistics;
};

void expect_backward(const NormCase& c) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.columns);
  Backward t(c);
  ASSERT_NO_FATAL_FAILURE(t.g.run());
  const auto at = [&](std::int64_t r, std::int64_t k) {
    return static_cast<std::size_t>(r * c.columns + k);
  };
  const auto normal = [&](std::int64_t r, std::int64_t k) {
    return (t.in[at(r, k)] - t.statistics[static_cast<std::size_t>(r)].mean) *
           t.statistics[static_cast<std::size_t>(r)].rstd;
  };
  Values mean_g, mean_gx;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double g = 0, gx = 0;
    for (std::int64_t k = 0; k < c.columns; ++k) {
      const double one = t.dy[at(r, k)] * t.weight[static_cast<std::size_t>(k)];
      g += one, gx += one * normal(r, k);
    }
    mean_g.push_back(g / static_cast<double>(c.columns)),
        mean_gx.push_back(gx / static_cast<double>(c.columns));
  }
  const auto want = [&](std::int64_t i) {
    const std::int64_t r = i / c.columns, k = i % c.columns;
    const auto row = static_cast<std::size_t>(r);
    return t.statistics[row].rstd * (t.dy[at(r, k)] * t.weight[static_cast<std::size_t>(k)] -
                                     mean_g[row] - normal(r, k) * mean_gx[row]);
  };
  t.g.expect(t.dx, want, tolerance_of(c.dtype));
  const auto column_sum = [&](std::int64_t k, bool scaled) {
    double sum = 0;
    for (std::int64_t r = 0; r < c.rows; ++r) sum += t.dy[at(r, k)] * (scaled ? normal(r, k) : 1);
    return sum;
  };
  const double of_sums =
      c.dtype == DType::kFp32
          ? 1e-3
          : 0.01 * std::sqrt(static_cast<double>(c.rows));  // each term is rounded
  t.g.expect(t.dw, [&](std::int64_t k) { return column_sum(k, true); }, of_sums);
  t.g.expect(t.db, [&](std::int64_t k) { return column_sum(k, false); }, of_sums);
}

TEST(LayerNorm, DerivativesOfRowsOfAnyLength) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const auto& [rows, columns] :
         {std::pair{2, 7}, {130, 33}, {260, 513}, {512, 768}, {513, 100}, {257, 1500}, {128, 2560}})
      expect_backward({rows, columns, dtype});
  }
}
TEST(LayerNorm, DerivativesOfRowsThatDoNotFit) {
  for (const DType dtype : {DType::kFp32, DType::kBf16})
    expect_backward({130, 1500, dtype, 16 * 1024});
}

/// The gradients of weight and bias read what arrives once.
TEST(LayerNorm, SumsOverLeadingDimensionsOfTheSameTensorAreOneKernel) {
  Backward t({300, 600, DType::kBf16});
  ASSERT_NO_FATAL_FAILURE(t.g.run());
  std::vector<std::string> names;
  for (const auto& kernel : t.g.compiled().program.kernels) names.push_back(kernel.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"layer_norm_dx", "fused[layer_norm_dweight,norm_dbias]"}));
}

// ── what they cost ──

/// Elements that the instructions of an engine write, per element of the tensor; the numbers per
/// row do not count.
double passes(const CompiledGraph& compiled, Engine engine, const NormCase& c) {
  double elements = 0;
  for (const auto& segment : compiled.program.segments) {
    std::vector<double> times{1};
    for (const auto& i : segment.queues[static_cast<std::size_t>(engine)]) {
      if (i.opcode == Opcode::kLoop) times.push_back(times.back() * static_cast<double>(i.count));
      if (i.opcode == Opcode::kEndLoop) times.pop_back();
      if (i.opcode < Opcode::kTensorTensor || i.opcode >= Opcode::kDma ||
          i.dst.elements_per_partition() <= 2)
        continue;
      elements += times.back() * static_cast<double>(i.dst.elements());
    }
  }
  return elements / static_cast<double>(c.rows * c.columns);
}

/// Vector only meets what Scalar cannot do, two tensors: weight and bias. Scalar makes the sum, the
/// squares' and x − mean times the deviation's inverse.
TEST(LayerNorm, VectorMakesTwoPassesAndScalarThree) {
  for (const std::int64_t columns : {768, 4096}) {
    const NormCase c{512, columns, DType::kBf16};
    Forward f(c);
    ASSERT_NO_FATAL_FAILURE(f.g.run());
    EXPECT_NEAR(passes(f.g.compiled(), Engine::kVector, c), 2, 1e-9);
    EXPECT_NEAR(passes(f.g.compiled(), Engine::kScalar, c), 3, 1e-9);
  }
}

TEST(LayerNorm, TheDerivativeTakesVectorThreePassesAndScalarFour) {
  for (const std::int64_t columns : {768, 4096}) {
    const NormCase c{512, columns, DType::kBf16};
    Backward t(c, false);
    ASSERT_NO_FATAL_FAILURE(t.g.run());
    EXPECT_NEAR(passes(t.g.compiled(), Engine::kVector, c), 3, 1e-9);
    EXPECT_NEAR(passes(t.g.compiled(), Engine::kScalar, c), 4, 1e-9);
  }
}

}  // namespace
}  // namespace trellis::device::testing
