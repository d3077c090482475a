// Rotary positions and attention: properties that hold whatever the implementation.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/modules/core_attention.h"
#include "trainer/modules/rotary_embedding.h"
#include "trainer/modules/self_attention.h"

namespace trellis::trainer::attention_test {
namespace {

constexpr std::int64_t kSequence = 9, kHeadDim = 6;

ModuleContext double_context(ParallelState& parallel, ParameterList& parameters) {
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.dtype = at::kDouble;
  return context;
}

RotaryTables rotary(const RotarySpec& spec, const at::Tensor& position_ids = {}) {
  ParallelState parallel;
  ParameterList parameters;
  return RotaryEmbedding(double_context(parallel, parameters), spec).tables(position_ids);
}

RotarySpec plain(double theta) {
  return {.head_dim = kHeadDim,
          .sequence_length = kSequence,
          .max_position_embeddings = kSequence,
          .theta = theta};
}

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

TEST(RotaryEmbedding, EachPairRotatesByItsAngle) {
  const double theta = 100;
  const at::Tensor x = random({kSequence, 1, 1, kHeadDim}, 1);
  const at::Tensor y = apply_rotary(x, rotary(plain(theta)));
  const auto in = x.accessor<double, 4>(), out = y.accessor<double, 4>();
  for (int p = 0; p < kSequence; ++p) {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = p * std::pow(theta, -2.0 * i / kHeadDim), a = in[p][0][0][i],
                   b = in[p][0][0][i + kHeadDim / 2];
      EXPECT_NEAR(out[p][0][0][i], a * std::cos(angle) - b * std::sin(angle), 1e-14);
      EXPECT_NEAR(out[p][0][0][i + kHeadDim / 2], b * std::cos(angle) + a * std::sin(angle), 1e-14);
    }
  }
}

TEST(RotaryEmbedding, ScoresDependOnTheDistanceOnly) {
  const at::Tensor q = random({1, 1, 1, kHeadDim}, 1).expand({kSequence, 1, 1, kHeadDim});
  const at::Tensor k = random({1, 1, 1, kHeadDim}, 2).expand({kSequence, 1, 1, kHeadDim});
  const RotaryTables tables = rotary(plain(50));
  const at::Tensor scores = apply_rotary(q, tables)
                                .view({kSequence, kHeadDim})
                                .matmul(apply_rotary(k, tables).view({kSequence, kHeadDim}).t());
  for (int i = 1; i < kSequence; ++i)
    EXPECT_NEAR(scores[i][i - 1].item<double>(), scores[1][0].item<double>(), 1e-13);
}

TEST(RotaryEmbedding, TheGradientIsTheTransposedRotation) {
  const RotaryTables tables = rotary(plain(50));
  at::Tensor x = random({kSequence, 2, 3, kHeadDim}, 1).requires_grad_();
  const at::Tensor grad = random({kSequence, 2, 3, kHeadDim}, 2),
                   direction = random({kSequence, 2, 3, kHeadDim}, 3);
  apply_rotary(x, tables).backward(grad);
  // The map is linear: <grad, R·d> = <Rᵀ·grad, d>.
  const at::NoGradGuard no_grad;
  EXPECT_NEAR((grad * apply_rotary(direction, tables)).sum().item<double>(),
              (x.grad() * direction).sum().item<double>(), 1e-12);
}

/// Positions start again in the middle: each token rotates by its own position.
TEST(RotaryEmbedding, PositionIdsDecideTheAngle) {
  const at::Tensor ids = at::stack({at::arange(kSequence), at::arange(kSequence).remainder(4)});
  const at::Tensor x = random({kSequence, 2, 3, kHeadDim}, 1);
  const at::Tensor got = apply_rotary(x, rotary(plain(50), ids)),
                   in_order = apply_rotary(x, rotary(plain(50)));
  EXPECT_TRUE(got.select(1, 0).equal(in_order.select(1, 0)));
  for (int p = 0; p < kSequence; ++p) {
    const at::Tensor moved =
        at::zeros({kSequence, 1, 3, kHeadDim}, at::kDouble)
            .index_copy(0, at::tensor({p % 4}, at::kLong), x.narrow(0, p, 1).narrow(1, 1, 1));
    EXPECT_TRUE(got[p][1].equal(apply_rotary(moved, rotary(plain(50)))[p % 4][0])) << p;
  }
}

TEST(RotaryEmbedding, APartOfTheHeadRotatesAndTheRestPasses) {
  RotarySpec spec = plain(50);
  spec.head_dim = 12;
  spec.percentage = 0.5;
  const at::Tensor x = random({kSequence, 1, 2, 12}, 1), y = apply_rotary(x, rotary(spec));
  EXPECT_TRUE(y.narrow(-1, 6, 6).equal(x.narrow(-1, 6, 6)));
  EXPECT_TRUE(y.narrow(-1, 0, 6).equal(apply_rotary(x.narrow(-1, 0, 6), rotary(plain(50)))));
}

/// The formulas of each rope type, pair by pair.
TEST(RotaryEmbedding, ScaledFrequenciesEqualTheirFormulas) {
  constexpr double kPi = 3.14159265358979323846;
  RotarySpec spec{
      .head_dim = 64, .sequence_length = 300, .max_position_embeddings = 100, .theta = 500};
  const at::Tensor plain_frequency = inverse_frequencies(spec);
  spec.scaling = {"linear", 4};
  EXPECT_TRUE(at::allclose(inverse_frequencies(spec), plain_frequency / 4, 1e-14, 0));
  spec.scaling = {"llama3", 8, 1, 4, 100};
  const at::Tensor llama3 = inverse_frequencies(spec);
  int kept = 0, slowed = 0;
  for (int i = 0; i < 32; ++i) {
    const double f = std::pow(500.0, -2.0 * i / 64), wave = 2 * kPi / f,
                 smooth = (100 / wave - 1) / (4 - 1);
    const double expected = wave < 100.0 / 4 ? f
                            : wave > 100.0   ? f / 8
                                             : (1 - smooth) * f / 8 + smooth * f;
    kept += wave < 100.0 / 4, slowed += wave > 100.0;
    EXPECT_NEAR(llama3[i].item<double>(), expected, 1e-14 * expected) << i;
  }
  EXPECT_TRUE(kept > 0 && slowed > 0 && kept + slowed < 32) << "each of the three regions is hit";
  spec.scaling = {"dynamic", 2};
  const double theta = 500 * std::pow(2.0 * 300 / 100 - 1, 64.0 / 62);
  EXPECT_NEAR(inverse_frequencies(spec)[5].item<double>(), std::pow(theta, -10.0 / 64), 1e-14);
  spec.sequence_length = 80;
  EXPECT_TRUE(inverse_frequencies(spec).equal(plain_frequency))
      << "within the model's positions nothing is stretched";
}

TEST(RotaryEmbedding, BadInputIsNamed) {
  RotarySpec spec = plain(50);
  spec.scaling.type = "yarn";
  EXPECT_THROW(static_cast<void>(inverse_frequencies(spec)), ConfigError);
  spec = plain(50);
  spec.percentage = 0.5;  // three of six: no pairs
  EXPECT_THROW(static_cast<void>(inverse_frequencies(spec)), ConfigError);
}

struct Attention {
  bool flash = true;
  std::optional<int> window = {};
  bool layer_scaling = false;

