// Attention whose probabilities are dropped: the two flash kernels against loops, and the rule that
// makes them of single operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/compiler/rules/graph_rules.h"
#include "tests/device/compiler/graph_fixture.h"

namespace trellis::device::testing {
namespace {

using Sizes = GraphFixture::Sizes;

struct Shape {
  bool causal;
  std::int64_t heads, rows, depth;
};

// ── the kernels ──

/// Attention of [1, heads, rows, depth] with what the kernel kept, as loops.
class Loops {
 public:
  Loops(const Shape& s, double scale, double factor, const Values& q, const Values& k,
        const Values& v, const Values& grad, const Values& kept)
      : s_(s),
        scale_(scale),
        factor_(factor),
        q_(q),
        k_(k),
        v_(v),
        grad_(grad),
        kept_(kept),
        out(q.size()),
        grad_q(q.size()),
        grad_k(q.size()),
        grad_v(q.size()) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.rows; ++i) row(h, i);
    }
  }

 private:
  std::size_t at(std::int64_t h, std::int64_t i, std::int64_t d) const {
    return static_cast<std::size_t>((h * s_.rows + i) * s_.depth + d);
  }

  void row(std::int64_t h, std::int64_t i) {
    const std::int64_t keys = s_.causal ? i + 1 : s_.rows;
    std::vector<double> p(static_cast<std::size_t>(keys)), dp(p.size());
    double sum = 0, delta = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (std::int64_t d = 0; d < s_.depth; ++d) score += q_[at(h, i, d)] * k_[at(h, j, d)];
      sum += p[static_cast<std::size_t>(j)] = std::exp(scale_ * score);
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto n = static_cast<std::size_t>(j);
      p[n] /= sum;
      const double times =
          factor_ * kept_[static_cast<std::size_t>((h * s_.rows + i) * s_.rows + j)];
      for (std::int64_t d = 0; d < s_.depth; ++d) {
        out[at(h, i, d)] += times * p[n] * v_[at(h, j, d)];
        grad_v[at(h, j, d)] += times * p[n] * grad_[at(h, i, d)];
        dp[n] += times * grad_[at(h, i, d)] * v_[at(h, j, d)];
      }
      delta += p[n] * dp[n];
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto n = static_cast<std::size_t>(j);
      const double ds = scale_ * p[n] * (dp[n] - delta);
      for (std::int64_t d = 0; d < s_.depth; ++d)
        grad_q[at(h, i, d)] += ds * k_[at(h, j, d)], grad_k[at(h, j, d)] += ds * q_[at(h, i, d)];
    }
  }

  Shape s_;
  double scale_, factor_;
  const Values &q_, &k_, &v_, &grad_, &kept_;

 public:
  Values out, grad_q, grad_k, grad_v;
};

class DroppedAttention : public ::testing::TestWithParam<Shape> {};

TEST_P(DroppedAttention, ForwardAndBackwardAgreeWithLoops) {
  const Shape s = GetParam();
  const Sizes sizes{1, s.heads, s.rows, s.depth};
  GraphFixture g;
  const std::uint32_t q = g.input(sizes), k = g.input(sizes), v = g.input(sizes),
                      grad = g.input(sizes), out = g.output(sizes),
                      lse = g.output({1, s.heads, s.rows});
  const std::uint32_t kept = g.output({1, s.heads, s.rows, s.rows}, DType::kUInt8),
                      gq = g.output(sizes), gk = g.output(sizes), gv = g.output(sizes);
  const std::string scalars =
      std::string("is_causal=") + (s.causal ? "1" : "0") + " scale=0.25 keep=0.75 factor=1.5";
  g.node("_scaled_dot_product_flash_attention_for_cpu", {q, k, v}, {out, lse, kept}, scalars);
  g.node("_scaled_dot_product_flash_attention_for_cpu_backward", {grad, q, k, v, out, lse, kept},
         {gq, gk, gv}, scalars);
  const Values in_q = g.random(q, -1, 1), in_k = g.random(k, -1, 1), in_v = g.random(v, -1, 1),
               in_grad = g.random(grad, -1, 1);
  ASSERT_NO_FATAL_FAILURE(g.run());
  EXPECT_TRUE(g.compiled().estimated.empty());
  const Values& mask = g.result(kept);
  double share = 0, of = 0;
  for (std::int64_t i = 0; i < s.heads * s.rows * s.rows; ++i) {
    if (s.causal && i % s.rows > i / s.rows % s.rows) continue;
    const double is = mask[static_cast<std::size_t>(i)];
    ASSERT_TRUE(is == 0 || is == 1);
    share += is, ++of;
  }
  EXPECT_NEAR(share / of, 0.75, 5 * std::sqrt(0.75 * 0.25 / of));
  const Loops want(s, 0.25, 1.5, in_q, in_k, in_v, in_grad, mask);
  const auto expect = [&](std::uint32_t value, const Values& numbers) {
    g.expect(value, [&](std::int64_t i) { return numbers[static_cast<std::size_t>(i)]; }, 2e-3);
  };
  expect(out, want.out), expect(gq, want.grad_q), expect(gk, want.grad_k), expect(gv, want.grad_v);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DroppedAttention,
                         ::testing::Values(Shape{false, 2, 100, 16}, Shape{true, 2, 160, 32},
                                           Shape{true, 1, 1100, 16}, Shape{false, 1, 600, 24}));

