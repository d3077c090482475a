#include "trainer/config/run_config.h"

#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

RunConfig example(const std::string& name) { return load_run_config(std::string(TRELLIS_SOURCE_DIR) + "/examples/" + name, {}); }

/// Everything but the text itself must survive writing and reading.
void expect_round_trip(const RunConfig& config) {
  const RunConfig again = load_text(config.resolved_yaml);
  EXPECT_EQ(again.resolved_yaml, config.resolved_yaml);
  EXPECT_EQ(again, config) << config.resolved_yaml;
}

TEST(RunConfig, ReadsEverySection) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.seed, 7);
  EXPECT_EQ(config.trainer.max_steps, 10);
  EXPECT_EQ(config.trainer.gradient_clip_val, 1.0);
  EXPECT_EQ(config.model.num_kv_heads, 2);
  EXPECT_EQ(config.model.max_position_embeddings, 64);
  EXPECT_EQ(config.model.optim.beta2, 0.95);
  ASSERT_TRUE(config.model.optim.sched.has_value());
  EXPECT_EQ(config.model.optim.sched->warmup_steps, 2);
  EXPECT_TRUE(config.precision.master_weights);
}

TEST(RunConfig, ComputesDerivedNumbers) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(config.world_size(), 8);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_EQ(config.num_microbatches(), 4);
  EXPECT_EQ(config.model.vocab_size, 272) << "257 padded to a multiple of 8 · TP 2";
}

TEST(RunConfig, AppliesDefaults) {
  const RunConfig config = load_text(changed("  num_kv_heads: 2\n", ""), {"model.optim.sched=null", "model.max_position_embeddings=null",
                                                                            "trainer.gradient_clip_val=null", "precision=null"});
  EXPECT_EQ(config.model.num_kv_heads, 4);
  EXPECT_EQ(config.model.max_position_embeddings, 32);
  EXPECT_EQ(config.model.layernorm_epsilon, 1e-5);
  EXPECT_EQ(config.model.rope_theta, 10000);
  EXPECT_EQ(config.model.optim.sched, std::nullopt);
  EXPECT_EQ(config.trainer.gradient_clip_val, std::nullopt);
  EXPECT_EQ(config.trainer.num_nodes, 1);
  EXPECT_EQ(config.data.train_dir, "");
  EXPECT_EQ(config.precision.type, "mixed_precision");
}

TEST(RunConfig, VocabularyIsPaddedByNxdtsDefaultsWhenNothingIsSaid) {
  EXPECT_EQ(load_text(changed("  make_vocab_size_divisible_by: 8\n", "")).model.vocab_size, 512) << "megatron: a multiple of 128 · TP";
  const std::vector<std::string> hf = {"model_source=hf", "model.make_vocab_size_divisible_by=null"};
  EXPECT_EQ(load_text(kBaseConfig, hf).model.vocab_size, 258) << "hf: a multiple of TP";
  EXPECT_EQ(load_text(kBaseConfig, {"model.vocab_size=1000"}).model.vocab_size, 1008);
}

TEST(RunConfig, OverridesAndInterpolationReachTheValues) {
  const RunConfig config = load_text(changed("max_position_embeddings: 64", "max_position_embeddings: ${.encoder_seq_length}"),
                                     {"trainer.max_steps=5", "model.encoder_seq_length=128", "data.seq_length=${model.encoder_seq_length}"});
  EXPECT_EQ(config.trainer.max_steps, 5);
  EXPECT_EQ(config.model.max_position_embeddings, 128);
}

TEST(RunConfig, RatiosBecomeSteps) {
  const RunConfig config = load_text(changed("warmup_steps: 2", "warmup_ratio: 0.25"), {"trainer.max_steps=41", "model.optim.sched.constant_ratio=0.1"});
  EXPECT_EQ(config.model.optim.sched->warmup_steps, 10);
  EXPECT_EQ(config.model.optim.sched->constant_steps, 4);
}

TEST(RunConfig, PrecisionTypesResolve) {
  for (const char* type : {"fp32", "fp64"}) {
    const RunConfig config = load_text(kBaseConfig, {std::string("precision.type=") + type});
    EXPECT_FALSE(config.precision.master_weights || config.precision.fp32_grad_acc) << type;
  }
  EXPECT_TRUE(load_text(kBaseConfig, {"precision.parallel_layers_reduce_dtype=bf16"}).precision.fp32_grad_acc);
}

