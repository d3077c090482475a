#include "trainer/config/run_config.h"

#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>

#include "sim/config/system_config.h"
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

TEST(RunConfig, SaysByWhichSoftwareItIsTimed) {
  EXPECT_EQ(load_text(kBaseConfig).software, "none");
  const RunConfig megatron = load_text(kBaseConfig, {"software=megatron"});
  EXPECT_EQ(megatron.software, "megatron");
  expect_round_trip(megatron);
  try {
    load_text(kBaseConfig, {"software=nemo"});
    FAIL() << "no such software";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("software"), HasSubstr("nxd"), HasSubstr("optimum-neuron")));
  }
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

TEST(RunConfig, DerivedNumbersFollowOverrides) {
  const RunConfig config = load_text(kBaseConfig, {"trainer.num_nodes=2", "data.global_batch_size=32", "distributed_strategy.pipeline_model_parallel_size=4"});
  EXPECT_EQ(config.world_size(), 16);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_EQ(config.num_microbatches(), 8);
}

TEST(RunConfig, MultiplyIsResolved) {
  const RunConfig config = load_text(
      kBaseConfig, {"model.ffn_hidden_size=${multiply:${distributed_strategy.tensor_model_parallel_size}, ${.hidden_size}}"});
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
  const RunConfig config = load_text(kBaseConfig, {"trainer.max_steps=500", "exp_manager.create_checkpoint_callback=true"});
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
  EXPECT_EQ(problems_of(kBaseConfig), "TRAIN_ITERS: expected a number of steps of at least 1, got 'many'; correct it or unset it");
}

/// Lightning's and NxDT's own ways of writing it.
TEST(NxdtForms, AreAccepted) {
  const TrainerSection steps = load_text(kBaseConfig, {"trainer.max_steps=-1",
      "trainer.max_epochs=3"}).trainer;
  EXPECT_EQ(steps.max_steps, -1);
  EXPECT_EQ(steps.max_epochs, 3);
  EXPECT_FALSE(load_text(kBaseConfig, {"trainer.max_steps=-1",
      "trainer.max_epochs=3"}).model.optim.sched.has_value()) << "a schedule needs a length";
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.max_time={hours: 1, minutes: 30}"}).trainer.max_time_s,
      5400);
  EXPECT_EQ(load_text(kBaseConfig, {"exp_manager.max_time={days: 1}"}).trainer.max_time_s, 86400);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.min_steps=5"}).trainer.min_steps, 5);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.track_grad_norm=2"}).trainer.track_grad_norm, 2);
  EXPECT_EQ(load_text(kBaseConfig, {"trainer.track_grad_norm=inf"}).trainer.track_grad_norm,
      std::numeric_limits<double>::infinity());
  EXPECT_FALSE(load_text(kBaseConfig,
      {"trainer.track_grad_norm=-1"}).trainer.track_grad_norm.has_value());
  EXPECT_EQ(problems_of(kBaseConfig, {"model.nsys_profile={enabled: false, start_step: 10}"}), "");
  const RunConfig one = load_text(kBaseConfig,
      {"distributed_strategy.tensor_model_parallel_size=1"});
  EXPECT_FALSE(one.distributed_strategy.sequence_parallel) << "one rank has the whole sequence";
}

TEST(NxdtForms, DevicesAutoIsEveryLogicalCoreOfANode) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("run.yaml", changed("global_batch_size: 16",
      "global_batch_size: 512"));
  const auto devices = [&](const std::string& instance, std::vector<std::string> overrides) {
    overrides.emplace_back("trainer.devices=auto");
    return load_run_config(file, overrides, instance).trainer.devices;
  };
  EXPECT_EQ(devices("trn1.32xlarge", {}), 32);
  EXPECT_EQ(devices("trn2.48xlarge", {}), 64);
  EXPECT_EQ(devices("trn2.48xlarge", {"trainer.lnc=1"}), 128);
  const RunCheck check = check_run_config(file, {"trainer.devices=auto", "trainer.lnc=2"},
      "trn1.32xlarge");
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
  EXPECT_THAT(problems_of(kBaseConfig, {"exp_manager.create_early_stopping_callback=true",
      "exp_manager.early_stopping_callback_params.monitor=val_los"}),
              HasSubstr("this run logs no `val_los`, did you mean `val_loss`?"));
  EXPECT_EQ(problems_of(kBaseConfig, {"exp_manager.create_early_stopping_callback=true",
      "exp_manager.early_stopping_callback_params.monitor=throughput"}), "");
  EXPECT_THAT(problems_of(kBaseConfig, {"exp_manager.create_early_stopping_callback=true",
      "exp_manager.early_stopping_callback_params.monitor=parameter_norm"}),
              HasSubstr("this run logs no `parameter_norm`"))
                  << "exp_manager.log_parameter_norm is off";
}

