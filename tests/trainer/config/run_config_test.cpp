#include "trainer/config/run_config.h"

#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>

#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "tests/trainer/config/base_config.h"
#include "tests/trainer/config/round_trip.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

RunConfig example(const std::string& name) {
  return load_run_config(std::string(TRELLIS_SOURCE_DIR) + "/examples/" + name, {});
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

TEST(RunConfig, SaysByWhichSoftwareItIsTimed) {
  EXPECT_EQ(load_text(kBaseConfig).software, "none");
  const RunConfig megatron = load_text(kBaseConfig, {"software=megatron"});
  EXPECT_EQ(megatron.software, "megatron");
  expect_round_trip(megatron);
  EXPECT_EQ(load_text(kBaseConfig, {"software=nxd@2.20"}).software, "nxd@2.20");
  const auto refuse = [](const char* software, const std::vector<std::string>& words) {
    try {
      load_text(kBaseConfig, {std::string("software=") + software});
      FAIL() << software << " is none";
    } catch (const ConfigError& error) {
      for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
    }
  };
  refuse("nemo", {"software", "none", "nxd", "optimum-neuron"});
  refuse("nxd@2.2", {"release of nxd", "2.20", "2.21", "2.28"});
  refuse("nxd@", {"release of nxd", "2.28"});
  refuse("none@2.20", {"software", "nxd"});
}

TEST(RunConfig, ComputesDerivedNumbers) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(config.world_size(), 8);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_EQ(config.num_microbatches(), 4);
  EXPECT_EQ(config.model.vocab_size, 272) << "257 padded to a multiple of 8 · TP 2";
}

