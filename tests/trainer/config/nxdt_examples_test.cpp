// The 22 example configurations of NxDT against the table of their published values.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/parameter_count.h"

namespace trellis::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

struct ExampleRow {
  const char* name;
  int nodes, devices, tp, pp, cp, dp;
  int global_batch, kv_replicator, sequence, max_position;
  const char* recompute;  ///< "full", "", or names
  bool flash;
  const char* optimizer;
  double lr, weight_decay, beta2;
  const char* schedule;
  int warmup;
  double min_lr;
  int max_steps;
  int num_layers;
  double billions;  ///< parameters
};

constexpr const char* kCosine = "CosineAnnealing";
constexpr const char* kLinear = "LinearAnnealingWithWarmUp";
constexpr const char* kAdamw = "adamw";
constexpr const char* kFp32State = "adamw_fp32OptState";
constexpr const char* kCore = "CoreAttention";

constexpr ExampleRow kRows[] = {
    {"hf_llama3.1_405B_trn1",
     64,
     32,
     32,
     32,
     1,
     2,
     256,
     4,
     8192,
     131072,
     "full",
     true,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     30000,
     126,
     405.853},
    {"hf_llama3.1_70B",
     32,
     32,
     32,
     8,
     1,
     4,
     1024,
     4,
     8192,
     131072,
     "CoreAttention LlamaMLP",
     true,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     30000,
     80,
     70.554},
    {"hf_llama3.1_8B",
     32,
     32,
     32,
     1,
     1,
     32,
     1024,
     4,
     8192,
     131072,
     "CoreAttention LlamaMLP",
     true,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     30000,
     32,
     8.030},
    {"hf_llama3_70B",
     16,
     32,
     32,
     8,
     1,
     2,
     1024,
     4,
     8192,
     8192,
     "CoreAttention LlamaMLP",
     true,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     30000,
     80,
     70.554},
    {"hf_llama3_70B_CP",
     16,
     32,
     32,
     8,
     2,
     1,
     1024,
     4,
     8192,
     8192,
     "CoreAttention LlamaMLP",
     false,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     30000,
     80,
     70.554},
    {"hf_llama3_70B_trn2",
     8,
     64,
     32,
     4,
     1,
     4,
     1024,
     4,
     8192,
     8192,
     "LlamaRMSNorm ActivationMultiplyMLP",
     true,
     kAdamw,
     1.5e-5,
     .1,
     .95,
     kCosine,
     2000,
     1e-6,
     10000,
     80,
     70.554},
    {"hf_llama3_8B", 4,          32,     32,  1,    1,       4,   1024, 4,     8192, 8192, kCore,
     true,           kFp32State, 1.5e-4, .01, .999, kLinear, 100, 0,    10000, 32,   8.030},
    {"hf_llama3_8B_trn2", 1,      64,  16,   1,       1,   4, 1024,  2,  8192, 8192, "", true,
     kFp32State,          1.5e-4, .01, .999, kLinear, 100, 0, 10000, 32, 8.030},
    {"hf_llama3_8B_SFT", 1,      32,  32,   1,       1,  1, 64,   4,  4096, 8192, kCore, true,
     kFp32State,         1.5e-4, .01, .999, kLinear, 10, 0, 5000, 32, 8.030},
    {"hf_llama3_8B_SFT_lora",
     1,
     32,
     32,
     1,
     1,
     1,
     64,
     4,
     4096,
     8192,
     kCore,
     true,
     kFp32State,
     1.5e-4,
     .01,
     .999,
     kLinear,
     10,
     0,
     5000,
     32,
     8.030},
    {"hf_llama3_8B_DPO", 1,    32,  32,   1,       1,  1, 4,    4,  4096, 8192, "full", true,
     kFp32State,         5e-7, .01, .999, kLinear, 10, 0, 5000, 32, 8.030},
    {"hf_llama3_8B_ORPO", 1,      32,  32,   1,       1,  1, 16,   4,  4096, 8192, "full", true,
     kFp32State,          1.5e-4, .01, .999, kCosine, 10, 0, 5000, 32, 8.030},
    {"hf_llama_7B", 1,          32,   8,   1,    1,       4,   1024, 1,     4096, 4096, kCore,
     false,         kFp32State, 3e-4, .01, .999, kLinear, 100, 0,    10000, 4,    1.072},
    {"hf_mixtral_8x7b",
     8,
     32,
     32,
     4,
     1,
     2,
     128,
     1,
     4096,
     4096,
     "full",
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     4000,
     3e-5,
     22500,
     32,
     47.508},
    {"hf_mixtral_8x7b_dropless",
     8,
     32,
     32,
     4,
     1,
     2,
     128,
     1,
     4096,
     4096,
     "full",
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     4000,
     3e-5,
     22500,
     32,
     47.508},
    {"megatron_gpt", 1,          32,     8,   1,   1,       4,   1024, 1,     2048, 2048, kCore,
     false,          kFp32State, 1.5e-4, .01, .95, kCosine, 750, 1e-5, 20000, 32,   6.659},
    {"megatron_llama_7B",
     1,
     32,
     8,
     1,
     1,
     4,
     1024,
     1,
     4096,
     4096,
     kCore,
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     2000,
     3e-5,
     20000,
     32,
     6.738},
    {"megatron_llama2_7B_SFT",
     1,
     32,
     8,
     1,
     1,
     4,
     64,
     1,
     4096,
     4096,
     kCore,
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     10,
     3e-5,
     5000,
     32,
     6.738},
    {"megatron_llama_70b",
     8,
     32,
     8,
     16,
     1,
     2,
     512,
     1,
     4096,
     4096,
     "full",
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     2000,
     3e-5,
     20000,
     80,
     68.977},
    {"megatron_mistral",
     1,
     32,
     8,
     1,
     1,
     4,
     1024,
     1,
     4096,
     4096,
     kCore,
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     2000,
     3e-5,
     20000,
     32,
     7.242},
    {"megatron_mixtral_8x7b",
     16,
     32,
     32,
     4,
     1,
     4,
     128,
     1,
     4096,
     4096,
     "full",
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     4000,
     3e-5,
     22500,
     32,
     47.508},
    {"megatron_mixtral_8x7b_dropless",
     16,
     32,
     32,
     4,
     1,
     4,
     128,
     1,
     4096,
     4096,
     "full",
     false,
     kAdamw,
     3e-4,
     .1,
     .95,
     kCosine,
     4000,
     3e-5,
     22500,
     32,
     47.508},
};