TEST(NxdtForms, ResolveToWhatTheySay) {
  const TemporaryDirectory directory;
  const std::vector<std::string> forms = {"trainer.max_steps=-1", "trainer.max_time={seconds: 1.5}",
      "trainer.min_steps=5", "trainer.track_grad_norm=inf", "model.skip_nan_grad=true"};
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
      {"mixed_precision", true, false, false, false, true, true, "bf16"}, {"mixed_precisionSR", true, false, false, true, true, true, "bf16"},
      {"bf16SR", true, true, false, true, false, false, "bf16"},          {"fp32", false, false, false, false, false, false, "fp32"},
      {"fp64", false, false, false, false, false, false, "fp64"},
      {"autocast", false, false, true, false, true, true, "fp32"},
      {"manual", false, false, false, false, false, false, "fp32"},
  };
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.type);
    const PrecisionSection precision = load_text(kBaseConfig, {std::string("precision.type=") + mode.type}).precision;
    const PrecisionSection expected{mode.type,           mode.weights_bf16,  mode.floats_bf16, mode.autocast, mode.stochastic_rounding,
                                    mode.master_weights, mode.fp32_grad_acc, mode.reduce_dtype};
    EXPECT_EQ(precision, expected);
  }
}

TEST(Precision, WithoutZero1ThereAreNoMasters) {
  for (const char* type : {"mixed_precision", "mixed_precisionSR", "autocast"}) {
    const RunConfig config =
        load_text(kBaseConfig, {"model_source=hf", "distributed_strategy.zero1=false", std::string("precision.type=") + type});
    EXPECT_FALSE(config.precision.master_weights || config.precision.fp32_grad_acc) << type;
  }
}

TEST(Precision, ManualCombinesFreely) {
  const PrecisionSection precision = load_text(kBaseConfig, {"precision.type=manual", "precision.master_weights=true", "precision.xla_downcast_bf16='1'",
                                                             "precision.neuron_rt_stochastic_rounding_en='1'",
                                                             "precision.parallel_layers_reduce_dtype=fp32"}).precision;
  EXPECT_EQ(precision, (PrecisionSection{"manual", true, false, false, true, true, false, "fp32"}));
  EXPECT_TRUE(load_text(kBaseConfig, {"precision.type=manual", "precision.xla_use_bf16='1'"}).precision.floats_bf16);
}

TEST(Precision, SwitchesOfManualChangeNoOtherType) {
  const RunConfig config = load_text(kBaseConfig, {"precision.master_weights=false", "precision.xla_downcast_bf16='0'"});
  EXPECT_TRUE(config.precision.master_weights && config.precision.weights_bf16);
}

TEST(Data, TheKindFollowsFromTheKeys) {
  const auto kind = [](const std::vector<std::string>& overrides) { return load_text(kBaseConfig, overrides).data.kind; };
  EXPECT_EQ(kind({}), DataKind::kText);
  EXPECT_EQ(kind({"data.train_dir=text"}), DataKind::kText);
  EXPECT_EQ(kind({"data.data_prefix=[1.0, a]", "data.splits_string=980/10/10", "data.dataloader_type=cyclic"}), DataKind::kMegatron);
  EXPECT_EQ(kind({"model_source=hf", "data.train_dir=arrow", "data.tokenizer=null", "model.vocab_size=512"}), DataKind::kHfDataset);
  EXPECT_EQ(kind({"model_source=hf", "data.train_dir=text"}), DataKind::kText) << "a tokenizer is for text";
  EXPECT_EQ(kind({"model_source=hf", "model_alignment_strategy={sft: {packing: true}}"}), DataKind::kAlignment);
}