  [[nodiscard]] at::Tensor operator()(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& documents = {}) const {
    ParallelState parallel;
    ParameterList parameters;
    ModelSection config;
    config.encoder_seq_length = static_cast<int>(q.size(0));
    config.sliding_window = window;
    config.flash_attention = flash;
    config.apply_query_key_layer_scaling = layer_scaling;
    const CoreAttention attention(double_context(parallel, parameters), "attention", config,
                                  /*layer=*/6, ShardPlace::whole());
    const AttentionMask mask(double_context(parallel, parameters), config);
    return attention.forward(q, k, v, mask.allowed(documents));
  }
};

class CoreAttentionForms : public testing::TestWithParam<bool> {
 protected:
  Attention attention{.flash = GetParam()};
  at::Tensor q = random({kSequence, 2, 4, kHeadDim}, 1), k = random({kSequence, 2, 2, kHeadDim}, 2),
             v = random({kSequence, 2, 2, kHeadDim}, 3);
};

/// Layers share what a fused attention adds only if LibTorch need not make it from booleans.
TEST(AttentionMask, IsWhatTheAttentionTakesWithoutConversion) {
  ParallelState parallel;
  ParameterList parameters;
  for (const bool flash : {true, false}) {
    ModelSection config;
    config.flash_attention = flash;
    config.encoder_seq_length = static_cast<int>(kSequence);
    for (const std::optional<int> window : {std::optional<int>(), std::optional<int>(2)}) {
      config.sliding_window = window;
      const AttentionMask mask(double_context(parallel, parameters), config);
      const at::ScalarType expected = flash ? at::kDouble : at::kBool;
      EXPECT_EQ(mask.allowed(at::ones({1, kSequence}, at::kLong)).scalar_type(), expected);
      EXPECT_EQ(mask.allowed({}).defined(), window.has_value());
      if (window) {
        EXPECT_EQ(mask.allowed({}).scalar_type(), expected);
      }
    }
  }
}

TEST_P(CoreAttentionForms, GroupedQueriesEqualExplicitlyCopiedHeads) {
  const at::Tensor got = attention(q, k, v);
  EXPECT_TRUE(at::allclose(got, attention(q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)),
                           1e-14, 1e-14));
  EXPECT_EQ(got.sizes(), (std::vector<std::int64_t>{kSequence, 2, 4 * kHeadDim}));
}