TEST(RunConfig, AppliesDefaults) {
  const RunConfig config =
      load_text(changed("  num_kv_heads: 2\n", ""),
                {"model.optim.sched=null", "model.max_position_embeddings=null",
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
  EXPECT_EQ(load_text(changed("  make_vocab_size_divisible_by: 8\n", "")).model.vocab_size, 512)
      << "megatron: a multiple of 128 · TP";
  const std::vector<std::string> hf = {"model_source=hf",
                                       "model.make_vocab_size_divisible_by=null"};
  EXPECT_EQ(load_text(kBaseConfig, hf).model.vocab_size, 258) << "hf: a multiple of TP";
  EXPECT_EQ(load_text(kBaseConfig, {"model.vocab_size=1000"}).model.vocab_size, 1008);
}

TEST(RunConfig, OverridesAndInterpolationReachTheValues) {
  const RunConfig config = load_text(
      changed("max_position_embeddings: 64", "max_position_embeddings: ${.encoder_seq_length}"),
      {"trainer.max_steps=5", "model.encoder_seq_length=128",
       "data.seq_length=${model.encoder_seq_length}"});
  EXPECT_EQ(config.trainer.max_steps, 5);
  EXPECT_EQ(config.model.max_position_embeddings, 128);
}

TEST(RunConfig, RatiosBecomeSteps) {
  const RunConfig config =
      load_text(changed("warmup_steps: 2", "warmup_ratio: 0.25"),
                {"trainer.max_steps=41", "model.optim.sched.constant_ratio=0.1"});
  EXPECT_EQ(config.model.optim.sched->warmup_steps, 10);
  EXPECT_EQ(config.model.optim.sched->constant_steps, 4);
}

TEST(RunConfig, DerivedNumbersFollowOverrides) {
  const RunConfig config =
      load_text(kBaseConfig, {"trainer.num_nodes=2", "data.global_batch_size=32",
                              "distributed_strategy.pipeline_model_parallel_size=4"});
  EXPECT_EQ(config.world_size(), 16);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_EQ(config.num_microbatches(), 8);
}

TEST(RunConfig, MultiplyIsResolved) {
  const RunConfig config =
      load_text(kBaseConfig, {"model.ffn_hidden_size=${multiply:${distributed_strategy.tensor_"
                              "model_parallel_size}, ${.hidden_size}}"});
  EXPECT_EQ(config.model.ffn_hidden_size, 128);
}

/// Sets a variable of the environment for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Launch, CompileMakesADryRunOfTenStepsWithoutOutputs) {
  const Environment compile("COMPILE", "1");
  const RunConfig config = load_text(
      kBaseConfig, {"trainer.max_steps=500", "exp_manager.create_checkpoint_callback=true"});
  EXPECT_EQ(config.trainer.max_steps, 10);
  EXPECT_FALSE(config.exp_manager.create_tensorboard_logger);
  EXPECT_THAT(config.unsupported, testing::IsEmpty()) << "no checkpoints";
}

TEST(Launch, TrainItersReplacesTheNumberOfSteps) {
  const Environment iterations("TRAIN_ITERS", "77");
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.max_steps=500"}).trainer.max_steps, 77);
  const Environment compile("COMPILE", "0");
  EXPECT_EQ(load_text(kBaseConfig).trainer.max_steps, 77);
}

TEST(Launch, TrainItersMustBeANumberOfSteps) {
  const Environment iterations("TRAIN_ITERS", "many");
  EXPECT_EQ(
      problems_of(kBaseConfig),
      "TRAIN_ITERS: expected a number of steps of at least 1, got 'many'; correct it or unset it");
}

/// Lightning's and NxDT's own ways of writing it.
TEST(NxdtForms, AreAccepted) {
  const TrainerSection steps =
      load_text(kBaseConfig, {"trainer.max_steps=-1", "trainer.max_epochs=3"}).trainer;
  EXPECT_EQ(steps.max_steps, -1);
  EXPECT_EQ(steps.max_epochs, 3);
  EXPECT_FALSE(load_text(kBaseConfig, {"trainer.max_steps=-1", "trainer.max_epochs=3"})
                   .model.optim.sched.has_value())
      << "a schedule needs a length";
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.max_time={hours: 1, minutes: 30}"}).trainer.max_time_s,
            5400);
  EXPECT_EQ(load_text(kBaseConfig, {"exp_manager.max_time={days: 1}"}).trainer.max_time_s, 86400);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.min_steps=5"}).trainer.min_steps, 5);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.track_grad_norm=2"}).trainer.track_grad_norm, 2);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.track_grad_norm=inf"}).trainer.track_grad_norm,
            std::numeric_limits<double>::infinity());
  EXPECT_FALSE(
      load_text(kBaseConfig, {"trainer.track_grad_norm=-1"}).trainer.track_grad_norm.has_value());
  EXPECT_EQ(problems_of(kBaseConfig, {"model.nsys_profile={enabled: false, start_step: 10}"}), "");
  const RunConfig one =
      load_text(kBaseConfig, {"distributed_strategy.tensor_model_parallel_size=1"});
  EXPECT_FALSE(one.distributed_strategy.sequence_parallel) << "one rank has the whole sequence";
}

TEST(NxdtForms, DevicesAutoIsEveryLogicalCoreOfANode) {
  const TemporaryDirectory directory;
  const std::string file =
      directory.write("run.yaml", changed("global_batch_size: 16", "global_batch_size: 512"));
  const auto devices = [&](const std::string& instance, std::vector<std::string> overrides) {
    overrides.emplace_back("trainer.devices=auto");
    return load_run_config(file, overrides, instance).trainer.devices;
  };
  EXPECT_EQ(devices("trn1.32xlarge", {}), 32);
  EXPECT_EQ(devices("trn2.48xlarge", {}), 64);
  EXPECT_EQ(devices("trn2.48xlarge", {"trainer.lnc=1"}), 128);
  const RunCheck check =
      check_run_config(file, {"trainer.devices=auto", "trainer.lnc=2"}, "trn1.32xlarge");
  ASSERT_FALSE(check.problems.empty());
  EXPECT_THAT(check.problems.front(),
              testing::HasSubstr("trainer.devices: auto of trn1.32xlarge: "));
}

