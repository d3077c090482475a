// Sections of the configuration, one after the other: data, trainer, exp_manager, model, optim.
#include "trainer/config/run_config.h"

#include <cstdlib>
#include <limits>
#include <map>

#include <gmock/gmock.h>

#include "sim/config/system_config.h"
#include "tests/trainer/config/base_config.h"
#include "tests/trainer/config/round_trip.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

TEST(Data, TheKindFollowsFromTheKeys) {
  const auto kind = [](const std::vector<std::string>& overrides) {
    return load_text(kBaseConfig, overrides).data.kind;
  };
  EXPECT_EQ(kind({}), DataKind::kText);
  EXPECT_EQ(kind({"data.train_dir=text"}), DataKind::kText);
  EXPECT_EQ(kind({"data.data_prefix=[1.0, a]", "data.splits_string=980/10/10",
                  "data.dataloader_type=cyclic"}),
            DataKind::kMegatron);
  EXPECT_EQ(kind({"model_source=hf", "data.train_dir=arrow", "data.tokenizer=null",
                  "model.vocab_size=512"}),
            DataKind::kHfDataset);
  EXPECT_EQ(kind({"model_source=hf", "data.train_dir=text"}), DataKind::kText)
      << "a tokenizer is for text";
  EXPECT_EQ(kind({"model_source=hf", "model_alignment_strategy={sft: {packing: true}}"}),
            DataKind::kAlignment);
}

TEST(Data, MegatronDataIsABlendOrOneListPerSplit) {
  const DataSection blend =
      load_text(kBaseConfig, {"data.data_prefix=[0.3, a, 0.7, b]", "data.splits_string='980,10,10'",
                              "data.dataloader_type=single"})
          .data;
  EXPECT_THAT(blend.data_prefix, testing::ElementsAre(DataPrefix{0.3, "a"}, DataPrefix{0.7, "b"}));
  EXPECT_THAT(blend.splits, testing::ElementsAre(980, 10, 10));
  const DataSection lists =
      load_text(kBaseConfig, {"data.data_prefix={train: [1, a, 2, b], validation: [c], test: d}",
                              "data.dataloader_type=cyclic"})
          .data;
  EXPECT_TRUE(lists.cyclic);
  EXPECT_THAT(lists.data_prefix_by_split.at("train"),
              testing::ElementsAre(DataPrefix{1, "a"}, DataPrefix{2, "b"}));
  EXPECT_THAT(lists.data_prefix_by_split.at("validation"),
              testing::ElementsAre(DataPrefix{1, "c"}));
  EXPECT_THAT(lists.data_prefix_by_split.at("test"), testing::ElementsAre(DataPrefix{1, "d"}));
}

TEST(Data, TheVocabularyComesFromTheTokenizersFiles) {
  const TemporaryDirectory directory;
  const std::string file = directory.write(
      "tokenizer.json",
      R"({"model": {"vocab": {"a": 0, "b": 700}}, "added_tokens": [{"id": 999, "content": "x"}]})");
  const std::vector<std::string> tokenizer = {"data.tokenizer.library=huggingface",
                                              "data.tokenizer.type=" + file};
  EXPECT_EQ(load_text(kBaseConfig, tokenizer).model.vocab_size, 704)
      << "701 padded to a multiple of 8 · TP 2: the added token has the next free id, 2, as "
         "transformers gives it";
  EXPECT_EQ(load_text(kBaseConfig, {"data.tokenizer={library: megatron, type: GPT2BPETokenizer}"})
                .model.vocab_size,
            50272);
}

/// A protocol buffer with records of field 1 (pieces) among others: a normalizer (3), a number (8),
/// fixed numbers (9, 10).
std::string sentencepiece_model(int pieces) {
  std::string bytes;
  for (int i = 0; i < pieces; ++i)
    bytes += std::string("\x0A\x08\x0A\x01", 4) + static_cast<char>('a' + i % 26) +
             std::string("\x15\0\0\x80\xBF", 5);
  return bytes + std::string("\x1A\x02\x10\x01\x40\xAC\x02\x49\1\2\3\4\5\6\7\x08\x55\1\2\3\4", 21);
}