// ── the rule ──

/// Single operations as LibTorch records them: bmm, mask, softmax, dropout, cast, bmm; and their
/// derivative.
struct ExplicitDropout {
  /// `keep`: the probability that is drawn with; `saved`: a later graph reads the mask.
  explicit ExplicitDropout(const std::string& keep, bool saved = false,
                           const std::string& factor_back = "2") {
    q = g.input(kRows), k = g.input(kRows), v = g.input(kRows), grad = g.input(kRows);
    out = g.output(kRows), gq = g.output(kRows), gk = g.output(kTransposed), gv = g.output(kRows);
    const std::uint32_t scores = square(), p = square(), dropped = square(),
                        narrow = square(DType::kBf16),
                        draw = saved ? g.output(kSquare, DType::kBool) : square(DType::kBool);
    g.node("bmm", {q, transposed(k)}, {scores});
    g.node("_softmax", {scores}, {p}, "dim=-1 half_to_float=0");
    g.node("bernoulli_.float", {draw}, {draw}, "p=" + keep);
    g.node("mul.Tensor", {p, draw}, {dropped});
    g.node("mul_.Tensor", {dropped}, {dropped}, "other=2");
    g.node("_to_copy", {dropped}, {narrow});
    g.node("bmm", {narrow, v}, {out});
    const std::uint32_t grad_p = square(DType::kBf16), wide = square(), masked = square(),
                        grad_s = square();
    g.node("bmm", {grad, transposed(v)}, {grad_p});
    g.node("bmm", {transposed(narrow), grad}, {gv});
    g.node("_to_copy", {grad_p}, {wide});
    g.node("mul.Tensor", {wide, draw}, {masked});
    g.node("mul_.Tensor", {masked}, {masked}, "other=" + factor_back);
    g.node("_softmax_backward_data", {masked, p}, {grad_s}, "dim=-1 input_dtype=Float");
    g.node("bmm", {grad_s, k}, {gq});
    g.node("bmm", {transposed(q), grad_s}, {gk});
  }

  [[nodiscard]] std::vector<Node> ruled() {
    std::vector<Node> nodes = apply_rules(g.graph(), g.core().compiler).nodes;
    std::erase_if(nodes, [](const Node& n) { return n.op == kAbsorbedOp; });
    return nodes;
  }

  static inline const Sizes kRows{3, 96, 16}, kTransposed{3, 16, 96}, kSquare{3, 96, 96};
  GraphFixture g;
  std::uint32_t q = 0, k = 0, v = 0, grad = 0, out = 0, gq = 0, gk = 0, gv = 0;

 private:
  std::uint32_t square(DType dtype = DType::kFp32) { return g.temporary(kSquare, dtype); }
  std::uint32_t transposed(std::uint32_t value) {
    const Sizes sizes = g.graph().values[value].view.sizes;
    return g.view(value, {sizes[0], sizes[2], sizes[1]}, {sizes[1] * sizes[2], 1, sizes[2]});
  }
};

TEST(DroppedAttentionRule, MakesTwoKernelsThatShareWhatWasKept) {
  ExplicitDropout a("0.9");
  const std::vector<Node> nodes = a.ruled();
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_NE(nodes[0].scalars.find("keep=0.9 factor=2"), std::string::npos) << nodes[0].scalars;
  ASSERT_EQ(nodes[0].outputs.size(), 3U);
  ASSERT_EQ(nodes[1].inputs.size(), 7U);
  EXPECT_EQ(nodes[1].inputs[6], nodes[0].outputs[2]);
}

TEST(DroppedAttentionRule, GivesTheNumbersOfTheSingleOperations) {
  std::vector<Values> results[2];
  for (const bool fused : {false, true}) {
    ExplicitDropout a("1");  // what is kept is not left to chance
    a.g.core().compiler.fused_attention = fused;
    for (const std::uint32_t value : {a.q, a.k, a.v, a.grad}) a.g.random(value, -1, 1);
    ASSERT_NO_FATAL_FAILURE(a.g.run());
    for (const std::uint32_t value : {a.out, a.gq, a.gk, a.gv})
      results[fused].push_back(a.g.result(value));
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    for (std::size_t e = 0; e < results[0][i].size(); ++e) {
      ASSERT_NEAR(results[0][i][e], results[1][i][e], 0.02 * (1 + std::abs(results[0][i][e])))
          << "result " << i << " element " << e;
    }
  }
}

TEST(DroppedAttentionRule, AMaskWithAnotherReaderStays) {
  ExplicitDropout a("0.9", /*saved=*/true);
  const std::vector<Node> nodes = a.ruled();
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.op == "bmm"; }),
            6);
}

TEST(DroppedAttentionRule, ADerivativeWithAnotherFactorStays) {
  ExplicitDropout a("0.9", false, "3");
  const std::vector<Node> nodes = a.ruled();
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.op == "bmm"; }),
            6);
}

}  // namespace
}  // namespace trellis::device::testing