std::string file_of(const std::string& name) {
  return std::string(TRELLIS_SOURCE_DIR) + "/examples/nxdt/" + name + "_config.yaml";
}

RunCheck check(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return check_run_config(file_of(name), overrides);
}

std::string recompute_text(const ModelSection& model) {
  if (model.recompute == Recompute::kFull) return "full";
  std::string text;
  for (const std::string& name : model.recompute_modules) text += (text.empty() ? "" : " ") + name;
  return text;
}

TEST(NxdtExamples, AllTwentyTwoAreHere) {
  std::set<std::string> rows, files;
  for (const ExampleRow& row : kRows) rows.insert(file_of(row.name));
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRELLIS_SOURCE_DIR) + "/examples/nxdt")) {
    if (entry.path().extension() == ".yaml") files.insert(entry.path().string());
  }
  EXPECT_EQ(rows.size(), 22U);
  EXPECT_EQ(rows, files);
}

TEST(NxdtExamples, HaveThePublishedLayouts) {
  for (const ExampleRow& row : kRows) {
    SCOPED_TRACE(row.name);
    const RunCheck checked = check(row.name);
    ASSERT_THAT(checked.problems, IsEmpty());
    const RunConfig& config = checked.config;
    EXPECT_EQ(config.seed, 1234);
    EXPECT_EQ((std::vector{config.trainer.num_nodes, config.trainer.devices, config.tp(),
                           config.pp(), config.cp(), config.dp(), config.vpp()}),
              (std::vector{row.nodes, row.devices, row.tp, row.pp, row.cp, row.dp, 1}));
    EXPECT_EQ(config.data.micro_batch_size, 1);
    EXPECT_EQ(config.data.global_batch_size, row.global_batch);
    EXPECT_EQ(config.num_microbatches(), row.global_batch / row.dp);
    EXPECT_EQ(config.distributed_strategy.kv_replicator, row.kv_replicator);
    EXPECT_TRUE(config.distributed_strategy.sequence_parallel);
    EXPECT_EQ(config.distributed_strategy.zero1, std::string(row.name) != "hf_llama3_8B_SFT_lora");
    EXPECT_EQ(config.bucket_size_collectives_mb, 1024);
    EXPECT_EQ(config.precision.type,
              std::string(row.name) == "hf_llama3_8B_SFT_lora" ? "autocast" : "mixed_precision");
  }
}