TEST(Data, MegatronDataIsABlendOrOneListPerSplit) {
  const DataSection blend = load_text(kBaseConfig, {"data.data_prefix=[0.3, a, 0.7, b]", "data.splits_string='980,10,10'", "data.dataloader_type=single"}).data;
  EXPECT_THAT(blend.data_prefix, testing::ElementsAre(DataPrefix{0.3, "a"}, DataPrefix{0.7, "b"}));
  EXPECT_THAT(blend.splits, testing::ElementsAre(980, 10, 10));
  const DataSection lists =
      load_text(kBaseConfig, {"data.data_prefix={train: [1, a, 2, b], validation: [c], test: d}", "data.dataloader_type=cyclic"}).data;
  EXPECT_TRUE(lists.cyclic);
  EXPECT_THAT(lists.data_prefix_by_split.at("train"), testing::ElementsAre(DataPrefix{1, "a"}, DataPrefix{2, "b"}));
  EXPECT_THAT(lists.data_prefix_by_split.at("validation"), testing::ElementsAre(DataPrefix{1, "c"}));
  EXPECT_THAT(lists.data_prefix_by_split.at("test"), testing::ElementsAre(DataPrefix{1, "d"}));
}

TEST(Data, TheVocabularyComesFromTheTokenizersFiles) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 700}}, "added_tokens": [{"id": 999, "content": "x"}]})");
  const std::vector<std::string> tokenizer = {"data.tokenizer.library=huggingface", "data.tokenizer.type=" + file};
  EXPECT_EQ(load_text(kBaseConfig, tokenizer).model.vocab_size, 1008) << "1000 padded to a multiple of 8 · TP 2";
  EXPECT_EQ(load_text(kBaseConfig, {"data.tokenizer={library: megatron, type: GPT2BPETokenizer}"}).model.vocab_size, 50272);
}

/// A protocol buffer with records of field 1 (pieces) among others: a normalizer (3), a number (8), fixed numbers (9, 10).
std::string sentencepiece_model(int pieces) {
  std::string bytes;
  for (int i = 0; i < pieces; ++i) bytes += std::string("\x0A\x08\x0A\x01", 4) + static_cast<char>('a' + i % 26) + std::string("\x15\0\0\x80\xBF", 5);
  return bytes + std::string("\x1A\x02\x10\x01\x40\xAC\x02\x49\1\2\3\4\5\6\7\x08\x55\1\2\3\4", 21);
}

TEST(Data, TheVocabularyComesFromASentencePieceModel) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("tokenizer.model", sentencepiece_model(1000));
  for (const std::string library : {"library: sentencepiece", "library: megatron, type: GPTSentencePieceTokenizer"}) {
    const std::string tokenizer = "data.tokenizer={" + library + ", model: " + file + "}";
    EXPECT_EQ(load_text(kBaseConfig, {tokenizer}).model.vocab_size, 1008) << "1000 padded to a multiple of 8 · TP 2";
    EXPECT_NE(problems_of(kBaseConfig, {tokenizer, "model.vocab_size=999"}).find("tokenizer needs at least 1000"), std::string::npos);
    for (const std::string& broken : {sentencepiece_model(1000).substr(0, 9005), std::string(), std::string("\xFF\xFF"), std::string("\x0F")}) {
      directory.write("tokenizer.model", broken);
      EXPECT_NE(problems_of(kBaseConfig, {tokenizer}).find("does not tell the size of its vocabulary"), std::string::npos);
    }
    directory.write("tokenizer.model", sentencepiece_model(1000));
  }
  EXPECT_NE(problems_of(kBaseConfig, {"data.tokenizer={library: megatron, type: GPTSentencePieceTokenizer}"}).find("data.tokenizer.model"), std::string::npos);
}

TEST(Trainer, ReadsBatchCountsAndDurations) {
  const TrainerSection trainer =
      load_text(kBaseConfig, {"trainer.val_check_interval=0.5", "trainer.limit_val_batches=4", "trainer.limit_test_batches=0.0", "trainer.limit_train_batches=1.0",
                              "trainer.check_val_every_n_epoch=null", "trainer.max_time='01:02:03:04'", "trainer.lnc=2", "trainer.max_epochs=3"}).trainer;
  EXPECT_EQ(trainer.val_check_interval, (BatchCount{std::nullopt, 0.5}));
  EXPECT_EQ(trainer.limit_val_batches, (BatchCount{4, std::nullopt}));
  EXPECT_TRUE(trainer.limit_test_batches->is_zero());
  EXPECT_EQ(trainer.limit_train_batches, (BatchCount{std::nullopt, 1.0}));
  EXPECT_EQ(trainer.check_val_every_n_epoch, std::nullopt);
  EXPECT_EQ(trainer.max_time_s, 86400 + 2 * 3600 + 3 * 60 + 4);
  EXPECT_EQ(trainer.lnc, 2);
  EXPECT_EQ(trainer.max_epochs, 3);
}

