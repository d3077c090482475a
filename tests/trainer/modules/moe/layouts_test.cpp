// Mixtures of experts in every layout: two steps against one rank, in fp64, and which expert got
// which tokens.
#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"
#include "trainer/verify/capture.h"
#include "trainer/verify/compare.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kSteps = 2;

struct Variant {
  const char* name;
  void (*change)(RunConfig& config);
};

void small_groups(RunConfig& config) {
  MoeSection& moe = *config.model.moe;
  moe.routing_algorithm = "group_limited";
  moe.num_groups = 4, moe.top_k_groups = 2;
  moe.num_shared_experts = 1;
  moe.routed_scaling_factor = 1.5;
}

const Variant kMainVariants[] = {
    {"Drops", [](RunConfig& c) { c.model.moe->capacity_factor = 0.8; }},
    {"Dropless", [](RunConfig& c) { c.model.moe->dropless = true; }},
    {"AuxiliaryLossRecomputed",
     [](RunConfig& c) {
       c.model.moe->output_router_logits = true;
       c.model.moe->router_aux_loss_coef = 0.5;
       c.model.moe->capacity_factor = 1.0;
       c.model.recompute = Recompute::kFull;
     }},
};

const Variant kVariants[] = {
    {"AllExperts", [](RunConfig& c) { c.model.moe->capacity_factor.reset(); }},
    {"DropsNotNormalised",
     [](RunConfig& c) {
       c.model.moe->capacity_factor = 1.0;
       c.model.moe->normalize_top_k_affinities = false;
     }},
    {"DroplessShuffled", [](RunConfig& c) { c.model.moe->dropless = true; }},
    {"Sinkhorn",
     [](RunConfig& c) {
       c.model.moe->routing_algorithm = "sinkhorn";
       c.model.moe->top_k = 1;
       c.model.moe->normalize_top_k_affinities = false;
       c.model.moe->capacity_factor = 1.25;
     }},
    {"GroupsSharedExperts", [](RunConfig& c) { small_groups(c), c.model.moe->dropless = true; }},
    {"EverySecondLayer",
     [](RunConfig& c) { c.model.moe->frequency = 2, c.model.moe->capacity_factor = 1.5; }},
    {"AuxiliaryLoss",
     [](RunConfig& c) {
       c.model.moe->output_router_logits = true;
       c.model.moe->router_aux_loss_coef = 0.5;
       c.model.moe->dropless = true;
     }},
    {"SelectiveRecomputation",
     [](RunConfig& c) {
       c.model.moe->dropless = true;
       c.model.recompute = Recompute::kSelective;
       c.model.recompute_modules = {"LlamaMLP"};
     }},
    {"Jitter", [](RunConfig& c) { c.model.moe->jitter_eps = 0.05, c.model.moe->dropless = true; }},
    {"MegatronNames",
     [](RunConfig& c) {
       c.model.architecture = "gpt";
       c.model.position_embedding = PositionEmbedding::kLearnedAbsolute;
       c.model.moe->dropless = true;
     }},
};

struct Layout {
  int tp = 1, pp = 1, dp = 1, ep = 1;
  bool sequence_parallel = false, zero1 = true;
  int vpp = 1;
  int copies = 0;  ///< fully sharded: of the whole; 0: not
};

const Layout kLayouts[] = {{1, 1, 2, 2},
                           {1, 1, 4, 4, false, false},
                           {2, 1, 4, 2, true},
                           {2, 2, 2, 2, false, false},
                           {1, 2, 4, 2, false, true, 2},
                           {4, 1, 2, 1, true},
                           {1, 1, 4, 2, false, true, 1, 1},
                           {1, 1, 4, 2, false, true, 1, 2},
                           {2, 1, 4, 1, true, true, 1, 2}};

