// Rules that change how element-wise kernels and products are executed, not what they compute:
// numbers with and without each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/compiler/rules/graph_rules.h"
#include "tests/device/compiler/graph_fixture.h"

namespace trellis::device::testing {
namespace {

using sim::isa::Engine;
using sim::isa::Opcode;

/// Instructions in the queue of `engine` for `opcode`, with the turns of their
/// loops.
std::int64_t executions(const CompiledGraph& compiled, Engine engine, Opcode opcode,
                        bool (*wanted)(const sim::isa::Instruction&) = nullptr) {
  std::int64_t n = 0;
  for (const auto& segment : compiled.program.segments) {
    std::vector<std::int64_t> times{1};
    for (const auto& i : segment.queues[static_cast<std::size_t>(engine)]) {
      if (i.opcode == Opcode::kLoop) times.push_back(times.back() * i.count);
      if (i.opcode == Opcode::kEndLoop) times.pop_back();
      if (i.opcode == opcode && (wanted == nullptr || wanted(i))) n += times.back();
    }
  }
  return n;
}

// ── two windows alternately ──

/// A masked softmax whose mask is the same for all queries of a sequence.
struct MaskedSoftmax {
  MaskedSoftmax(std::int64_t batch, std::int64_t rows, std::int64_t columns, bool pairs)
      : batch_(batch), rows_(rows), columns_(columns) {
    g.core().compiler.paired_windows = pairs;
    x = g.input({batch, rows, columns});
    const std::uint32_t mask = g.input({batch, 1, columns}, DType::kBool),
                        masked = g.temporary({batch, rows, columns});
    out = g.output({batch, rows, columns});
    g.node("masked_fill.Scalar", {x, mask}, {masked}, "value=-1e9");
    g.node("_softmax", {masked}, {out}, "dim=-1 half_to_float=0");
    in = g.random(x, -1, 1);
    for (std::int64_t i = 0; i < batch * columns; ++i) hidden.push_back(i % 5 == 2 ? 1 : 0);
    g.set(mask, hidden);
    g.run();
  }

  [[nodiscard]] double want(std::int64_t i) const {
    const auto weight = [&](std::int64_t at) {
      const std::int64_t sequence = at / (rows_ * columns_);
      return hidden[static_cast<std::size_t>(sequence * columns_ + at % columns_)] != 0
                 ? 0
                 : std::exp(in[static_cast<std::size_t>(at)]);
    };
    double sum = 0;
    for (std::int64_t c = 0; c < columns_; ++c) sum += weight(i / columns_ * columns_ + c);
    return weight(i) / sum;
  }

  GraphFixture g;
  std::uint32_t x = 0, out = 0;
  Values in, hidden;