TEST(ExpManager, ReadsItsCallbacks) {
  const ExpManagerSection section =
      load_text(kBaseConfig, {"exp_manager.create_early_stopping_callback=true", "exp_manager.early_stopping_callback_params={patience: 3, mode: max}",
                              "exp_manager.ema={enable: true, decay: 0.99, every_n_steps: 5}", "exp_manager.files_to_copy=[a, b]",
                              "exp_manager.log_local_rank_0_only=true", "exp_manager.log_parameter_norm=true"}).exp_manager;
  EXPECT_EQ(section.early_stopping, (EarlyStoppingSection{.mode = "max", .patience = 3}));
  EXPECT_EQ(section.ema, (EmaSection{.decay = 0.99, .apply_ema_every_n_steps = 5}));
  EXPECT_THAT(section.files_to_copy, testing::ElementsAre("a", "b"));
  EXPECT_TRUE(section.log_local_rank_0_only && section.log_parameter_norm && !section.log_gradient_norm);
}

TEST(ExpManager, FalseIsNotTakenForAbsent) {
  const RunConfig config = load_text(kBaseConfig, {"exp_manager.create_tensorboard_logger=false", "exp_manager.log_step_timing=false", "model.fuse_qkv=false",
                                                   "trainer.limit_val_batches=0", "model.use_scaled_init_method=false"});
  EXPECT_FALSE(config.exp_manager.create_tensorboard_logger || config.exp_manager.log_step_timing);
  EXPECT_FALSE(config.model.fuse_qkv || config.model.use_scaled_init_method);
  EXPECT_TRUE(config.trainer.limit_val_batches->is_zero());
}

TEST(Model, MegatronsDefaultsAreNxdts) {
  std::string text = kBaseConfig;
  for (const char* line : {"  normalization: rmsnorm\n", "  activation: swiglu\n", "  position_embedding_type: rope\n", "  has_bias: false\n",
                           "  share_embeddings_and_output_weights: false\n", "  hidden_dropout: 0\n"}) {
    text.erase(text.find(line), std::string(line).size());
  }
  const ModelSection model = load_text(text).model;
  EXPECT_EQ(model.normalization, Normalization::kLayerNorm);
  EXPECT_EQ(model.activation, Activation::kGelu);
  EXPECT_EQ(model.position_embedding, PositionEmbedding::kLearnedAbsolute);
  EXPECT_TRUE(model.has_bias && model.share_embeddings_and_output_weights && model.use_scaled_init_method && model.apply_query_key_layer_scaling);
  EXPECT_EQ(model.hidden_dropout, 0.1);
  EXPECT_EQ(model.architecture, "gpt");
}

TEST(Model, HfModelsAreLlamaAndRecomputeScoresWithoutFlashAttention) {
  const ModelSection flash = load_text(kBaseConfig, {"model_source=hf"}).model;
  EXPECT_EQ(flash.architecture, "llama");
  EXPECT_TRUE(flash.flash_attention && !flash.use_scaled_init_method && !flash.apply_query_key_layer_scaling);
  EXPECT_EQ(flash.recompute, Recompute::kNone);
  const ModelSection plain = load_text(kBaseConfig, {"model_source=hf", "model.fusions.flash_attention=false"}).model;
  EXPECT_THAT(plain.recompute_modules, testing::ElementsAre("CoreAttention"));
}

TEST(Model, ScalesOfRopeComeFromEitherSource) {
  EXPECT_EQ(load_text(kBaseConfig, {"model.positition_interpolation_factor=4"}).model.rope_scaling, (RopeScaling{.type = "linear", .factor = 4}));
  EXPECT_EQ(load_text(kBaseConfig, {"model.position_freq_base=1000", "model.position_abf_factor=5"}).model.rope_theta, 5000);
  const TemporaryDirectory directory;
  for (const char* spelling : {R"("rope_type": "llama3")", R"("type": "llama3")"}) {
    const std::string json = directory.write(
        "config.json", std::string(R"({"rope_scaling": {)") + spelling + R"(, "factor": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}})");
    const ModelSection model = load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + json}).model;
    EXPECT_EQ(model.rope_scaling, (RopeScaling{"llama3", 32, 1, 4, 64})) << "original_max_position_embeddings is max_position_embeddings";
  }
  const std::string newer = directory.write("newer.json", R"({"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}})");
  EXPECT_EQ(load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + newer}).model.rope_theta, 250000);
  const std::string yarn = directory.write("yarn.json", R"({"rope_scaling": {"type": "yarn", "factor": 4}})");
  const RunConfig unsupported = load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + yarn});
  EXPECT_THAT(unsupported.unsupported, testing::ElementsAre(UnsupportedFeature{"model.rope_scaling", "RoPE scaling of type yarn"}));
  expect_round_trip(unsupported);
}

