// The properties of a stage: names, shares of tied weights, weight decay, saved logits, bad input.
// Its numbers are compared with Hugging Face's and with formulas by transformers_test.py and
// megatron_test.py.
#include <functional>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/run_config.h"
#include "trainer/data/make_data_module.h"
#include "trainer/models/decoder/decoder.h"
#include "trainer/models/factory.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

ModelSection small_llama() {
  ModelSection model;
  model.num_layers = 3;
  model.hidden_size = 24;
  model.ffn_hidden_size = 40;
  model.num_attention_heads = 6;
  model.num_kv_heads = 2;
  model.encoder_seq_length = 11;
  model.max_position_embeddings = 16;
  model.vocab_size = 37;
  model.init_method_std = 0.2;
  return model;
}

ModelSection small_gpt() {
  ModelSection model = small_llama();
  model.architecture = "gpt";
  model.normalization = Normalization::kLayerNorm;
  model.activation = Activation::kGelu;
  model.position_embedding = PositionEmbedding::kLearnedAbsolute;
  model.has_bias = model.share_embeddings_and_output_weights = true;
  return model;
}

/// One stage on one rank.
struct Built {
  explicit Built(const ModelSection& model, const StageSlot& slot, bool decay_biases = false) {
    context.parallel = &parallel;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = context.reduce_dtype = at::kDouble;
    context.decay_biases = decay_biases;
    stage = make_pipeline_stage(model, context, slot);
  }
  explicit Built(const ModelSection& model) : Built(model, {0, 1, {0, model.num_layers}}) {}
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> result;
    for (const Parameter& parameter : parameters) result.insert(parameter.name);
    return result;
  }
  ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
  std::unique_ptr<PipelineStage> stage;
};

MicroBatch batch_of(const ModelSection& model) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto tokens = [&] {
    return at::randint(0, model.vocab_size, {2, model.encoder_seq_length}, generator, at::kLong);
  };
  return {tokens(), tokens()};
}

TEST(Decoder, NamesAreThoseOfTheModelHubAndOfMegatron) {
  const std::set<std::string> llama = Built(small_llama()).names(),
                              gpt = Built(small_gpt()).names();
  EXPECT_EQ(llama.size(), 1u + 8u * 3u + 2u);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.2.self_attn.o_proj.weight",
        "model.layers.0.mlp.gate_up_proj.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight", "lm_head.weight"}) {
    EXPECT_EQ(llama.count(name), 1u) << name;
  }
  EXPECT_EQ(gpt.size(), 2u + 14u * 3u + 2u);
  for (const char* name : {"language_model.embedding.position_embeddings.weight",
                           "language_model.encoder.layers.2.self_attention.query.bias",
                           "language_model.encoder.layers.0.self_attention.key_value.weight",
                           "language_model.encoder.layers.1.mlp.dense_4h_to_h.bias",
                           "language_model.encoder.final_layernorm.bias"}) {
    EXPECT_EQ(gpt.count(name), 1u) << name;
  }
}

/// The model has as many parameters as the configuration promises, option by option.
TEST(Decoder, HasAsManyParametersAsTheConfigurationCounts) {
  std::vector<ModelSection> models{small_llama(), small_gpt()};
  const auto add = [&](ModelSection model, const std::function<void(ModelSection&)>& change) {
    change(model);
    models.push_back(std::move(model));
  };
  for (const TransformerBlock block :
       {TransformerBlock::kPostLn, TransformerBlock::kNormformer, TransformerBlock::kGptJ}) {
    add(small_gpt(), [&](ModelSection& m) { m.transformer_block_type = block; });
  }
  for (const Activation activation :
       {Activation::kOpenAiGelu, Activation::kGeglu, Activation::kReglu, Activation::kSwiglu}) {
    add(small_gpt(), [&](ModelSection& m) { m.activation = activation; });
  }
  for (const Normalization norm : {Normalization::kLayerNorm1P, Normalization::kRmsNorm}) {
    add(small_gpt(), [&](ModelSection& m) { m.normalization = norm; });
  }
  add(small_gpt(),
      [](ModelSection& m) { m.position_embedding = PositionEmbedding::kRope, m.num_kv_heads = 6; });
  add(small_gpt(),
      [](ModelSection& m) { m.has_bias = m.share_embeddings_and_output_weights = false; });
  add(small_llama(), [](ModelSection& m) { m.head_dim = 10, m.qkv_linear = true; });
  for (const ModelSection& model : models) {
    RunConfig run;
    run.model = model;
    std::int64_t built = 0;
    for (const Parameter& parameter : Built(model).parameters) built += parameter.tensor.numel();
    EXPECT_EQ(built, run.num_parameters()) << "model " << &model - models.data();
  }
}