TEST(Data, TheVocabularyComesFromASentencePieceModel) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("tokenizer.model", sentencepiece_model(1000));
  for (const std::string library :
       {"library: sentencepiece", "library: megatron, type: GPTSentencePieceTokenizer"}) {
    const std::string tokenizer = "data.tokenizer={" + library + ", model: " + file + "}";
    EXPECT_EQ(load_text(kBaseConfig, {tokenizer}).model.vocab_size, 1008)
        << "1000 padded to a multiple of 8 · TP 2";
    EXPECT_NE(problems_of(kBaseConfig, {tokenizer, "model.vocab_size=999"})
                  .find("tokenizer needs at least 1000"),
              std::string::npos);
    for (const std::string& broken : {sentencepiece_model(1000).substr(0, 9005), std::string(),
                                      std::string("\xFF\xFF"), std::string("\x0F")}) {
      directory.write("tokenizer.model", broken);
      EXPECT_NE(
          problems_of(kBaseConfig, {tokenizer}).find("does not state the size of its vocabulary"),
          std::string::npos);
    }
    directory.write("tokenizer.model", sentencepiece_model(1000));
  }
  EXPECT_NE(problems_of(kBaseConfig,
                        {"data.tokenizer={library: megatron, type: GPTSentencePieceTokenizer}"})
                .find("data.tokenizer.model"),
            std::string::npos);
}

TEST(Trainer, ReadsBatchCountsAndDurations) {
  const TrainerSection trainer =
      load_text(kBaseConfig,
                {"trainer.val_check_interval=0.5", "trainer.limit_val_batches=4",
                 "trainer.limit_test_batches=0.0", "trainer.limit_train_batches=1.0",
                 "trainer.check_val_every_n_epoch=null", "trainer.max_time='01:02:03:04'",
                 "trainer.lnc=2", "trainer.max_epochs=3"})
          .trainer;
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
      load_text(kBaseConfig,
                {"exp_manager.create_early_stopping_callback=true",
                 "exp_manager.early_stopping_callback_params={patience: 3, mode: max}",
                 "exp_manager.ema={enable: true, decay: 0.99, every_n_steps: 5}",
                 "exp_manager.files_to_copy=[a, b]", "exp_manager.log_local_rank_0_only=true",
                 "exp_manager.log_parameter_norm=true"})
          .exp_manager;
  EXPECT_EQ(section.early_stopping, (EarlyStoppingSection{.mode = "max", .patience = 3}));
  EXPECT_EQ(section.ema, (EmaSection{.decay = 0.99, .apply_ema_every_n_steps = 5}));
  EXPECT_THAT(section.files_to_copy, testing::ElementsAre("a", "b"));
  EXPECT_TRUE(section.log_local_rank_0_only && section.log_parameter_norm &&
              !section.log_gradient_norm);
}

TEST(ExpManager, FalseIsNotTakenForAbsent) {
  const RunConfig config =
      load_text(kBaseConfig, {"exp_manager.create_tensorboard_logger=false",
                              "exp_manager.log_step_timing=false", "model.fuse_qkv=false",
                              "trainer.limit_val_batches=0", "model.use_scaled_init_method=false"});
  EXPECT_FALSE(config.exp_manager.create_tensorboard_logger || config.exp_manager.log_step_timing);
  EXPECT_FALSE(config.model.fuse_qkv || config.model.use_scaled_init_method);
  EXPECT_TRUE(config.trainer.limit_val_batches->is_zero());
}

TEST(Model, MegatronsDefaultsAreNxdts) {
  std::string text = kBaseConfig;
  for (const char* line :
       {"  normalization: rmsnorm\n", "  activation: swiglu\n", "  position_embedding_type: rope\n",
        "  has_bias: false\n", "  share_embeddings_and_output_weights: false\n",
        "  hidden_dropout: 0\n"}) {
    text.erase(text.find(line), std::string(line).size());
  }
  const ModelSection model = load_text(text).model;
  EXPECT_EQ(model.normalization, Normalization::kLayerNorm);
  EXPECT_EQ(model.activation, Activation::kGelu);
  EXPECT_EQ(model.position_embedding, PositionEmbedding::kLearnedAbsolute);
  EXPECT_TRUE(model.has_bias && model.share_embeddings_and_output_weights &&
              model.use_scaled_init_method && model.apply_query_key_layer_scaling);
  EXPECT_EQ(model.hidden_dropout, 0.1);
  EXPECT_EQ(model.architecture, "gpt");
}