TEST(Model, ExplicitHeadsAreHonoured) {
  const TemporaryDirectory directory;
  const std::string json = directory.write("config.json", R"({"model_type": "mistral", "head_dim": 32, "hidden_size": 64, "num_attention_heads": 4,
    "sliding_window": 16, "tie_word_embeddings": true, "attention_dropout": 0.25})");
  const std::vector<std::string> hf = {"model_source=hf", "model.model_config=" + json, "model.share_embeddings_and_output_weights=null"};
  const ModelSection model = load_text(kBaseConfig, hf).model;
  EXPECT_EQ(model.head_dim, 32) << "not hidden_size / num_attention_heads = 16";
  EXPECT_EQ(model.sliding_window, 16);
  EXPECT_TRUE(model.share_embeddings_and_output_weights);
  EXPECT_EQ(model.attention_dropout, 0.25);
  EXPECT_EQ(load_text(kBaseConfig, {"model.kv_channels=8"}).model.head_dim, 8);
}

TEST(Model, AConfigJsonIsFoundBesideTheYaml) {
  const TemporaryDirectory directory;
  directory.write("config.json", R"({"num_hidden_layers": 6})");
  const std::string yaml = directory.write("run.yaml", changed("  num_layers: 4\n", "  model_config: config.json\n"));
  EXPECT_EQ(load_run_config(yaml, {"model_source=hf"}).model.num_layers, 6);
}

TEST(Model, AnyNumberOfVirtualStagesUpToTheLayersIsLegal) {
  const RunConfig config = load_text(kBaseConfig, {"model_source=hf", "distributed_strategy.virtual_pipeline_model_parallel_size=2", "model.num_layers=7"});
  EXPECT_EQ(config.vpp(), 2);
}