ModelSection small_bert() {
  ModelSection model = small_gpt();
  model.architecture = "bert";
  model.transformer_block_type = TransformerBlock::kPostLn;
  model.num_kv_heads = model.num_attention_heads;
  model.share_embeddings_and_output_weights = true;
  model.type_vocab_size = 3;
  return model;
}

ModelSection small_vit() {
  ModelSection model = small_bert();
  model.architecture = "vit";
  model.transformer_block_type = TransformerBlock::kPreLn;
  model.share_embeddings_and_output_weights = false;
  model.image = ImageSection{12, 4, 3, 7};
  model.encoder_seq_length = model.max_position_embeddings = 10;
  model.vocab_size = model.type_vocab_size = 0;
  return model;
}

TEST(Encoders, HaveAsManyParametersAsTheConfigurationCounts) {
  for (const ModelSection& model : {small_bert(), small_vit()}) {
    RunConfig run;
    run.model = model;
    std::int64_t built = 0;
    for (const Parameter& parameter : Built(model).parameters) built += parameter.tensor.numel();
    EXPECT_EQ(built, run.num_parameters()) << model.architecture;
  }
}

TEST(Encoders, RefuseStagesAndBatchesOfAnotherShape) {
  const auto error_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  for (const ModelSection& model : {small_bert(), small_vit()}) {
    EXPECT_THAT(error_of([&] { Built(model, {0, 2, {0, 1}}); }),
                HasSubstr("expected 1 pipeline stage and 1 tensor-parallel rank, got 2 and 1"));
  }
  const Built bert(small_bert()), vit(small_vit());
  MicroBatch batch = batch_of(small_bert());
  batch.input_ids = batch.input_ids.narrow(1, 0, 5);
  EXPECT_THAT(error_of([&] { (void)bert.stage->forward({}, batch); }),
              HasSubstr("5 tokens per sample, expected model.encoder_seq_length"));
  batch.pixel_values = at::zeros({2, 3, 12, 8});
  EXPECT_THAT(error_of([&] { (void)vit.stage->forward({}, batch); }),
              HasSubstr("expected the sizes [b, 3, 12, 12], got [2, 3, 12, 8]"));
}

/// A frozen weight takes no part; an adapter is marked.
TEST(Lora, OnlyAdaptersRequireAGradient) {
  ModelSection model = small_llama();
  model.lora = LoraSection{2, 4, 0, {"qkv_proj", "down_proj"}};
  const Built built(model);
  std::set<std::string> trained;
  for (const Parameter& parameter : built.parameters) {
    EXPECT_EQ(parameter.tensor.requires_grad(), parameter.adapter) << parameter.name;
    if (parameter.adapter) trained.insert(parameter.name);
  }
  EXPECT_EQ(trained.size(), 3U * (3 + 1) * 2);
  for (const char* name : {"model.layers.0.self_attn.q_proj.lora_A.weight",
                           "model.layers.2.self_attn.v_proj.lora_B.weight",
                           "model.layers.1.mlp.down_proj.lora_A.weight"}) {
    EXPECT_TRUE(trained.contains(name)) << name;
  }
  RunConfig run;
  run.model = model;
  std::int64_t elements = 0;
  for (const Parameter& parameter : built.parameters) elements += parameter.tensor.numel();
  EXPECT_EQ(elements, run.num_parameters());
}

TEST(Decoder, ATiedWeightLiesOnBothEndsOnce) {
  const ModelSection model = small_gpt();
  const std::string name = "language_model.embedding.word_embeddings.weight";
  const Built first(model, {0, 2, {0, 1}}), last(model, {1, 2, {1, 3}});
  EXPECT_EQ(first.parameters.front().name, name);
  EXPECT_FALSE(first.parameters.front().shared);
  EXPECT_EQ(last.parameters.back().name, name);
  EXPECT_TRUE(last.parameters.back().shared);
  EXPECT_TRUE(last.parameters.back().tensor.equal(first.parameters.front().tensor))
      << "the copies start equal";
  for (const Built* stage : {&first, &last}) ASSERT_EQ(stage->stage->tied_weights().size(), 1u);
  EXPECT_TRUE(Built(model).stage->tied_weights().empty()) << "one stage holds one tensor";
}

/// The keys that hold the parameters of norms and biases out of weight decay, and that let them in.
TEST(Decoder, NormsAndBiasesDecayWhenAskedTo) {
  for (const bool decay : {false, true}) {
    ModelSection model = small_gpt();
    model.transformer_block_type = TransformerBlock::kNormformer;
    model.do_layer_norm_weight_decay = decay;
    const Built built(model, {0, 1, {0, 3}}, decay);
    for (const Parameter& parameter : built.parameters) {
      EXPECT_EQ(parameter.weight_decay, parameter.tensor.dim() > 1 || decay) << parameter.name;
    }
  }
}