TEST(Model, HfModelsAreLlamaAndRecomputeScoresWithoutFlashAttention) {
  const ModelSection flash = load_text(kBaseConfig, {"model_source=hf"}).model;
  EXPECT_EQ(flash.architecture, "llama");
  EXPECT_TRUE(flash.flash_attention && !flash.use_scaled_init_method &&
              !flash.apply_query_key_layer_scaling);
  EXPECT_EQ(flash.recompute, Recompute::kNone);
  const ModelSection plain =
      load_text(kBaseConfig, {"model_source=hf", "model.fusions.flash_attention=false"}).model;
  EXPECT_THAT(plain.recompute_modules, testing::ElementsAre("CoreAttention"));
}

TEST(Model, ScalesOfRopeComeFromEitherSource) {
  EXPECT_EQ(load_text(kBaseConfig, {"model.positition_interpolation_factor=4"}).model.rope_scaling,
            (RopeScaling{.type = "linear", .factor = 4}));
  EXPECT_EQ(load_text(kBaseConfig, {"model.position_freq_base=1000", "model.position_abf_factor=5"})
                .model.rope_theta,
            5000);
  const TemporaryDirectory directory;
  for (const char* spelling : {R"("rope_type": "llama3")", R"("type": "llama3")"}) {
    const std::string json = directory.write(
        "config.json", std::string(R"({"rope_scaling": {)") + spelling +
                           R"(, "factor": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}})");
    const ModelSection model =
        load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + json}).model;
    EXPECT_EQ(model.rope_scaling, (RopeScaling{"llama3", 32, 1, 4, 64}))
        << "original_max_position_embeddings is max_position_embeddings";
  }
  const std::string newer = directory.write(
      "newer.json", R"({"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}})");
  EXPECT_EQ(
      load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + newer}).model.rope_theta,
      250000);
  const std::string yarn =
      directory.write("yarn.json", R"({"rope_scaling": {"type": "yarn", "factor": 4}})");
  const RunConfig unsupported =
      load_text(kBaseConfig, {"model_source=hf", "model.model_config=" + yarn});
  EXPECT_THAT(unsupported.unsupported, testing::ElementsAre(UnsupportedFeature{
                                           "model.rope_scaling", "RoPE scaling of type yarn"}));
  expect_round_trip(unsupported);
}

TEST(Model, ExplicitHeadsAreHonoured) {
  const TemporaryDirectory directory;
  const std::string json = directory.write(
      "config.json",
      R"({"model_type": "mistral", "head_dim": 32, "hidden_size": 64, "num_attention_heads": 4,
    "sliding_window": 16, "tie_word_embeddings": true, "attention_dropout": 0.25})");
  const std::vector<std::string> hf = {"model_source=hf", "model.model_config=" + json,
                                       "model.share_embeddings_and_output_weights=null"};
  const ModelSection model = load_text(kBaseConfig, hf).model;
  EXPECT_EQ(model.head_dim, 32) << "not hidden_size / num_attention_heads = 16";
  EXPECT_EQ(model.sliding_window, 16);
  EXPECT_TRUE(model.share_embeddings_and_output_weights);
  EXPECT_EQ(model.attention_dropout, 0.25);
  EXPECT_EQ(load_text(kBaseConfig, {"model.kv_channels=8"}).model.head_dim, 8);
}

TEST(Model, QueriesAndKeysHaveNormsInQwen3AndWhereMegatronAsksForThem) {
  EXPECT_FALSE(load_text(kBaseConfig, {}).model.qk_layernorm);
  const RunConfig megatron = load_text(kBaseConfig, {"model.qk_layernorm=true"});
  EXPECT_TRUE(megatron.model.qk_layernorm);
  expect_round_trip(megatron);
  EXPECT_GT(megatron.num_parameters(), load_text(kBaseConfig, {}).num_parameters());
  const std::vector<std::string> hf = {"model_source=hf", "model.model_type=qwen3"};
  const RunConfig qwen = load_text(kBaseConfig, hf);
  EXPECT_TRUE(qwen.model.qk_layernorm);
  EXPECT_EQ(qwen.model.architecture, "llama");
  expect_round_trip(qwen);
  EXPECT_THAT(
      problems_of(kBaseConfig, {"model_source=hf", "model.qk_layernorm=true"}),
      testing::HasSubstr("no norms of queries and keys, unless model_type is qwen3 or olmo2"));
}

