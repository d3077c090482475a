#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/compiler/rules/graph_rules.h"
#include "tests/device/compiler/graph_fixture.h"

namespace trellis::device::testing {
namespace {

using Sizes = GraphFixture::Sizes;
using sim::isa::Opcode;

std::vector<std::string> kernel_names(const CompiledGraph& compiled) {
  std::vector<std::string> names;
  for (const auto& kernel : compiled.program.kernels) names.push_back(kernel.name);
  return names;
}

std::int64_t times_executed(const CompiledGraph& compiled, Opcode opcode) {
  std::int64_t n = 0;
  for (const auto& segment : compiled.program.segments) {
    for (const auto& queue : segment.queues) {
      std::vector<std::int64_t> times{1};
      for (const auto& i : queue) {
        if (i.opcode == Opcode::kLoop) times.push_back(times.back() * i.count);
        if (i.opcode == Opcode::kEndLoop) times.pop_back();
        if (i.opcode == opcode) n += times.back();
      }
    }
  }
  return n;
}

// ── attention ──

/// Explicit attention as LibTorch records it, and its derivative: [heads, rows, depth].
struct ExplicitAttention {
  explicit ExplicitAttention(bool causal, std::int64_t heads = 3, std::int64_t rows = 160,
                             std::int64_t depth = 32, double factor = 1)
      : causal_(causal), heads_(heads), rows_(rows), depth_(depth), factor_(factor) {
    q = g.input({heads, rows, depth}), k = g.input({heads, rows, depth}),
    v = g.input({heads, rows, depth}), grad_out = g.input({heads, rows, depth});
  }

  /// `saved`: another node reads the probabilities.
  void forward(bool saved = false) {
    const std::uint32_t scores = square(DType::kFp32), masked = square(DType::kFp32),
                        scaled = square(DType::kFp32);
    probabilities = saved ? g.output({heads_, rows_, rows_}) : square(DType::kFp32);
    narrow = square(DType::kBf16);
    out = g.output({heads_, rows_, depth_});
    g.node("bmm", {q, transposed(k)}, {scores});
    std::uint32_t last = scores;
    if (factor_ != 1)
      g.node("mul.Tensor", {scores}, {scaled}, "other=" + std::to_string(factor_)), last = scaled;
    if (causal_) {
      make_mask();
      g.node("masked_fill.Scalar", {last, mask}, {masked}, "value=-inf"), last = masked;
    }
    g.node("_softmax", {last}, {probabilities}, "dim=-1 half_to_float=0");
    g.node("_to_copy", {probabilities}, {narrow});
    g.node("bmm", {narrow, v}, {out});
  }

  void backward() {
    grad_q = g.output({heads_, rows_, depth_}), grad_k = g.output({heads_, depth_, rows_}),
    grad_v = g.output({heads_, rows_, depth_});
    const std::uint32_t grad_p = square(DType::kBf16), wide = square(DType::kFp32),
                        grad_s = square(DType::kFp32), masked = square(DType::kFp32),
                        scaled = square(DType::kFp32);
    g.node("bmm", {grad_out, transposed(v)}, {grad_p});
    g.node("bmm", {transposed(narrow), grad_out}, {grad_v});
    g.node("_to_copy", {grad_p}, {wide});
    g.node("_softmax_backward_data", {wide, probabilities}, {grad_s}, "dim=-1 input_dtype=Float");
    std::uint32_t last = grad_s;
    if (causal_) g.node("masked_fill.Scalar", {last, mask}, {masked}, "value=0"), last = masked;
    if (factor_ != 1)
      g.node("mul.Tensor", {last}, {scaled}, "other=" + std::to_string(factor_)), last = scaled;
    g.node("bmm", {last, k}, {grad_q});
    g.node("bmm", {transposed(q), last}, {grad_k});
  }