 private:
  std::int64_t batch_, rows_, columns_;
};

TEST(PairedWindows, ChangeNoNumber) {
  // Pairs of blocks of rows with one, none and a partial block left over; pairs of sequences;
  // neither.
  for (const auto& [batch, rows, columns] :
       {std::tuple{1, 640, 24}, {1, 512, 40}, {3, 700, 33}, {4, 96, 64}, {3, 100, 20}}) {
    MaskedSoftmax with(batch, rows, columns, true), without(batch, rows, columns, false);
    with.g.expect(with.out, [&](std::int64_t i) { return with.want(i); });
    EXPECT_EQ(with.g.result(with.out), without.g.result(without.out)) << rows;
  }
}

TEST(PairedWindows, TheSecondWindowsStepFollowsTheFirsts) {
  MaskedSoftmax with(1, 512, 1200, true),
      without(1, 512, 1200, false);  // too wide for several rows on a partition
  const auto largest_run = [](const CompiledGraph& compiled) {
    int run = 0, most = 0;
    for (const auto& i :
         compiled.program.segments[0].queues[static_cast<std::size_t>(Engine::kScalar)]) {
      run = i.opcode == Opcode::kActivation && i.activation == sim::isa::Activation::kExp ? run + 1
                                                                                          : 0;
      most = std::max(most, run);
    }
    return most;
  };
  EXPECT_EQ(largest_run(with.g.compiled()), 2);
  EXPECT_EQ(largest_run(without.g.compiled()), 1);
}

TEST(Chains, WhatAllRowsShareIsComputedOnce) {
  const auto compares = [](const sim::isa::Instruction& i) {
    return i.alu == sim::isa::AluOp::kEqual;
  };
  MaskedSoftmax m(4, 512, 600, true);
  EXPECT_EQ(executions(m.g.compiled(), Engine::kVector, Opcode::kTensorScalar, compares), 4)
      << "the mask of each sequence is transposed once";
}

// ── bf16 inside operations on bf16 ──

TEST(NarrowValues, OperationsOnBf16KeepBf16AndSumInFp32) {
  std::int64_t wide[2] = {};
  const std::int64_t rows = 200, columns = 3000;
  for (const bool narrow : {false, true}) {
    GraphFixture g;
    g.core().compiler.narrow_values = narrow;
    const std::uint32_t x = g.input({rows, columns}, DType::kBf16),
                        z = g.input({rows, columns}, DType::kBf16),
                        w = g.input({columns}, DType::kBf16);
    const std::uint32_t y = g.output({rows, columns}, DType::kBf16), sum = g.output({rows, 1});
    g.node("addcmul", {x, z, w}, {y}, "value=0.5");
    g.node("sum.dim_IntList", {x}, {sum}, "dim=[-1] keepdim=1");
    const Values in = g.random(x, -1, 2), other = g.random(z, -1, 1), weight = g.random(w, 0.5, 2);
    ASSERT_NO_FATAL_FAILURE(g.run());
    for (std::int64_t r = 0; r < rows; ++r) {
      double total = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<std::size_t>(r * columns + c);
        total += in[i];
        const double want = in[i] + 0.5 * other[i] * weight[static_cast<std::size_t>(c)];
        ASSERT_NEAR(g.result(y)[i], want, 0.02 * (1 + std::abs(want)));
      }
      ASSERT_NEAR(g.result(sum)[static_cast<std::size_t>(r)], total, 1e-5 * std::abs(total))
          << "a sum in bf16 would miss most of it";
    }
    wide[narrow] = executions(g.compiled(), Engine::kVector, Opcode::kTensorTensor,
                              [](const auto& i) { return i.dst.dtype == DType::kFp32; });
  }
  EXPECT_GT(wide[0], 0);
  EXPECT_EQ(wide[1], 0);
}

TEST(NarrowValues, OperationsOnFp32AndNormsStayFp32) {
  for (const auto& [op, dtype] : {std::pair{"native_layer_norm", DType::kFp32},
                                  {"native_layer_norm", DType::kBf16},
                                  {"_fused_rms_norm", DType::kBf16}}) {
    GraphFixture g;
    const std::uint32_t x = g.input({128, 256}, dtype), w = g.input({256}, dtype),
                        y = g.output({128, 256}, dtype);
    g.node(op, {x, w}, {y}, "normalized_shape=[256] eps=1e-5");
    g.random(x), g.random(w);
    ASSERT_NO_FATAL_FAILURE(g.run());
    const auto inside = [](const auto& i) {
      return i.activation == sim::isa::Activation::kSquare && i.dst.dtype == DType::kBf16;
    };
    EXPECT_EQ(executions(g.compiled(), Engine::kScalar, Opcode::kActivation, inside), 0) << op;
  }
}

// ── a product that is added to a tensor ──

/// acc += a b over [rows, columns], or acc += (a b)ᵀ; `others`: another node reads the product
/// too.
struct Accumulation {
  explicit Accumulation(bool transposed, bool others = false, DType acc_dtype = DType::kBf16) {
    a = g.input({kRows, kDepth}, DType::kBf16), b = g.input({kDepth, kColumns}, DType::kBf16);
    acc =
        transposed ? g.input({kColumns, kRows}, acc_dtype) : g.input({kRows, kColumns}, acc_dtype);
    const std::uint32_t product = others ? g.output({kRows, kColumns}, DType::kBf16)
                                         : g.temporary({kRows, kColumns}, DType::kBf16);
    g.node("mm", {a, b}, {product});
    std::uint32_t term = product;
    if (acc_dtype != DType::kBf16) {
      term = g.temporary({kRows, kColumns}, acc_dtype);
      g.node("_to_copy", {product}, {term}, "dtype=Float");
    }
    const std::uint32_t seen = transposed ? g.view(term, {kColumns, kRows}, {1, kColumns}) : term;
    g.node("add_.Tensor", {acc, seen}, {acc});
    in_a = g.random(a, -1, 1), in_b = g.random(b, -1, 1), in_acc = g.random(acc, -4, 4);
    transposed_ = transposed;
  }