TEST(Model, QueriesKeysAndValuesAloneHaveBiasesInQwen2) {
  const RunConfig megatron = load_text(kBaseConfig, {"model.qkv_bias=true"});
  EXPECT_EQ(megatron.model.architecture, load_text(kBaseConfig, {}).model.architecture);
  EXPECT_GT(megatron.num_parameters(), load_text(kBaseConfig, {}).num_parameters());
  expect_round_trip(megatron);
  const RunConfig qwen = load_text(kBaseConfig, {"model_source=hf", "model.model_type=qwen2"});
  EXPECT_TRUE(qwen.model.qkv_bias);
  EXPECT_FALSE(qwen.model.has_bias || qwen.model.qk_layernorm);
  EXPECT_EQ(qwen.model.architecture, "llama");
  expect_round_trip(qwen);
  EXPECT_THAT(problems_of(kBaseConfig, {"model_source=hf", "model.qkv_bias=true"}),
              testing::HasSubstr("no biases of queries, keys and values, unless model_type is "
                                 "qwen2"));
}

TEST(Model, NormsOfOlmo2LieBehindBlocksAndAcrossHeads) {
  const std::vector<std::string> hf = {"model_source=hf", "model.model_type=olmo2"};
  const RunConfig olmo = load_text(kBaseConfig, hf);
  EXPECT_TRUE(olmo.model.qk_layernorm && olmo.model.qk_layernorm_across_heads);
  EXPECT_EQ(olmo.model.transformer_block_type, TransformerBlock::kReorderedNorm);
  EXPECT_EQ(olmo.model.architecture, "llama");
  expect_round_trip(olmo);
  EXPECT_THAT(problems_of(kBaseConfig, {"model.qk_layernorm_across_heads=true"}),
              testing::HasSubstr("expected qk_layernorm true with it"));
  EXPECT_THAT(problems_of(kBaseConfig,
                          {"model_source=hf", "model.model_type=olmo2", "model.qkv_linear=true"}),
              testing::HasSubstr("copies heads of keys and values"));
}

TEST(Model, AConfigJsonIsFoundNextToTheYaml) {
  const TemporaryDirectory directory;
  directory.write("config.json", R"({"num_hidden_layers": 6})");
  const std::string yaml =
      directory.write("run.yaml", changed("  num_layers: 4\n", "  model_config: config.json\n"));
  EXPECT_EQ(load_run_config(yaml, {"model_source=hf"}).model.num_layers, 6);
}

TEST(Model, AnyNumberOfVirtualStagesUpToTheLayersIsLegal) {
  const RunConfig config =
      load_text(kBaseConfig,
                {"model_source=hf", "distributed_strategy.virtual_pipeline_model_parallel_size=2",
                 "model.num_layers=7"});
  EXPECT_EQ(config.vpp(), 2);
}