RunConfig small_mixture(const Variant& variant, const Layout& layout) {
  RunConfig config =
      testing_support::small_llama({layout.tp, layout.pp, layout.dp}, "fp64", kSteps);
  config.distributed_strategy.expert_model_parallel_size = layout.ep;
  config.distributed_strategy.virtual_pipeline_model_parallel_size = layout.vpp;
  config.distributed_strategy.sequence_parallel = layout.sequence_parallel;
  config.distributed_strategy.zero1 = layout.zero1;
  config.distributed_strategy.fsdp = layout.copies > 0;
  config.distributed_strategy.data_parallel_replicate_size = std::max(1, layout.copies);
  config.model.num_layers = 4;
  config.model.head_dim = config.model.hidden_size / config.model.num_attention_heads;
  config.model.moe = MoeSection{.num_experts = 8, .top_k = 2};
  if (std::string_view(variant.name).ends_with("Shuffled"))
    config.distributed_strategy.token_shuffle_group_size = std::min(2, layout.dp);
  variant.change(config);
  return config;
}

RunNumbers train(const RunConfig& config) {
  return train_and_gather(config, std::make_shared<testing_support::RandomTokens>(config));
}

/// The numbers of one rank, made once for each variant.
const RunNumbers& reference(const Variant& variant) {
  static auto* const made = new std::map<std::string, RunNumbers>();
  const auto found = made->find(variant.name);
  return found != made->end()
             ? found->second
             : made->emplace(variant.name, train(small_mixture(variant, {}))).first->second;
}

class MixtureLayouts : public testing::TestWithParam<std::tuple<Variant, Layout>> {};

TEST_P(MixtureLayouts, EqualsOneRank) {
  const auto& [variant, layout] = GetParam();
  const RunConfig config = small_mixture(variant, layout);
  const Comparison comparison =
      compare(train(config), reference(variant), 1e-6, [](const std::string&) { return 1e-10; });
  EXPECT_EQ(comparison.num_bad, 0)
      << comparison.first_bad->what << " " << comparison.first_bad->error;
  EXPECT_GT(comparison.num_compared, 100);
}

/// Each layer of each step; what one rank does is what every layout does.
TEST(Mixture, RoutesTokensTimesKMinusDrops) {
  std::vector<Variant> all(std::begin(kMainVariants), std::end(kMainVariants));
  all.insert(all.end(), std::begin(kVariants), std::end(kVariants));
  for (const Variant& variant : all) {
    SCOPED_TRACE(variant.name);
    const MoeSection moe = *small_mixture(variant, {}).model.moe;
    const RunNumbers& run = reference(variant);
    ASSERT_EQ(std::ssize(run.steps), kSteps);
    for (const ComputedStep& step : run.steps) {
      EXPECT_EQ(std::ssize(step.routed_tokens), 4 / moe.frequency);
      for (const auto& [layer, load] : step.routed_tokens) {
        EXPECT_EQ(layer % moe.frequency, 0);
        EXPECT_EQ(load.routed(), 8 * 16 * moe.top_k - load.dropped());
        EXPECT_TRUE(load.dropped() == 0 || moe.capacity_factor.value_or(0) > 0);
      }
    }
    if (std::string_view(variant.name) == "Drops") {
      EXPECT_GT(run.steps[0].routed_tokens.at(0).dropped(), 0);
    }
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Variant, Layout>>& test) {
  const Layout& l = std::get<1>(test.param);
  return std::string(std::get<0>(test.param).name) + "_TP" + std::to_string(l.tp) + "PP" +
         std::to_string(l.pp) + "DP" + std::to_string(l.dp) + "EP" + std::to_string(l.ep) +
         (l.copies > 0 ? "Copies" + std::to_string(l.copies) : "");
}

/// The first ones in every layout, the others in two that use every axis.
INSTANTIATE_TEST_SUITE_P(Main, MixtureLayouts,
                         testing::Combine(testing::ValuesIn(kMainVariants),
                                          testing::ValuesIn(kLayouts)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Options, MixtureLayouts,
                         testing::Combine(testing::ValuesIn(kVariants),
                                          testing::Values(Layout{2, 1, 4, 2, true},
                                                          Layout{1, 2, 4, 2, false, true, 2})),
                         name_of);

}  // namespace
}  // namespace trellis::trainer