TEST(NxdtForms, WrongOnesAreNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.max_steps=-1"}),
              HasSubstr("trainer.max_steps: the run has no end"));
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.max_steps=-2"}),
              HasSubstr("must be at least 1, or -1"));
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.max_time={hour: 1}"}),
              HasSubstr("unknown unit of time; expected weeks, days, hours, minutes or seconds"));
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.max_time={hours: 0}"}),
              HasSubstr("must be more than 0 seconds"));
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.min_steps=11"}),
              HasSubstr("11 is more than max_steps 10"));
  EXPECT_THAT(problems_of(kBaseConfig, {"trainer.track_grad_norm=0"}),
              HasSubstr("must be a power greater than 0 or inf"));
  EXPECT_THAT(
      problems_of(kBaseConfig, {"exp_manager.create_early_stopping_callback=true",
                                "exp_manager.early_stopping_callback_params.monitor=val_los"}),
      HasSubstr("this run logs no `val_los`, did you mean `val_loss`?"));
  EXPECT_EQ(
      problems_of(kBaseConfig, {"exp_manager.create_early_stopping_callback=true",
                                "exp_manager.early_stopping_callback_params.monitor=throughput"}),
      "");
  EXPECT_THAT(problems_of(kBaseConfig,
                          {"exp_manager.create_early_stopping_callback=true",
                           "exp_manager.early_stopping_callback_params.monitor=parameter_norm"}),
              HasSubstr("this run logs no `parameter_norm`"))
      << "exp_manager.log_parameter_norm is off";
}

TEST(NxdtForms, ResolveToWhatTheySay) {
  const TemporaryDirectory directory;
  const std::vector<std::string> forms = {"trainer.max_steps=-1", "trainer.max_time={seconds: 1.5}",
                                          "trainer.min_steps=5", "trainer.track_grad_norm=inf",
                                          "model.skip_nan_grad=true"};
  RunConfig config = load_text(kBaseConfig, forms);
  RunConfig again = load_text(config.resolved_yaml);
  again.resolved_yaml = config.resolved_yaml;
  EXPECT_EQ(again, config);
}

struct Mode {
  const char* type;
  bool weights_bf16, floats_bf16, autocast, stochastic_rounding, master_weights, fp32_grad_acc;
  const char* reduce_dtype;
};

TEST(Precision, EachTypeMeansWhatTheTableSays) {
  constexpr Mode kModes[] = {
      {"mixed_precision", true, false, false, false, true, true, "bf16"},
      {"mixed_precisionSR", true, false, false, true, true, true, "bf16"},
      {"bf16SR", true, true, false, true, false, false, "bf16"},
      {"fp32", false, false, false, false, false, false, "fp32"},
      {"fp64", false, false, false, false, false, false, "fp64"},
      {"autocast", false, false, true, false, true, true, "fp32"},
      {"manual", false, false, false, false, false, false, "fp32"},
  };
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.type);
    const PrecisionSection precision =
        load_text(kBaseConfig, {std::string("precision.type=") + mode.type}).precision;
    const PrecisionSection expected{
        mode.type,          mode.weights_bf16,        mode.floats_bf16,
        mode.autocast,      mode.stochastic_rounding, mode.master_weights,
        mode.fp32_grad_acc, mode.reduce_dtype};
    EXPECT_EQ(precision, expected);
  }
}

TEST(Precision, WithoutZero1ThereAreNoMasters) {
  for (const char* type : {"mixed_precision", "mixed_precisionSR", "autocast"}) {
    const RunConfig config =
        load_text(kBaseConfig, {"model_source=hf", "distributed_strategy.zero1=false",
                                std::string("precision.type=") + type});
    EXPECT_FALSE(config.precision.master_weights || config.precision.fp32_grad_acc) << type;
  }
}