/// Which queries notice a change of one key and its value: the definition of causality, window and
/// documents at once.
TEST_P(CoreAttentionForms, AQueryReadsItsWindowOfItsDocumentsPast) {
  const at::Tensor documents =
      at::tensor({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0}, at::kLong)
          .view({2, kSequence});
  for (const std::optional<int> window : {std::optional<int>{}, std::optional<int>{1},
                                          std::optional<int>{3}, std::optional<int>{50}}) {
    for (const bool packed : {false, true}) {
      attention.window = window;
      const at::Tensor mask = packed ? documents : at::Tensor();
      const at::Tensor before = attention(q, k, v, mask);
      for (int key = 0; key < kSequence; ++key) {
        at::Tensor k2 = k.clone(), v2 = v.clone();
        k2[key].fill_(3);
        v2[key].fill_(3);
        const at::Tensor changed = attention(q, k2, v2, mask).ne(before).any(-1);
        for (int sample = 0; sample < 2; ++sample) {
          for (int query = 0; query < kSequence; ++query) {
            const bool same = !packed || documents[sample][query].equal(documents[sample][key]);
            EXPECT_EQ(changed[query][sample].item<bool>(),
                      query >= key && query - key < window.value_or(kSequence) && same)
                << "query " << query << " key " << key << " sample " << sample;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CoreAttentionForms, testing::Bool(),
                         [](const auto& form) { return form.param ? "flash" : "plain"; });

TEST(CoreAttention, FlashAndPlainAreEqualWithAndWithoutAWindow) {
  const at::Tensor q = random({kSequence, 2, 4, kHeadDim}, 1),
                   k = random({kSequence, 2, 2, kHeadDim}, 2),
                   v = random({kSequence, 2, 2, kHeadDim}, 3);
  for (const std::optional<int> window : {std::optional<int>{}, std::optional<int>{4}}) {
    const at::Tensor flash = Attention{.flash = true, .window = window}(q, k, v);
    for (const bool scaling : {false, true}) {
      const at::Tensor plain_form =
          Attention{.flash = false, .window = window, .layer_scaling = scaling}(q, k, v);
      EXPECT_TRUE(at::allclose(flash, plain_form, 1e-13, 1e-13)) << scaling;
    }
  }
}

/// The purpose of the scaling: a score of 6·300·300/√6 is beyond fp16, a seventh of it is not, and
/// the softmax in fp32 takes it back.
TEST(CoreAttention, LayerScalingKeepsScoresInRange) {
  const at::Tensor q = at::full({2, 1, 1, kHeadDim}, 300, at::kHalf),
                   v = random({2, 1, 1, kHeadDim}, 3).to(at::kHalf);
  EXPECT_TRUE((Attention{.flash = false}(q, q, v).isnan().any().item<bool>()));
  const at::Tensor got = Attention{.flash = false, .layer_scaling = true}(q, q, v);
  EXPECT_TRUE(at::allclose(got[1][0], ((v[0] + v[1]) / 2).flatten(), 1e-3, 1e-3))
      << "equal scores: the mean of the values";
}

TEST(QkvProjection, TooFewKeyValueHeadsAreNamed) {
  ParallelState four(ParallelGroup{{}, 0, 4}, {}, {});
  ParameterList parameters;
  ModelSection config;
  config.hidden_size = 32;
  config.num_attention_heads = 8;
  config.num_kv_heads = 2;
  EXPECT_THROW(QkvProjection(double_context(four, parameters), "model.layers.0.self_attn", config,
                             QkvLayout::kSeparate),
               ConfigError);
}

}  // namespace
}  // namespace trellis::trainer::attention_test