  [[nodiscard]] double want(std::int64_t i) const {
    const std::int64_t row = transposed_ ? i % kRows : i / kColumns,
                       column = transposed_ ? i / kRows : i % kColumns;
    double sum = in_acc[static_cast<std::size_t>(i)];
    for (std::int64_t k = 0; k < kDepth; ++k)
      sum += in_a[static_cast<std::size_t>(row * kDepth + k)] *
             in_b[static_cast<std::size_t>(k * kColumns + column)];
    return sum;
  }

  static constexpr std::int64_t kRows = 136, kColumns = 260, kDepth = 192;
  GraphFixture g;
  std::uint32_t a = 0, b = 0, acc = 0;
  Values in_a, in_b, in_acc;

 private:
  bool transposed_ = false;
};

TEST(FusedSums, AProductIsAddedOnItsWayOut) {
  for (const bool transposed : {false, true}) {
    Accumulation with(transposed), without(transposed);
    ASSERT_NO_FATAL_FAILURE(with.g.run());
    ASSERT_EQ(with.g.compiled().program.kernels.size(), 1U);
    EXPECT_EQ(with.g.compiled().program.kernels[0].name, "addmm");
    with.g.expect(with.acc, [&](std::int64_t i) { return with.want(i); }, 1e-2);
    without.g.core().compiler.fused_results = false;
    ASSERT_NO_FATAL_FAILURE(without.g.run());
    EXPECT_EQ(without.g.compiled().program.kernels.size(), 2U);
    without.g.expect(without.acc, [&](std::int64_t i) { return without.want(i); }, 2e-2);
  }
}

double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_slope(double x) {
  return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

/// y = a b (+ bias), z = gelu(y); or y = (a b) · gelu'(x).
struct Activated {
  Activated(bool backward, bool biased, std::int64_t k, bool rules) : m(200), n(600), depth(k) {
    a = g.input({m, k}), b = g.input({k, n}),
    epilogue = g.input(backward ? GraphFixture::Sizes{m, n} : GraphFixture::Sizes{n});
    in_a = g.random(a, -0.25, 0.25), in_b = g.random(b, -0.25, 0.25),
    in_epilogue = g.random(epilogue);
    g.core().compiler.fused_results = rules;
    const std::uint32_t product = backward ? g.temporary({m, n}) : g.output({m, n});
    y = product, z = g.output({m, n});
    biased ? g.node("addmm", {g.view(epilogue, {m, n}, {0, 1}), a, b}, {product})
           : g.node("mm", {a, b}, {product});
    backward ? g.node("gelu_backward", {product, epilogue}, {z}) : g.node("gelu", {product}, {z});
  }
  double product(std::int64_t i, bool biased) const {
    double sum = biased ? in_epilogue[static_cast<std::size_t>(i % n)] : 0;
    for (std::int64_t d = 0; d < depth; ++d)
      sum += in_a[static_cast<std::size_t>(i / n * depth + d)] *
             in_b[static_cast<std::size_t>(d * n + i % n)];
    return sum;
  }

  GraphFixture g;
  std::int64_t m, n, depth;
  std::uint32_t a, b, epilogue, y, z;
  Values in_a, in_b, in_epilogue;
};

TEST(FusedResults, AGeluIsMadeOnTheWayOut) {
  for (const bool biased : {false, true}) {
    for (const bool rules : {false, true}) {
      Activated f(false, biased, 256, rules);
      ASSERT_NO_FATAL_FAILURE(f.g.run());
      EXPECT_EQ(f.g.compiled().program.kernels.size(), rules ? 1U : 2U);
      f.g.expect(f.y, [&](std::int64_t i) { return f.product(i, biased); }, 1e-2);
      f.g.expect(f.z, [&](std::int64_t i) { return gelu(f.product(i, biased)); }, 2e-2);
    }
  }
}

TEST(FusedResults, AGelusDerivativeTooAlsoWhereTheDepthIsCut) {
  for (const std::int64_t depth : {std::int64_t{256}, std::int64_t{5000}}) {
    for (const bool rules : {false, true}) {
      Activated f(true, false, depth, rules);
      ASSERT_NO_FATAL_FAILURE(f.g.run());
      f.g.expect(
          f.z,
          [&](std::int64_t i) {
            return f.product(i, false) * gelu_slope(f.in_epilogue[static_cast<std::size_t>(i)]);
          },
          3e-2);
    }
  }
  EXPECT_EQ(apply_rules(Activated(true, false, 256, true).g.graph(), {}).nodes[0].op,
            "mm_gelu_backward");
}

TEST(FusedSums, AProductWithAnotherReaderOrACastStays) {
  Accumulation others(false, true), cast(false, false, DType::kFp32);
  EXPECT_EQ(apply_rules(others.g.graph(), others.g.core().compiler).nodes[0].op, "mm");
  EXPECT_EQ(apply_rules(cast.g.graph(), cast.g.core().compiler).nodes[0].op, "mm");
}

TEST(FusedSums, ASumThatIsReadBeforeItIsMadeStays) {
  GraphFixture g;
  const std::uint32_t a = g.input({64, 64}), b = g.input({64, 64}), acc = g.input({64, 64}),
                      product = g.temporary({64, 64}), before = g.output({64, 64});
  g.node("mm", {a, b}, {product});
  g.node("mul.Tensor", {acc}, {before}, "other=2");
  g.node("add_.Tensor", {acc, product}, {acc});
  EXPECT_EQ(apply_rules(g.graph(), g.core().compiler).nodes[0].op, "mm");
}

TEST(FusedSums, AScaledProductStays) {
  GraphFixture g;
  const std::uint32_t a = g.input({64, 64}), b = g.input({64, 64}), acc = g.input({64, 64}),
                      product = g.temporary({64, 64});
  g.node("mm", {a, b}, {product});
  g.node("add_.Tensor", {acc, product}, {acc}, "alpha=0.5");
  EXPECT_EQ(apply_rules(g.graph(), g.core().compiler).nodes[0].op, "mm");
}

// ── products that are written where a copy would put them ──

/// Heads [batch · heads, rows, depth] of a product, copied to [rows, batch, heads · depth].
struct HeadsToRows {
  explicit HeadsToRows(bool read_elsewhere = false) {
    a = g.input({kBatch * kHeads, kRows, kInner}), b = g.input({kBatch * kHeads, kInner, kDepth});
    const Sizes made{kBatch * kHeads, kRows, kDepth};
    const std::uint32_t product = read_elsewhere ? g.output(made) : g.temporary(made);
    out = g.output({kRows, kBatch, kHeads * kDepth});
    g.node("bmm", {a, b}, {product});
    const Sizes order{kRows, kBatch, kHeads, kDepth};
    const std::uint32_t seen =
        g.view(product, order, {kDepth, kHeads * kRows * kDepth, kRows * kDepth, 1});
    g.node("_copy_from", {seen},
           {g.view(out, order, {kBatch * kHeads * kDepth, kHeads * kDepth, kDepth, 1})});
    in_a = g.random(a, -1, 1), in_b = g.random(b, -1, 1);
  }

  [[nodiscard]] double want(std::int64_t i) const {
    const std::int64_t d = i % kDepth, h = i / kDepth % kHeads,
                       batch = i / (kDepth * kHeads) % kBatch, row = i / (kDepth * kHeads * kBatch),
                       matrix = batch * kHeads + h;
    double sum = 0;
    for (std::int64_t k = 0; k < kInner; ++k) {
      sum += in_a[static_cast<std::size_t>((matrix * kRows + row) * kInner + k)] *
             in_b[static_cast<std::size_t>((matrix * kInner + k) * kDepth + d)];
    }
    return sum;
  }

  using Sizes = GraphFixture::Sizes;
  static constexpr std::int64_t kBatch = 3, kHeads = 4, kRows = 40, kDepth = 16, kInner = 24;
  GraphFixture g;
  std::uint32_t a = 0, b = 0, out = 0;
  Values in_a, in_b;
};

TEST(FoldedLayouts, AProductIsWrittenInTheOrderOfItsOnlyCopy) {
  for (const bool folded : {true, false}) {
    HeadsToRows heads;
    heads.g.core().compiler.batched_products = folded;
    ASSERT_NO_FATAL_FAILURE(heads.g.run());
    EXPECT_EQ(heads.g.compiled().program.kernels.size(), folded ? 1U : 2U);
    heads.g.expect(heads.out, [&](std::int64_t i) { return heads.want(i); }, 2e-3);
  }
}

TEST(FoldedLayouts, AProductWithAnotherReaderIsCopied) {
  HeadsToRows heads(true);
  ASSERT_NO_FATAL_FAILURE(heads.g.run());
  EXPECT_EQ(heads.g.compiled().program.kernels.size(), 2U);
  heads.g.expect(heads.out, [&](std::int64_t i) { return heads.want(i); }, 2e-3);
}

// ── what a kernel takes in from further up ──

TEST(Fusion, AnOperandIsMadeInTheKernelThatUsesItThoughAMaskIsBetween) {
  for (const bool between :
       {false, true}) {  // between: a node reads the operand before the mask is ready
    GraphFixture g;
    const std::uint32_t x = g.input({64, 48}), allowed = g.input({48}, DType::kBool),
                        twice = g.temporary({64, 48}), masked = g.temporary({48}, DType::kBool),
                        out = g.output({64, 48});
    const std::uint32_t early = g.output({48, 64});
    g.node("mul.Tensor", {x}, {twice}, "other=2");
    if (between) g.node("_copy_from", {g.view(twice, {48, 64}, {1, 48})}, {early});
    g.node("logical_not", {allowed}, {masked});
    g.node("masked_fill.Scalar", {twice, masked}, {out}, "value=-7");
    const Values in = g.random(x);
    Values may;
    for (int i = 0; i < 48; ++i) may.push_back(i % 3 == 0 ? 0 : 1);
    g.set(allowed, may);
    ASSERT_NO_FATAL_FAILURE(g.run());
    g.expect(out, [&](std::int64_t i) {
      return may[static_cast<std::size_t>(i % 48)] != 0 ? 2 * in[static_cast<std::size_t>(i)] : -7;
    });
    EXPECT_EQ(g.compiled().program.kernels.size(), between ? 4U : 2U);
  }
}

// ── an optimizer's update ──

TEST(Optimizer, EveryStepOfItsUpdateIsAPassOverHbm) {
  const std::int64_t rows = 300, columns = 40;
  std::int64_t stores[3] = {};
  int form = 0;
  for (const auto& [name, fused] :
       {std::pair{"optimizer", false}, {"optimizer", true}, {"forward", false}}) {
    GraphFixture g;
    g.core().compiler.fused_optimizer = fused;
    g.graph().name = name;
    const std::uint32_t p = g.input({rows, columns}), grad = g.input({rows, columns}),
                        m = g.input({rows, columns}), v = g.input({rows, columns}),
                        step = g.input({});
    g.node("_fused_adamw_", {p, grad, m, v, step}, {p, m, v},
           "lr=0.1 beta1=0.9 beta2=0.99 weight_decay=0.01 eps=1e-08 amsgrad=0 maximize=0");
    const Values weights = g.random(p), gradient = g.random(grad), first = g.random(m),
                 second = g.random(v, 1, 2);
    g.set(step, {3});
    ASSERT_NO_FATAL_FAILURE(g.run());
    const auto moment = [&](std::size_t i) { return 0.9 * first[i] + 0.1 * gradient[i]; };
    const auto square = [&](std::size_t i) {
      return 0.99 * second[i] + 0.01 * gradient[i] * gradient[i];
    };
    g.expect(m, [&](std::int64_t i) { return moment(static_cast<std::size_t>(i)); });
    g.expect(v, [&](std::int64_t i) { return square(static_cast<std::size_t>(i)); });
    g.expect(
        p,
        [&](std::int64_t n) {
          const auto i = static_cast<std::size_t>(n);
          return weights[i] * (1 - 0.1 * 0.01) -
                 0.1 / (1 - std::pow(0.9, 3)) * moment(i) /
                     (std::sqrt(square(i) / (1 - std::pow(0.99, 3))) + 1e-8);
        },
        1e-3);
    stores[form++] = executions(g.compiled(), Engine::kGpSimd, Opcode::kDma);
  }
  EXPECT_GE(stores[0], 4 * stores[1]);
  EXPECT_EQ(stores[1], stores[2]);
}

}  // namespace
}  // namespace trellis::device::testing