TEST(Precision, ManualCombinesFreely) {
  const PrecisionSection precision =
      load_text(kBaseConfig, {"precision.type=manual", "precision.master_weights=true",
                              "precision.xla_downcast_bf16='1'",
                              "precision.neuron_rt_stochastic_rounding_en='1'",
                              "precision.parallel_layers_reduce_dtype=fp32"})
          .precision;
  EXPECT_EQ(precision, (PrecisionSection{"manual", true, false, false, true, true, false, "fp32"}));
  EXPECT_TRUE(load_text(kBaseConfig, {"precision.type=manual", "precision.xla_use_bf16='1'"})
                  .precision.floats_bf16);
}

TEST(Precision, SwitchesOfManualChangeNoOtherType) {
  const RunConfig config =
      load_text(kBaseConfig, {"precision.master_weights=false", "precision.xla_downcast_bf16='0'"});
  EXPECT_TRUE(config.precision.master_weights && config.precision.weights_bf16);
}

TEST(RunConfig, HardwareKeysAreAccepted) {
  EXPECT_EQ(problems_of(std::string(kBaseConfig) + R"(compiler_flags: --model-type transformer
compiler_cache_url: s3://bucket/cache
aync_exec_max_inflight_requests: 5
async_exec_max_inflight_requests: 5
bucket_size_collectives: 1024
neuron_rt_exec_timeout: 100
neuron_experimental_compress_rg: False
)"),
            "");
}

TEST(RunConfig, HuggingFaceModelTakesItsShapeFromConfigJson) {
  const TemporaryDirectory directory;
  const std::string json = directory.write(
      "config.json", R"({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 128,
    "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 1000, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-06, "max_position_embeddings": 512, "rope_scaling": null,
    "hidden_act": "silu", "torch_dtype": "bfloat16"})");
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
  expect_round_trip(load_text(
      kBaseConfig, {"model_source=hf", "model.rope_theta=500000.5", "model.optim.sched=null"}));
  expect_round_trip(load_text(
      kBaseConfig, {"trainer.gradient_clip_val=null", "precision.type=fp64",
                    "model.optim.lr=0.123456789012345678", "model.do_layer_norm_weight_decay=true",
                    "trainer.max_steps=9223372036854775807"}));
  expect_round_trip(load_text(changed("name: tiny\n", "name: \"a: \\\"b\\\" # \\\\ \\t c\"\n"),
                              {"data.train_dir='/a dir/#1'"}));
}

TEST(ResolvedYaml, OfTheExamplesLoadsAgain) {
  for (const char* name : {"quickstart.yaml", "llama3_8b_trn1.yaml"})
    expect_round_trip(example(name));
}