TEST(Unsupported, IsLegalListedAndRefusedByName) {
  const RunConfig config =
      load_text(kBaseConfig, {"model.moe={num_experts: 8, glu_mlp: false}", "model.fp8=true"});
  EXPECT_THAT(
      config.unsupported,
      testing::UnorderedElementsAre(
          UnsupportedFeature{"model.moe.glu_mlp", "experts without a gate (glu_mlp false)", true},
          UnsupportedFeature{"model.fp8",
                             "training in fp8 is not supported; model.fp8=false does without",
                             false}));
  const auto refusal = [&](bool simulate) -> std::string {
    try {
      refuse_unsupported(config, simulate);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(false), testing::AllOf(HasSubstr("model.moe.glu_mlp: experts without a gate"),
                                             HasSubstr("model.fp8")));
  EXPECT_THAT(refusal(true), testing::AllOf(HasSubstr("model.moe.glu_mlp: experts without a gate"),
                                            testing::Not(HasSubstr("model.fp8"))));
}

TEST(Checkpoints, KeysOfExpManagerAndItsParams) {
  const auto section = [](const std::vector<std::string>& overrides) {
    return load_text(kBaseConfig, overrides).exp_manager.checkpoints;
  };
  EXPECT_EQ(section({}), CheckpointSection{}) << "none are saved unless the file asks for them";
  const CheckpointSection all = section(
      {"exp_manager.create_checkpoint_callback=true", "exp_manager.save_xser=true",
       "exp_manager.save_bf16=true", "exp_manager.resume_if_exists=true",
       "exp_manager.resume_ignore_no_checkpoint=true", "exp_manager.async_checkpointing=true",
       "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1, "
       "save_last: false, every_n_train_steps: 10, train_time_interval: 90, filename: 'x-{step}', "
       "dirpath: /a, save_weights_only: true}"});
  EXPECT_TRUE(all.create && all.save_xser && all.save_bf16 && all.async && all.save_weights_only);
  EXPECT_TRUE(all.resume_if_exists && all.resume_ignore_no_checkpoint && !all.save_last);
  EXPECT_EQ(all.every_n_train_steps, 10);
  EXPECT_EQ(all.train_time_interval_s, 90);
  EXPECT_EQ(all.every_n_epochs, 0) << "steps and time take the place of epochs";
  EXPECT_EQ((std::pair{all.dirpath, all.filename}),
            (std::pair<std::string, std::string>{"/a", "x-{step}"}));
  EXPECT_THAT(problems_of(kBaseConfig, {"exp_manager.checkpoint_callback_params={save_top_k: -2, "
                                        "train_time_interval: 0, mode: best}"}),
              testing::AllOf(HasSubstr("save_top_k: expected -1 (all)"),
                             HasSubstr("train_time_interval: expected seconds"),
                             HasSubstr("checkpoint_callback_params.mode")));
}

TEST(Optim, EveryNameHasItsDefaultsAndArguments) {
  const auto optim = [](const std::string& text) {
    return load_text(kBaseConfig, {"model.optim=" + text}).model.optim;
  };
  EXPECT_EQ(optim("{name: adamw_fp32OptState, lr: 1}").eps, 1e-6);
  EXPECT_EQ(optim("{name: novograd, lr: 1}").beta1, 0.95);
  EXPECT_THAT(
      optim("{name: sgd, lr: 1, momentum: 0.9, nesterov: true}").arguments,
      testing::UnorderedElementsAre(testing::Pair("momentum", 0.9), testing::Pair("nesterov", 1)));
  EXPECT_THAT(
      optim("{name: rprop, lr: 1, etas: [0.4, 1.3]}").arguments,
      testing::UnorderedElementsAre(testing::Pair("etas_0", 0.4), testing::Pair("etas_1", 1.3)));
  EXPECT_THAT(
      optim("{name: adafactor, lr: 1, eps: [1.0e-20, 1.0e-2]}").arguments,
      testing::UnorderedElementsAre(testing::Pair("eps_0", 1e-20), testing::Pair("eps_1", 1e-2)));
  EXPECT_EQ(optim("{name: adafactor, relative_step: true}").lr, 0);
  const auto cyclic =
      optim("{name: sgd, lr: 1, sched: {name: CyclicLR, mode: exp_range, cycle_momentum: false}}")
          .sched;
  EXPECT_EQ(cyclic->arguments.at("mode"), 2);
}

TEST(DistCkpt, TheBufferOfCopiesIsAPositiveNumberThatAHostCanHave) {
  const RunConfig config = load_text(kBaseConfig, {"exp_manager.async_buffer_gib=0.5"});
  EXPECT_EQ(config.exp_manager.checkpoints.async_buffer_gib, 0.5);
  expect_round_trip(config);
  for (const char* wrong : {"0", "-1", "1e300", ".inf", ".nan"})
    EXPECT_THAT(problems_of(kBaseConfig, {std::string("exp_manager.async_buffer_gib=") + wrong}),
                HasSubstr("exp_manager.async_buffer_gib: "))
        << wrong;
}

TEST(DistCkpt, KeysOfNeMoActOrAreRefusedByName) {
  const RunConfig usual = load_text(kBaseConfig, {});
  EXPECT_EQ(usual.model.dist_ckpt, DistCkptSection());
  const RunConfig other = load_text(
      kBaseConfig,
      {"model.dist_ckpt_parallel_save=false", "model.dist_ckpt_parallel_load=false",
       "model.dist_ckpt_parallel_dist_opt=false", "model.dist_ckpt_assume_constant_structure=false",
       "model.dist_ckpt_load_strictness=log_all"});
  EXPECT_FALSE(other.model.dist_ckpt.parallel_save);
  EXPECT_FALSE(other.model.dist_ckpt.parallel_load);
  EXPECT_FALSE(other.model.dist_ckpt.parallel_dist_opt);
  EXPECT_FALSE(other.model.dist_ckpt.assume_constant_structure);
  EXPECT_EQ(other.model.dist_ckpt.load_strictness, "log_all");
  EXPECT_THAT(other.resolved_yaml, HasSubstr("dist_ckpt_load_strictness: \"log_all\""));
  EXPECT_EQ(load_text(kBaseConfig, {"model.dist_ckpt_load_strictness=null"}).model.dist_ckpt,
            DistCkptSection());
  EXPECT_EQ(load_text(kBaseConfig, {"model.dist_ckpt_format=torch_dist"}).model.dist_ckpt.format,
            "torch_dist");
  EXPECT_THAT(
      problems_of(kBaseConfig, {"model.dist_ckpt_format=torch_dist",
                                "exp_manager.avoid_saving_lower_precision_weights=true"}),
      HasSubstr("dist_ckpt_format: torch_dist is not written for exp_manager.avoid_saving"));
  for (const auto& [key, text] : std::map<std::string, std::string>{
           {"model.dist_ckpt_format=zarr", "torch_dist"},
           {"model.dist_ckpt_torch_dist_multiproc=2",
            "dist_ckpt_format: torch_dist: expected null"},
           {"model.dist_ckpt_torch_dist_multiproc=0", "dist_ckpt_torch_dist_multiproc"},
           {"model.dist_ckpt_load_strictness=return_all", "raise_all"},
           {"exp_manager.use_zero1_dcp=true", "async_checkpointing: true"},
           {"exp_manager.num_kept_ckpts=3", "save_top_k"},
           {"exp_manager.checkpoint_callback_params.save_last_n_optim_states=0",
            "1 or more that a training can go on from"},
           {"exp_manager.tag=a", "filename"}}) {
    SCOPED_TRACE(key);
    EXPECT_THAT(problems_of(kBaseConfig, {key}),
                testing::AllOf(HasSubstr(key.substr(0, key.find('='))), HasSubstr(text)));
  }
  const std::vector<std::string> dcp{"exp_manager.use_zero1_dcp=true",
                                     "exp_manager.async_checkpointing=true"};
  EXPECT_TRUE(load_text(kBaseConfig, dcp).exp_manager.checkpoints.zero1_dcp);
  const std::string last = "exp_manager.checkpoint_callback_params.save_last_n_optim_states=1";
  EXPECT_THAT(
      problems_of(kBaseConfig, {last, "exp_manager.avoid_saving_lower_precision_weights=true"}),
      HasSubstr("expected false with checkpoint_callback_params.save_last_n_optim_states"));
  EXPECT_THAT(problems_of(kBaseConfig, {last, "model.dist_ckpt_format=torch_dist"}),
              HasSubstr("torch_dist is not written for checkpoint_callback_params.save_last_n"));
  for (const auto& [key, text] : std::map<std::string, std::string>{
           {"exp_manager.avoid_saving_lower_precision_weights=true", "as in NxD"},
           {"exp_manager.checkpoint_callback_params.save_weights_only=true", "no states"},
           {"distributed_strategy.zero1=false", "distributed_strategy.zero1: true"}})
    EXPECT_THAT(problems_of(kBaseConfig, {dcp[0], dcp[1], key}),
                testing::AllOf(HasSubstr("use_zero1_dcp"), HasSubstr(text)));
  const std::string gathers = "model.dist_ckpt_parallel_dist_opt=false";
  EXPECT_THAT(problems_of(kBaseConfig, {gathers, dcp[0], dcp[1]}),
              HasSubstr("dist_ckpt_parallel_dist_opt: expected true with exp_manager.use_zero1"));
  EXPECT_THAT(problems_of(kBaseConfig, {gathers, "exp_manager.async_buffer_gib=1"}),
              HasSubstr("dist_ckpt_parallel_dist_opt: expected true with exp_manager.async_buf"));
  EXPECT_TRUE(load_text(kBaseConfig, {"exp_manager.avoid_saving_lower_precision_weights=true"})
                  .exp_manager.checkpoints.masters_replace_weights);
}

}  // namespace
}  // namespace trellis::trainer