TEST(NxdtExamples, HaveThePublishedModels) {
  for (const ExampleRow& row : kRows) {
    SCOPED_TRACE(row.name);
    ModelSection model = check(row.name).config.model;
    model.lora.reset();
    EXPECT_EQ(model.num_layers, row.num_layers);
    EXPECT_EQ(model.encoder_seq_length, row.sequence);
    EXPECT_EQ(model.max_position_embeddings, row.max_position);
    EXPECT_EQ(recompute_text(model), row.recompute);
    EXPECT_EQ(model.flash_attention, row.flash);
    EXPECT_NEAR(static_cast<double>(count_all(model)) / 1e9, row.billions, 6e-4);
  }
}

TEST(NxdtExamples, HaveThePublishedOptimizers) {
  for (const ExampleRow& row : kRows) {
    SCOPED_TRACE(row.name);
    const RunConfig config = check(row.name).config;
    const OptimSection& optim = config.model.optim;
    EXPECT_EQ(optim.name, row.optimizer);
    EXPECT_EQ(optim.lr, row.lr);
    EXPECT_EQ(optim.weight_decay, row.weight_decay);
    EXPECT_EQ(optim.beta1, 0.9);
    EXPECT_EQ(optim.beta2, row.beta2);
    EXPECT_EQ(config.trainer.gradient_clip_val, 1.0);
    ASSERT_TRUE(optim.sched.has_value());
    EXPECT_EQ(optim.sched->name, row.schedule);
    EXPECT_EQ(optim.sched->warmup_steps, row.warmup);
    EXPECT_EQ(optim.sched->min_lr, row.min_lr);
    EXPECT_EQ(config.trainer.max_steps, row.max_steps);
  }
}

TEST(NxdtExamples, RoundTripThroughTheirResolvedForm) {
  for (const ExampleRow& row : kRows) {
    SCOPED_TRACE(row.name);
    const RunConfig config = check(row.name).config;
    EXPECT_EQ(load_text(config.resolved_yaml), config) << config.resolved_yaml;
  }
}

TEST(NxdtExamples, OnlyWhatThisVersionSupportsIsNotListed) {
  const auto keys = [](const RunConfig& config) {
    std::set<std::string> names;
    for (const UnsupportedFeature& feature : config.unsupported) {
      if (feature.changes_step) names.insert(feature.key);
    }
    return names;
  };
  using Keys = std::set<std::string>;
  EXPECT_EQ(keys(check("hf_llama3_70B").config), Keys{});
  EXPECT_EQ(keys(check("megatron_gpt").config), Keys{});
  EXPECT_EQ(keys(check("hf_llama3_70B_CP").config), Keys{});
  EXPECT_EQ(keys(check("hf_mixtral_8x7b").config), Keys{});
  EXPECT_EQ(keys(check("hf_llama3_8B_DPO").config), Keys{});
  EXPECT_EQ(keys(check("hf_llama3_8B_SFT_lora").config), Keys{});
  EXPECT_EQ(keys(check("hf_llama3_8B_SFT").config), Keys{});
  EXPECT_NO_THROW(refuse_unsupported(check("hf_llama3_70B").config, /*simulate=*/true));
  EXPECT_NO_THROW(refuse_unsupported(check("hf_llama3_70B").config, /*simulate=*/false));
}

TEST(NxdtExamples, WarnAboutTheTailThatIsLongerThanTheRun) {
  const RunCheck gpt = check("megatron_gpt");
  EXPECT_THAT(gpt.warnings,
              ElementsAre(HasSubstr("constant_steps: 80000 leaves no step to anneal in: "
                                    "trainer.max_steps 20000 − warmup_steps 750 = 19250")));
  EXPECT_EQ(gpt.config.model.optim.sched->constant_steps, 19250);
}

