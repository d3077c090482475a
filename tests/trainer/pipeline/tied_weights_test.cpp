// Properties of the engine that only whole runs show: tied embeddings across stages, and layers
// that learn where in the step they are.
#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"

namespace trellis::trainer {
namespace {

using testing_support::Layout;
using testing_support::LocalWeights;
using testing_support::Outcome;
using testing_support::RandomTokens;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  const Layout& l = info.param;
  return "TP" + std::to_string(l.tp) + "PP" + std::to_string(l.pp) + "VPP" + std::to_string(l.vpp) +
         "DP" + std::to_string(l.dp) + (l.sequence_parallel ? "_SP" : "") +
         (l.zero1 ? "_ZeRO1" : "");
}

RunConfig tied(const Layout& layout) {
  RunConfig config = small_llama(layout, "fp64", 4);
  config.model.share_embeddings_and_output_weights = true;
  return config;
}

class TiedEmbeddings : public testing::TestWithParam<Layout> {};

TEST_P(TiedEmbeddings, EqualOneRankAndTheCopiesStayBitEqual) {
  const Layout& layout = GetParam();
  const Outcome one_rank = train(tied({}), {});
  EXPECT_LE(worst_error(train(tied(layout), layout), one_rank), 1e-10)
      << "the gradient is the sum over the copies, its norm counts one";
  EXPECT_EQ(one_rank.weights.count("lm_head.weight"), 0U);

  const RunConfig config = tied(layout);
  const auto data = std::make_shared<RandomTokens>(config);
  std::vector<LocalWeights> ranks(static_cast<std::size_t>(layout.world_size()));
  runtime::WorldOptions world;
  world.world_size = layout.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data);
    trainer.fit([](const StepResult&) {});
    ranks[static_cast<std::size_t>(rank.rank())] = trainer.local_weights();
  });
  const RankMesh mesh{layout.tp, layout.pp, layout.dp};
  const auto copy = [&](int pp, int dp, int tp) {
    return ranks[static_cast<std::size_t>(mesh.rank(pp, dp, tp))]
        .at("model.embed_tokens.weight")
        .tensor;
  };
  for (int dp = 0; dp < layout.dp; ++dp) {
    for (int tp = 0; tp < layout.tp; ++tp)
      EXPECT_TRUE(copy(0, dp, tp).equal(copy(layout.pp - 1, dp, tp))) << "first and last stage";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TiedEmbeddings,
                         testing::Values(Layout{1, 2, 1, false, true}, Layout{1, 4, 1, false, true},
                                         Layout{2, 1, 1, true, true},
                                         Layout{1, 2, 1, false, true, 2},
                                         Layout{2, 2, 2, true, true}, Layout{1, 2, 2, false, false},
                                         Layout{1, 2, 2, false, true, 2}),
                         name_of);

/// A mask of dropout is drawn by step and micro-batch: a stage that receives a wrong one drops
/// other elements.
RunConfig with_dropout(const Layout& layout, Recompute recompute, double probability = 0.2) {
  RunConfig config = small_llama(layout, "fp64", 3);
  config.model.architecture = "gpt";
  config.model.hidden_dropout = probability;
  config.model.attention_dropout = probability / 2;
  config.model.flash_attention = false;
  config.model.recompute = recompute;
  return config;
}

class StepPositions : public testing::TestWithParam<Layout> {};

TEST_P(StepPositions, DropoutEqualsOneRankWithAndWithoutRecomputation) {
  const Layout& layout = GetParam();
  const Outcome one_rank = train(with_dropout({}, Recompute::kNone), {});
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    EXPECT_LE(worst_error(train(with_dropout(layout, recompute), layout), one_rank), 1e-10);
  }
  EXPECT_GT(worst_error(train(with_dropout({}, Recompute::kNone, 0), {}), one_rank), 1e-3)
      << "dropout does something";
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepPositions,
                         testing::Values(Layout{1, 2, 1, false, true},
                                         Layout{1, 2, 1, false, true, 2},
                                         Layout{2, 2, 2, true, true}, Layout{1, 1, 4, false, true}),
                         name_of);

}  // namespace
}  // namespace trellis::trainer