/// One configuration that uses nearly every key.
TEST(ResolvedYaml, KeepsEveryKindOfKey) {
  expect_round_trip(
      load_text(kBaseConfig, {"trainer.max_time='00:00:01:30'", "trainer.val_check_interval=0.25",
                              "trainer.limit_val_batches=1.0", "trainer.limit_test_batches=3",
                              "trainer.check_val_every_n_epoch=null", "trainer.lnc=1"}));
  expect_round_trip(load_text(
      kBaseConfig,
      {"exp_manager.create_early_stopping_callback=true", "exp_manager.ema={enable: true}",
       "exp_manager.files_to_copy=[a]", "exp_manager.create_checkpoint_callback=true",
       "exp_manager.checkpoint_callback_params={save_top_k: 3, filename: 'x--{step}'}",
       "exp_manager.resume_from_checkpoint=/a/b", "compiler_flags=--model-type transformer",
       "bucket_size_collectives=512"}));
  expect_round_trip(load_text(
      kBaseConfig, {"model_source=hf", "distributed_strategy.zero1=false", "model.qkv_linear=true",
                    "precision.type=manual", "distributed_strategy.kv_replicator=2",
                    "model.num_kv_heads=1", "precision.xla_use_bf16='1'"}));
  expect_round_trip(load_text(
      kBaseConfig, {"data.data_prefix={train: [1, a], validation: [c], test: [d]}",
                    "data.dataloader_type=cyclic",
                    "data.tokenizer={library: sentencepiece, model: m}", "model.vocab_size=500"}));
  expect_round_trip(
      load_text(kBaseConfig,
                {"model_source=hf", "data.train_dir=arrow", "data.tokenizer=null",
                 "model.vocab_size=512", "model.torch_dtype=bfloat16", "precision.type=autocast"}));
  expect_round_trip(load_text(
      kBaseConfig,
      {"model.moe={num_experts: 4, dropless: true, sinkhorn_tol: None}",
       "distributed_strategy.context_parallel_size=2",
       "distributed_strategy.context_parallel_order=balanced", "model.fusions.ring_attention=true",
       "distributed_strategy.pipeline_model_parallel_size=1"}));
  expect_round_trip(load_text(
      kBaseConfig,
      {"model_source=hf", "model_alignment_strategy={dpo: {kl_beta: 0.2}, peft: {lora_rank: 4}}",
       "data.dev_choose_samples=10"}));
  expect_round_trip(load_text(
      kBaseConfig,
      {"model.activations_checkpoint_granularity=selective",
       "model.activations_checkpoint_recompute=[LlamaMLP]", "model.pipeline_cuts=[model.layers.0]",
       "model.sliding_window_size=8", "model.position_abf_factor=2"}));
  expect_round_trip(load_text(kBaseConfig, {"model.optim={name: rprop, lr: 0.5, etas: [0.4, 1.5], "
                                            "sched: {name: ReduceLROnPlateau, mode: max}}"}));
}

TEST(Examples, QuickstartUsesEveryAxis) {
  const RunConfig config = example("quickstart.yaml");
  EXPECT_EQ(config.tp(), 2);
  EXPECT_EQ(config.pp(), 2);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_GE(config.num_microbatches(), config.pp());
}

TEST(Examples, Llama3HasThePublishedSize) {
  EXPECT_EQ(example("llama3_8b_trn1.yaml").num_parameters(), 8'030'261'248);
}

std::string misfit(const RunConfig& config, const std::string& instance, int nodes) {
  try {
    check_fits_machine(config, sim::load_system(instance, nodes));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckFitsMachine, AcceptsWhatFits) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_EQ(misfit(config, "trn1.32xlarge", 1), "");
  EXPECT_EQ(misfit(config, "trn1.32xlarge", 3), "");
}

TEST(CheckFitsMachine, NamesRanksCoresAndWhatToChange) {
  const RunConfig config = load_text(kBaseConfig);
  EXPECT_THAT(misfit(config, "trn1.2xlarge", 1),
              testing::EndsWith(
                  "run.yaml:5:trainer.devices: asks for 8 ranks per node, but a trn1.2xlarge "
                  "has 2 logical cores: lower trainer.devices to 2 or less, or choose a larger "
                  "machine: --instance trn1.32xlarge or trn1n.32xlarge or trn2.48xlarge or "
                  "trn2u.48xlarge or trn3-gen1 or trn3-gen2"));
  const RunConfig two_nodes = load_text(kBaseConfig, {"trainer.num_nodes=2"});
  EXPECT_EQ(misfit(two_nodes, "trn1.32xlarge", 1),
            "command line:trainer.num_nodes: the run needs TP 2 × PP 2 × DP 4 = 16 ranks "
            "(trainer.devices 8 × trainer.num_nodes 2), but 1 × trn1.32xlarge has 32 logical "
            "cores: use --nodes 2, a larger --instance, or lower tensor_model_parallel_size, "
            "pipeline_model_parallel_size or trainer.devices × "
            "trainer.num_nodes");
}

}  // namespace
}  // namespace trellis::trainer