TEST(Unsupported, IsLegalListedAndRefusedByName) {
  const RunConfig config = load_text(kBaseConfig, {"model.moe={num_experts: 8}", "exp_manager.resume_if_exists=true"});
  EXPECT_THAT(config.unsupported, testing::ElementsAre(UnsupportedFeature{"model.moe", "mixture of experts (8 experts)", true},
                                                       UnsupportedFeature{"exp_manager.resume_if_exists",
                                                                          "checkpoints are not read in this version; exp_manager.resume_if_exists=false does without",
                                                                          false}));
  const auto refusal = [&](bool simulate) -> std::string {
    try {
      refuse_unsupported(config, simulate);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(false), testing::AllOf(HasSubstr("command line:model.moe: mixture of experts"), HasSubstr("exp_manager.resume_if_exists")));
  EXPECT_THAT(refusal(true), testing::AllOf(HasSubstr("model.moe: mixture of experts"), testing::Not(HasSubstr("resume_if_exists"))));
}

TEST(Optim, EveryNameHasItsDefaultsAndArguments) {
  const auto optim = [](const std::string& text) { return load_text(kBaseConfig, {"model.optim=" + text}).model.optim; };
  EXPECT_EQ(optim("{name: adamw_fp32OptState, lr: 1}").eps, 1e-6);
  EXPECT_EQ(optim("{name: novograd, lr: 1}").beta1, 0.95);
  EXPECT_THAT(optim("{name: sgd, lr: 1, momentum: 0.9, nesterov: true}").arguments,
              testing::UnorderedElementsAre(testing::Pair("momentum", 0.9), testing::Pair("nesterov", 1)));
  EXPECT_THAT(optim("{name: rprop, lr: 1, etas: [0.4, 1.3]}").arguments, testing::UnorderedElementsAre(testing::Pair("etas_0", 0.4), testing::Pair("etas_1", 1.3)));
  EXPECT_THAT(optim("{name: adafactor, lr: 1, eps: [1.0e-20, 1.0e-2]}").arguments,
              testing::UnorderedElementsAre(testing::Pair("eps_0", 1e-20), testing::Pair("eps_1", 1e-2)));
  EXPECT_EQ(optim("{name: adafactor, relative_step: true}").lr, 0);
  const auto cyclic = optim("{name: sgd, lr: 1, sched: {name: CyclicLR, mode: exp_range, cycle_momentum: false}}").sched;
  EXPECT_EQ(cyclic->arguments.at("mode"), 2);
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

/// One configuration that uses nearly every key.
TEST(ResolvedYaml, KeepsEveryKindOfKey) {
  expect_round_trip(load_text(kBaseConfig, {"trainer.max_time='00:00:01:30'", "trainer.val_check_interval=0.25", "trainer.limit_val_batches=1.0",
                                            "trainer.limit_test_batches=3", "trainer.check_val_every_n_epoch=null", "trainer.lnc=1"}));
  expect_round_trip(load_text(kBaseConfig, {"exp_manager.create_early_stopping_callback=true", "exp_manager.ema={enable: true}", "exp_manager.files_to_copy=[a]",
                                            "exp_manager.create_checkpoint_callback=true", "exp_manager.checkpoint_callback_params={save_top_k: 3, filename: 'x--{step}'}",
                                            "exp_manager.resume_from_checkpoint=/a/b", "compiler_flags=--model-type transformer", "bucket_size_collectives=512"}));
  expect_round_trip(load_text(kBaseConfig, {"model_source=hf", "distributed_strategy.zero1=false", "model.qkv_linear=true", "precision.type=manual",
                                            "distributed_strategy.kv_replicator=2", "model.num_kv_heads=1", "precision.xla_use_bf16='1'"}));
  expect_round_trip(load_text(kBaseConfig, {"data.data_prefix={train: [1, a], validation: [c], test: [d]}", "data.dataloader_type=cyclic",
                                            "data.tokenizer={library: sentencepiece, model: m}", "model.vocab_size=500"}));
  expect_round_trip(load_text(kBaseConfig, {"model_source=hf", "data.train_dir=arrow", "data.tokenizer=null", "model.vocab_size=512", "model.torch_dtype=bfloat16", "precision.type=autocast"}));
  expect_round_trip(load_text(kBaseConfig, {"model.moe={num_experts: 4, dropless: true, sinkhorn_tol: None}", "distributed_strategy.context_parallel_size=2",
                                            "model.fusions.ring_attention=true", "distributed_strategy.pipeline_model_parallel_size=1"}));
  expect_round_trip(load_text(kBaseConfig, {"model_source=hf", "model_alignment_strategy={dpo: {kl_beta: 0.2}, peft: {lora_rank: 4}}", "data.dev_choose_samples=10"}));
  expect_round_trip(load_text(kBaseConfig, {"model.activations_checkpoint_granularity=selective", "model.activations_checkpoint_recompute=[LlamaMLP]",
                                            "model.pipeline_cuts=[model.layers.0]", "model.sliding_window_size=8", "model.position_abf_factor=2"}));
  expect_round_trip(load_text(kBaseConfig, {"model.optim={name: rprop, lr: 0.5, etas: [0.4, 1.5], sched: {name: ReduceLROnPlateau, mode: max}}"}));
}

TEST(Examples, QuickstartUsesEveryAxis) {
  const RunConfig config = example("quickstart.yaml");
  EXPECT_EQ(config.tp(), 2);
  EXPECT_EQ(config.pp(), 2);
  EXPECT_EQ(config.dp(), 2);
  EXPECT_GE(config.num_microbatches(), config.pp());
}

TEST(Examples, Llama3HasThePublishedSize) { EXPECT_EQ(example("llama3_8b_trn1.yaml").num_parameters(), 8'030'261'248); }

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
  EXPECT_THAT(misfit(config, "trn1.2xlarge", 1), testing::EndsWith(
            "run.yaml:5:trainer.devices: asks for 8 ranks per node, but a trn1.2xlarge has 2 logical cores: lower trainer.devices to 2 or less (and "
            "raise trainer.num_nodes to keep the number of ranks), or choose a larger machine: --instance trn1.32xlarge or trn1n.32xlarge or trn2.48xlarge or "
            "trn2u.48xlarge or trn3-gen1 or trn3-gen2"));
  const RunConfig two_nodes = load_text(kBaseConfig, {"trainer.num_nodes=2"});
  EXPECT_EQ(misfit(two_nodes, "trn1.32xlarge", 1),
            "command line:trainer.num_nodes: the run needs TP 2 × PP 2 × DP 4 = 16 ranks (trainer.devices 8 × trainer.num_nodes 2), but 1 × trn1.32xlarge has 32 logical "
            "cores: use --nodes 2, a larger --instance, or lower tensor_model_parallel_size, pipeline_model_parallel_size or trainer.devices × "
            "trainer.num_nodes");
}

}  // namespace
}  // namespace trellis::trainer