  /// triu has no executable form: the single operations get the same mask from outside.
  void make_mask() {
    if (mask_from_outside) {
      mask = g.input({rows_, rows_}, DType::kBool);
      Values above;
      for (std::int64_t i = 0; i < rows_ * rows_; ++i)
        above.push_back(i % rows_ > i / rows_ ? 1 : 0);
      return g.set(mask, above);
    }
    mask = g.temporary({rows_, rows_}, DType::kBool);
    g.node("fill_.Scalar", {mask}, {mask}, "value=1");
    g.node("triu_", {mask}, {mask}, "diagonal=1");
  }

  std::uint32_t square(DType dtype) { return g.temporary({heads_, rows_, rows_}, dtype); }
  std::uint32_t transposed(std::uint32_t value) {
    const Sizes sizes = g.graph().values[value].view.sizes;
    return g.view(value, {sizes[0], sizes[2], sizes[1]}, {sizes[1] * sizes[2], 1, sizes[2]});
  }

  GraphFixture g;
  bool mask_from_outside = false;
  std::uint32_t q = 0, k = 0, v = 0, grad_out = 0, mask = 0, probabilities = 0, narrow = 0, out = 0,
                grad_q = 0, grad_k = 0, grad_v = 0;

 private:
  bool causal_;
  std::int64_t heads_, rows_, depth_;
  double factor_;
};

class FusedAttention : public ::testing::TestWithParam<bool> {};

TEST_P(FusedAttention, GivesTheNumbersOfTheSingleOperations) {
  for (const double factor : {1.0, 0.5}) {
    std::vector<Values> results[2];
    for (const bool fused : {false, true}) {
      ExplicitAttention a(GetParam(), 3, 160, 32, factor);
      a.g.core().compiler.fused_attention = fused;
      a.mask_from_outside = !fused;
      a.forward();
      a.backward();
      for (const std::uint32_t value : {a.q, a.k, a.v, a.grad_out}) a.g.random(value, -1, 1);
      ASSERT_NO_FATAL_FAILURE(a.g.run());
      const auto names = kernel_names(a.g.compiled());
      EXPECT_EQ(std::count(names.begin(), names.end(), "flash_attention"), fused ? 1 : 0);
      EXPECT_EQ(std::count(names.begin(), names.end(), "flash_attention_backward"), fused ? 1 : 0);
      EXPECT_EQ(std::count(names.begin(), names.end(), "bmm"), fused ? 0 : 6);
      for (const std::uint32_t value : {a.out, a.grad_q, a.grad_k, a.grad_v})
        results[fused].push_back(a.g.result(value));
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      for (std::size_t e = 0; e < results[0][i].size(); ++e) {
        ASSERT_NEAR(results[0][i][e], results[1][i][e], 0.02 * (1 + std::abs(results[0][i][e])))
            << "factor " << factor << " result " << i << " element " << e;
      }
    }
  }
}

TEST_P(FusedAttention, WithoutABackwardAlone) {
  ExplicitAttention a(GetParam());
  a.forward();
  for (const std::uint32_t value : {a.q, a.k, a.v}) a.g.random(value, -1, 1);
  ASSERT_NO_FATAL_FAILURE(a.g.run());
  EXPECT_THAT(kernel_names(a.g.compiled()), ::testing::ElementsAre("flash_attention"))
      << "the mask that no one reads is not made";
}

INSTANTIATE_TEST_SUITE_P(Masks, FusedAttention, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "causal" : "whole"; });

TEST(FusedAttentionLimits, ProbabilitiesWithAReaderAreMade) {
  ExplicitAttention a(true);
  a.forward(/*saved=*/true);
  const Graph ruled = apply_rules(a.g.graph(), {});
  EXPECT_EQ(std::count_if(ruled.nodes.begin(), ruled.nodes.end(),
                          [](const Node& n) { return n.op == "bmm"; }),
            2);
}

TEST(FusedAttentionLimits, AMaskThatIsNotTheDiagonalStays) {
  ExplicitAttention a(true);
  a.forward();
  for (Node& node : a.g.graph().nodes) {
    if (node.op == "triu_") node.scalars = "diagonal=2";
  }
  const Graph ruled = apply_rules(a.g.graph(), {});
  EXPECT_EQ(std::count_if(ruled.nodes.begin(), ruled.nodes.end(),
                          [](const Node& n) { return n.op == "bmm"; }),
            2);
}

TEST(Rules, ApplyOnceAndKeepNodeNumbers) {
  ExplicitAttention a(true);
  a.forward();
  a.backward();
  const Graph once = apply_rules(a.g.graph(), {}), twice = apply_rules(once, {});
  EXPECT_EQ(once.nodes.size(), a.g.graph().nodes.size());
  EXPECT_EQ(once.hash(), twice.hash());
  EXPECT_NE(once.hash(), a.g.graph().hash());
}

// ── dead code ──

/// y = a b; r = reduce-scatter of c d, which is waited for; no one reads r.
Graph with_dead_end(sim::CollectiveKind kind, bool waited, bool read,
                    const std::string& name = "backward") {
  GraphFixture g;
  const std::uint32_t a = g.input({64, 64}), product = g.temporary({64, 64}),
                      moved = g.temporary({64, 64}), kept = g.output({64, 64});
  g.node("mm", {a, a}, {product});
  g.graph().comms.push_back(
      {kind, "tp", 2, 1, 0, kind == sim::CollectiveKind::kSendRecv, 4096, DType::kFp32});
  Node& start = g.node("", {product}, {moved});
  start.kind = Node::Kind::kCommStart, start.comm = 0;
  if (waited) {
    Node& wait = g.node("", {}, {});
    wait.kind = Node::Kind::kCommWait, wait.comm = 0;
  }
  g.node("mm", {a, read ? moved : a}, {kept});
  g.graph().name = name;
  return g.graph();
}

int absorbed(const Graph& graph, bool rule) {
  sim::CompilerRules rules;
  rules.dead_code_elimination = rule;
  int count = 0;
  for (const Node& node : apply_rules(graph, rules).nodes) count += node.op == kAbsorbedOp;
  return count;
}

TEST(DeadCode, UnusedResultsAreNeitherComputedNorMoved) {
  EXPECT_EQ(absorbed(with_dead_end(sim::CollectiveKind::kReduceScatter, true, false), true), 3)
      << "product, start and wait";
  EXPECT_EQ(absorbed(with_dead_end(sim::CollectiveKind::kReduceScatter, true, false), false), 0);
  EXPECT_EQ(absorbed(with_dead_end(sim::CollectiveKind::kReduceScatter, true, true), true), 0);
  EXPECT_EQ(
      absorbed(with_dead_end(sim::CollectiveKind::kReduceScatter, true, false, "other"), true), 0)
      << "someone may measure it";
}

TEST(DeadCode, WhatOthersNeedStays) {
  EXPECT_EQ(absorbed(with_dead_end(sim::CollectiveKind::kSendRecv, true, false), true), 0)
      << "the peer reads it";
  EXPECT_EQ(absorbed(with_dead_end(sim::CollectiveKind::kReduceScatter, false, false), true), 0)
      << "another graph waits for it";
}

// ── batched products ──

struct Product {
  std::int64_t batch, m, k, n;
  bool heads_inside;  ///< [rows, batch, columns] as attention has its heads, else [batch, rows,
                      ///< columns]
  bool a_transposed, b_transposed;
  DType dtype = DType::kFp32;
};

std::uint32_t matrices(GraphFixture& g, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                       const Product& p, bool transposed, bool result) {
  const std::int64_t r = transposed ? columns : rows, c = transposed ? rows : columns;
  const std::uint32_t whole =
      result ? g.output({batch * r * c}, p.dtype) : g.input({batch * r * c}, p.dtype);
  const std::int64_t batch_stride = p.heads_inside ? c : r * c,
                     row_stride = p.heads_inside ? batch * c : c;
  return g.view(
      whole, {batch, rows, columns},
      transposed ? Sizes{batch_stride, 1, row_stride} : Sizes{batch_stride, row_stride, 1});
}

class BatchedProducts : public ::testing::TestWithParam<Product> {};

TEST_P(BatchedProducts, GiveTheNumbersWithFewerTransfers) {
  const Product p = GetParam();
  std::int64_t transfers[2] = {};
  for (const bool batched : {false, true}) {
    GraphFixture g;
    g.core().compiler.batched_products = batched;
    const std::uint32_t a = matrices(g, p.batch, p.m, p.k, p, p.a_transposed, false),
                        b = matrices(g, p.batch, p.k, p.n, p, p.b_transposed, false);
    const std::uint32_t c = matrices(g, p.batch, p.m, p.n, p, false, true);
    g.node("bmm", {a, b}, {c});
    const Values x = g.random(a, -1, 1), y = g.random(b, -1, 1);
    ASSERT_NO_FATAL_FAILURE(g.run());
    const auto at = [&](std::uint32_t value, std::int64_t i, std::int64_t r, std::int64_t col) {
      const TensorView& v = g.graph().values[value].view;
      return static_cast<std::size_t>(i * v.strides[0] + r * v.strides[1] + col * v.strides[2]);
    };
    for (std::int64_t i = 0; i < p.batch; ++i) {
      for (std::int64_t r = 0; r < p.m; ++r) {
        for (std::int64_t col = 0; col < p.n; ++col) {
          double sum = 0;
          for (std::int64_t d = 0; d < p.k; ++d) sum += x[at(a, i, r, d)] * y[at(b, i, d, col)];
          ASSERT_NEAR(g.result(c)[at(c, i, r, col)], sum, 0.01 * (1 + std::abs(sum)))
              << batched << " " << i << " " << r << " " << col;
        }
      }
    }
    transfers[batched] = times_executed(g.compiled(), Opcode::kDma);
  }
  EXPECT_LE(2 * transfers[1], transfers[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BatchedProducts,
    ::testing::Values(Product{9, 40, 24, 40, true, false, true},
                      Product{9, 40, 24, 40, false, false, true},
                      Product{70, 16, 8, 24, true, true, false},
                      Product{6, 200, 64, 200, true, false, true, DType::kBf16},
                      Product{5, 130, 140, 36, true, false, false},
                      Product{5, 130, 140, 36, false, true, false, DType::kBf16}));

/// Softmax and its derivative over rows so short that a partition takes several of them.
TEST(GroupedRows, GiveTheNumbersWithFewerInstructions) {
  for (const std::int64_t columns : {24, 200}) {
    const std::int64_t rows = 1024;
    std::int64_t executed[2] = {};
    for (const bool grouped : {false, true}) {
      GraphFixture g;
      g.core().compiler.batched_products = grouped;
      const std::uint32_t x = g.input({rows, columns}), p = g.output({rows, columns}),
                          narrow = g.output({rows, columns}, DType::kBf16),
                          most = g.output({rows, 1});
      const std::uint32_t weight = g.input({columns}), grad = g.temporary({rows, columns}),
                          out = g.output({rows, columns});
      g.node("_softmax", {x}, {p}, "dim=-1 half_to_float=0");
      g.node("amax", {p}, {most}, "dim=[-1] keepdim=1");
      g.node("_to_copy", {p}, {narrow});
      g.node("mul.Tensor", {x, weight}, {grad});
      g.node("_softmax_backward_data", {grad, p}, {out}, "dim=-1 input_dtype=Float");
      const Values in = g.random(x, -1, 1), w = g.random(weight, -1, 1);
      ASSERT_NO_FATAL_FAILURE(g.run());
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto at = [&](std::int64_t c) { return static_cast<std::size_t>(r * columns + c); };
        double sum = 0, top = 0, inner = 0;
        for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(in[at(c)]);
        for (std::int64_t c = 0; c < columns; ++c) {
          const double want = std::exp(in[at(c)]) / sum;
          top = std::max(top, want);
          inner += want * in[at(c)] * w[static_cast<std::size_t>(c)];
          ASSERT_NEAR(g.result(p)[at(c)], want, 1e-4);
          ASSERT_NEAR(g.result(narrow)[at(c)], want, 1e-2 * want);
        }
        ASSERT_NEAR(g.result(most)[static_cast<std::size_t>(r)], top, 1e-4);
        for (std::int64_t c = 0; c < columns; ++c) {
          ASSERT_NEAR(
              g.result(out)[at(c)],
              std::exp(in[at(c)]) / sum * (in[at(c)] * w[static_cast<std::size_t>(c)] - inner),
              1e-4);
        }
      }
      executed[grouped] = times_executed(g.compiled(), Opcode::kTensorReduce);
    }
    EXPECT_LE(2 * executed[1], executed[0]);
  }
}

// ── stochastic rounding ──

TEST(RoundingCasts, ArithmeticOnBitsBecomesTheCast) {
  std::int64_t multiplications[2] = {};
  for (const bool mode : {false, true}) {
    GraphFixture g;
    g.core().compiler.rounding_casts = mode;
    const std::uint32_t x = g.input({64, 32}), noise = g.input({64, 32}, DType::kInt32);
    const std::uint32_t bits = g.temporary({64, 32}, DType::kInt32),
                        noisy = g.temporary({64, 32}, DType::kInt32),
                        out = g.output({64, 32}, DType::kBf16);
    const auto seen_as = [&](std::uint32_t value, DType dtype) {
      TensorView view = g.graph().values[value].view;
      view.dtype = dtype;
      return g.value(g.graph().values[value].buffer, view);
    };
    g.node("clone", {seen_as(x, DType::kInt32)}, {noisy});
    g.node("mul.Tensor", {noise}, {bits}, "other=5");
    g.node("bitwise_and.Scalar", {bits}, {bits}, "other=65535");
    g.node("add_.Tensor", {noisy, bits}, {noisy});
    g.node("bitwise_and_.Scalar", {noisy}, {noisy}, "other=-65536");
    g.node("_to_copy", {seen_as(noisy, DType::kFp32)}, {out}, "dtype=BFloat16");
    const Values in = g.random(x);
    g.set(noise, Values(64 * 32, 3));
    const Graph ruled = apply_rules(g.graph(), g.core().compiler);
    multiplications[mode] = std::count_if(ruled.nodes.begin(), ruled.nodes.end(),
                                          [](const Node& n) { return n.op != kAbsorbedOp; });
    if (!mode) continue;
    ASSERT_NO_FATAL_FAILURE(g.run());
    g.expect(out, [&](std::int64_t i) { return in[static_cast<std::size_t>(i)]; });
  }
  EXPECT_EQ(multiplications[0], 6);
  EXPECT_EQ(multiplications[1], 1);
}

// ── random masks ──

TEST(FusedRandom, PiecesOfAMaskAreOneDrawWhereTheMaskIsUsed) {
  GraphFixture g;
  const std::uint32_t x = g.input({64, 96}), mask = g.output({64, 96}, DType::kBool),
                      out = g.output({64, 96});
  std::vector<std::uint32_t> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back(g.temporary({16, 96}, DType::kBool));
    g.node("bernoulli_.float", {parts.back()}, {parts.back()}, "p=0.75");
  }
  g.node("cat", parts, {mask}, "dim=0");
  g.node("mul.Tensor", {x, mask}, {out});
  const Values in = g.random(x, 1, 2);
  ASSERT_NO_FATAL_FAILURE(g.run());
  EXPECT_EQ(g.compiled().program.kernels.size(), 1U);
  EXPECT_EQ(g.compiled().estimated, std::vector<std::string>{});
  const Values& kept = g.result(mask);
  g.expect(out, [&](std::int64_t i) {
    return in[static_cast<std::size_t>(i)] * kept[static_cast<std::size_t>(i)];
  });
  const double share = static_cast<double>(std::count(kept.begin(), kept.end(), 1.0)) /
                       static_cast<double>(kept.size());
  EXPECT_NEAR(share, 0.75, 4 * std::sqrt(0.75 * 0.25 / static_cast<double>(kept.size())));
}

std::int64_t scratch_bytes(const CompiledGraph& compiled) {
  std::int64_t bytes = 0;
  for (const auto& b : compiled.program.buffers) bytes += b.name == "scratch" ? b.bytes : 0;
  return bytes;
}

/// Switched off, a draw is a separate operation, whose words of 32 bits pass through HBM; what
/// it means stays. Also where the sum over rows of what is kept is a product.
TEST(FusedRandom, SwitchedOffItsWordsPassThroughHbm) {
  for (const bool fused : {true, false}) {
    GraphFixture g;
    const std::int64_t rows = 64, columns = 96;
    g.core().compiler.fused_random = fused;
    const std::uint32_t x = g.input({rows, columns}), mask = g.output({rows, columns}),
                        kept = g.temporary({rows, columns}), sum = g.output({1, columns});
    g.node("bernoulli_.float", {mask}, {mask}, "p=0.75");
    g.node("mul.Tensor", {x, mask}, {kept});
    g.node("sum.dim_IntList", {kept}, {sum}, "dim=[0] keepdim=1");
    const Values in = g.random(x, 1, 2);
    ASSERT_NO_FATAL_FAILURE(g.run());
    EXPECT_EQ(g.compiled().estimated, std::vector<std::string>{});
    EXPECT_EQ(scratch_bytes(g.compiled()), fused ? 0 : rows * columns * 4);
    const Values& m = g.result(mask);
    const double share =
        static_cast<double>(std::count(m.begin(), m.end(), 1.0)) / static_cast<double>(m.size());
    EXPECT_NEAR(share, 0.75, 4 * std::sqrt(0.75 * 0.25 / static_cast<double>(m.size())));
    for (std::int64_t c = 0; c < columns; ++c) {
      double total = 0;
      for (std::int64_t r = 0; r < rows; ++r)
        total += in[static_cast<std::size_t>(r * columns + c)] *
                 m[static_cast<std::size_t>(r * columns + c)];
      ASSERT_NEAR(g.result(sum)[static_cast<std::size_t>(c)], total, 1e-3 * total);
    }
  }
}

TEST(FusedRandom, RowsThatAreWalkedTwiceMeetTheSameMask) {
  GraphFixture g(16 * 1024);
  const std::int64_t rows = 8, columns = 4096;
  const std::uint32_t x = g.input({rows, columns}), mask = g.output({rows, columns}, DType::kBool),
                      kept = g.temporary({rows, columns}), sum = g.output({rows, 1});
  const std::uint32_t share = g.output({rows, columns});
  g.node("bernoulli_.float", {mask}, {mask}, "p=0.5");
  g.node("mul.Tensor", {x, mask}, {kept});
  g.node("sum.dim_IntList", {kept}, {sum}, "dim=[-1] keepdim=1");
  g.node("div.Tensor", {kept, sum}, {share});
  const Values in = g.random(x, 1, 2);
  ASSERT_NO_FATAL_FAILURE(g.run());
  for (std::int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::int64_t c = 0; c < columns; ++c)
      total += in[static_cast<std::size_t>(r * columns + c)] *
               g.result(mask)[static_cast<std::size_t>(r * columns + c)];
    ASSERT_NEAR(g.result(sum)[static_cast<std::size_t>(r)], total, 1e-3 * total);
    double whole = 0;
    for (std::int64_t c = 0; c < columns; ++c)
      whole += g.result(share)[static_cast<std::size_t>(r * columns + c)];
    ASSERT_NEAR(whole, 1, 1e-3);
  }
}

}  // namespace
}  // namespace trellis::device::testing