TEST(NxdtExamples, SpecialValues) {
  const RunConfig trn2 = check("hf_llama3_70B_trn2").config;
  EXPECT_THAT(layers_of_stages(trn2), ElementsAre(std::pair(0, 19), std::pair(19, 40),
                                                  std::pair(40, 61), std::pair(61, 80)));
  EXPECT_EQ(trn2.trainer.lnc, 2);
  EXPECT_EQ(trn2.precision.parallel_layers_reduce_dtype, "bf16");
  const ModelSection llama31 = check("hf_llama3.1_8B").config.model;
  EXPECT_EQ(llama31.rope_scaling, (RopeScaling{"llama3", 8, 1, 4, 8192}));
  EXPECT_EQ(llama31.rope_theta, 500000);
  EXPECT_EQ(check("megatron_mistral").config.model.sliding_window, 4096);
  EXPECT_EQ(check("hf_mixtral_8x7b").config.model.moe->capacity_factor, 2.0);
  EXPECT_EQ(check("hf_mixtral_8x7b").config.model.rope_theta, 1e6);
  EXPECT_EQ(check("hf_mixtral_8x7b_dropless").config.model.moe->capacity_factor, 0.0);
  EXPECT_TRUE(check("hf_mixtral_8x7b_dropless").config.model.moe->dropless);
  const ModelSection gpt = check("megatron_gpt").config.model;
  EXPECT_EQ(gpt.architecture, "gpt");
  EXPECT_EQ(gpt.hidden_dropout, 0.1);
  EXPECT_TRUE(gpt.has_bias && gpt.share_embeddings_and_output_weights);
  EXPECT_EQ(gpt.vocab_size, 50304) << "50257 padded to a multiple of 8 · TP 8";
}

/// The published sizes of the models, with the public number of key/value heads.
TEST(ParameterCounts, AreThePublishedOnes) {
  EXPECT_EQ(check("hf_llama3_8B").config.num_parameters(), 8'030'261'248);
  EXPECT_EQ(check("hf_llama3_70B").config.num_parameters(), 70'553'706'496);
  EXPECT_EQ(check("hf_llama3.1_405B_trn1").config.num_parameters(), 405'853'388'800);
  EXPECT_EQ(check("hf_llama_7B", {"model.num_layers=32"}).config.num_parameters(), 6'738'415'616)
      << "Llama-2 7B";
  EXPECT_EQ(
      check("megatron_mistral", {"model.make_vocab_size_divisible_by=1"}).config.num_parameters(),
      7'241'732'096)
      << "Mistral 7B";
  const RunConfig mixtral =
      check("hf_mixtral_8x7b",
            {"model.num_kv_heads=8", "distributed_strategy.tensor_model_parallel_size=8"})
          .config;
  EXPECT_EQ(mixtral.num_parameters(), 46'702'792'704) << "Mixtral 8x7B";
}

/// Ranks of one stage share it: sharded parameters add up to the whole, replicated ones are on
/// each.
TEST(ParameterCounts, OfTheRanksAddUp) {
  for (const ExampleRow& row : kRows) {
    SCOPED_TRACE(row.name);
    RunConfig config = check(row.name).config;
    config.model.lora.reset();  // A is whole on each rank
    const ModelSection& model = config.model;
    const ParameterCounts whole = count_parameters(model),
                          shard = count_parameters(model, config.tp());
    const std::int64_t replicated_per_layer = model.normalization == Normalization::kRmsNorm
                                                  ? 2 * model.hidden_size
                                                  : 6 * model.hidden_size;
    const std::int64_t router =
        model.moe ? std::int64_t{model.moe->num_experts} * model.hidden_size : 0;
    EXPECT_EQ((shard.dense_layer - replicated_per_layer) * config.tp(),
              whole.dense_layer - replicated_per_layer);
    if (model.moe) {
      EXPECT_EQ((shard.moe_layer - replicated_per_layer - router) * config.tp(),
                whole.moe_layer - replicated_per_layer - router);
    }
    EXPECT_EQ(shard.head * config.tp(), whole.head);
    if (model.moe) {
      const std::int64_t idle = whole.idle_experts / (model.moe->num_experts - model.moe->top_k);
      EXPECT_EQ(whole.moe_layer - count_parameters(model, 1, 1, 4).moe_layer,
                (model.moe->num_experts - model.moe->num_experts / 4) * idle)
          << "EP 4";
    }
  }
}

}  // namespace
}  // namespace trellis::trainer