TEST(RunConfig, HardwareKeysAreAccepted) {
  EXPECT_EQ(problems_of(std::string(kBaseConfig) + R"(compiler_flags: --model-type transformer
compiler_cache_url: s3://bucket/cache
aync_exec_max_inflight_requests: 5
async_exec_max_inflight_requests: 5
bucket_size_collectives: 1024
neuron_rt_exec_timeout: 100
neuron_experimental_compress_rg: False
)"), "");
}

TEST(RunConfig, HuggingFaceModelTakesItsShapeFromConfigJson) {
  const TemporaryDirectory directory;
  const std::string json = directory.write("config.json", R"({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 128,
    "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-06, "max_position_embeddings": 512, "rope_scaling": null, "hidden_act": "silu", "torch_dtype": "bfloat16"})");
  const std::string text = R"(name: hf_llama
model_source: hf
trainer: {devices: 4, max_steps: 3}
distributed_strategy: {tensor_model_parallel_size: 4}
data: {micro_batch_size: 1, global_batch_size: 2}
model:
  model_config: )" + json + R"(
  num_layers: 2
  encoder_seq_length: 64
  optim: {lr: 1.0e-3}
)";
  const RunConfig config = load_text(text);
  EXPECT_EQ(config.model.num_layers, 2) << "the YAML overrides config.json";
  EXPECT_EQ(config.model.hidden_size, 128);
  EXPECT_EQ(config.model.ffn_hidden_size, 256);
  EXPECT_EQ(config.model.num_kv_heads, 4);
  EXPECT_EQ(config.model.vocab_size, 1000);
  EXPECT_EQ(config.model.rope_theta, 500000);
  EXPECT_EQ(config.model.layernorm_epsilon, 1e-6);
  EXPECT_EQ(config.model.max_position_embeddings, 512);
  expect_round_trip(config);
}

TEST(ResolvedYaml, LoadsAgainToAnEqualConfiguration) {
  expect_round_trip(load_text(kBaseConfig));
  expect_round_trip(load_text(kBaseConfig, {"model_source=hf", "model.rope_theta=500000.5", "model.optim.sched=null"}));
  expect_round_trip(load_text(kBaseConfig, {"trainer.gradient_clip_val=null", "precision.type=fp64", "model.optim.lr=0.123456789012345678",
                                            "model.do_layer_norm_weight_decay=true", "trainer.max_steps=9223372036854775807"}));
  expect_round_trip(load_text(changed("name: tiny\n", "name: \"a: \\\"b\\\" # \\\\ \\t c\"\n"), {"data.train_dir='/a dir/#1'"}));
}

TEST(ResolvedYaml, OfTheExamplesLoadsAgain) {
  for (const char* name : {"quickstart.yaml", "llama3_8b_trn1.yaml"}) expect_round_trip(example(name));
}

TEST(Examples, QuickstartUsesEveryAxis) {
  const RunConfig config = example("quickstart.yaml");
  EXPECT_EQ(config.tp(), 2);
  EXPECT_EQ(config.pp(), 2);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_GE(config.num_microbatches(), config.pp());
}

TEST(Examples, Llama3HasThePublishedSize) { EXPECT_EQ(example("llama3_8b_trn1.yaml").num_parameters(), 8'030'261'248); }

std::string misfit(const RunConfig& config, int nodes, int logical_cores) {
  try {
    check_fits_machine(config, "trn1.2xlarge", nodes, logical_cores);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckFitsMachine, AcceptsWhatFits) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(misfit(config, 1, 8), "");
  EXPECT_EQ(misfit(config, 3, 32), "");
}

TEST(CheckFitsMachine, NamesRanksCoresAndWhatToChange) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(misfit(config, 1, 2),
            "tiny: trainer.devices asks for 8 ranks per node, but a trn1.2xlarge has 2 logical cores: lower trainer.devices to 2 or less (and "
            "raise trainer.num_nodes and --nodes to keep the number of ranks), or choose a larger --instance");
  const RunConfig two_nodes = load_text(kBaseConfig, {"trainer.num_nodes=2"});
  EXPECT_EQ(misfit(two_nodes, 1, 8),
            "tiny: the run needs TP 2 × PP 2 × DP 4 = 16 ranks (trainer.devices 8 × trainer.num_nodes 2), but 1 × trn1.2xlarge has 8 logical "
            "cores: use --nodes 2, a larger --instance, or lower tensor_model_parallel_size, pipeline_model_parallel_size or trainer.devices × "
            "trainer.num_nodes");
}

}  // namespace
}  // namespace trellis::trainer