TEST(Decoder, SavedLogitsAreThoseTheLossWasMadeOf) {
  ModelSection model = small_llama();
  const MicroBatch batch = batch_of(model);
  const Built silent(model);
  const double loss = weighted_mean(silent.stage->forward({}, batch)).item<double>();
  EXPECT_FALSE(silent.stage->logits().defined());
  model.save_logits = true;
  const Built saving(model);
  EXPECT_EQ(weighted_mean(saving.stage->forward({}, batch)).item<double>(), loss);
  const at::Tensor logits = saving.stage->logits();
  EXPECT_FALSE(logits.requires_grad());
  EXPECT_NEAR(
      at::cross_entropy_loss(logits.flatten(0, 1), batch.labels.t().flatten()).item<double>(), loss,
      1e-12);
}

/// All records of a file in one global batch, in the file's order.
std::vector<MicroBatch> records(const std::string& file, const ModelSection& model, bool packing,
                                int rows) {
  RunConfig config;
  config.model = model;
  config.alignment = "sft";
  config.trainer.devices = 1;
  config.data.kind = DataKind::kAlignment;
  config.data.train_dir = file;
  config.data.global_batch_size = rows;
  config.data.records = {.packing = packing, .shuffle = false};
  return make_data_module(config)->micro_batches(0, 0);
}

double loss_of(const Built& built, const MicroBatch& batch) {
  return weighted_mean(built.stage->forward({}, batch)).item<double>();
}

TEST(Decoder, EachPackedRecordHasTheLossThatItHasAlone) {
  const TemporaryDirectory directory;
  constexpr int kRecords = 6, kPacks = 2;  // of 5 + 6 + 7 tokens, each record's end included
  const std::string file = directory.write("data.jsonl", R"({"input": "a", "output": "bcd"}
{"input": "ae", "output": "fgh"}
{"input": "aij", "output": "klm"}
{"input": "n", "output": "opq"}
{"input": "rs", "output": "tuv"}
{"input": "wxy", "output": "zab"}
)");
  for (ModelSection model : {small_llama(), small_gpt()}) {
    model.encoder_seq_length = model.max_position_embeddings = 20;
    model.vocab_size = 257;
    for (const bool flash : {true, false}) {
      model.flash_attention = flash;
      const Built built(model);
      const auto alone = records(file, model, false, kRecords);
      std::size_t record = 0;
      for (MicroBatch pack : records(file, model, true, kPacks)) {
        const at::Tensor labels = pack.labels;
        const auto documents = pack.attention_mask.max().item<std::int64_t>();
        EXPECT_EQ(documents, 3);
        for (std::int64_t document = 1; document <= documents; ++document, ++record) {
          pack.labels = labels.masked_fill(pack.attention_mask != document, -100);
          ASSERT_LT(record, alone.size());
          EXPECT_NEAR(loss_of(built, pack), loss_of(built, alone[record]), 1e-12)
              << model.architecture << ", flash " << flash << ", record " << record + 1;
        }
      }
      EXPECT_EQ(record, alone.size());
    }
  }
}

/// Sum over what counts, divided by what counts: labels of −100 count nothing, a mask weighs the
/// others.
TEST(MaskedMeanLoss, EqualsItsFormula) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor logits = at::randn({5, 2, 7}, generator, at::kDouble);  // [s, b, v]
  MicroBatch batch{{}, at::randint(0, 7, {2, 5}, generator, at::kLong)};
  batch.labels[0][1] = batch.labels[1][4] = -100;
  batch.loss_mask = at::rand({2, 5}, generator, at::kDouble);
  double sum = 0, weights = 0;
  for (int b = 0; b < 2; ++b) {
    for (int s = 0; s < 5; ++s) {
      const auto label = batch.labels[b][s].item<std::int64_t>();
      if (label < 0) continue;
      const double weight = batch.loss_mask[b][s].item<double>();
      sum -= weight * logits[s][b].log_softmax(0)[label].item<double>();
      weights += weight;
    }
  }
  EXPECT_NEAR(masked_mean_loss(logits, batch, {}).item<double>(), sum / weights, 1e-13);
  batch.loss_mask.zero_();
  EXPECT_EQ(masked_mean_loss(logits, batch, {}).item<double>(), 0);
}

TEST(Decoder, BadInputIsNamed) {
  ModelSection model = small_llama();
  const Built built(model);
  model.encoder_seq_length = 9;
  try {
    static_cast<void>(built.stage->forward({}, batch_of(model)));
    FAIL() << "a batch of another length was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("9"));
    EXPECT_THAT(error.what(), HasSubstr("encoder_seq_length 11"));
  }
  model.architecture = "retnet";
  EXPECT_THROW(Built{model}, ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
