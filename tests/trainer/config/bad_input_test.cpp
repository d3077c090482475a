#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {
namespace {

struct BrokenText {
  const char* from;      ///< a piece of the base configuration …
  const char* to;        ///< … and what is there instead
  const char* expected;  ///< the whole text
};

/// Each row breaks the base configuration in one way.
constexpr BrokenText kBroken[] = {
    // Names.
    {"name: tiny\n", "", "run.yaml:1:name: this key is required and missing"},
    {"model_source: megatron\n", "",
     "run.yaml:1:model_source: this key is required and missing; expected megatron or hf"},
    {"megatron", "megatrn",
     "run.yaml:2:model_source: unknown value `megatrn`, did you mean `megatron`?; expected "
     "megatron or hf"},
    {"seed: 7", "sede: 7", "run.yaml:3:sede: unknown key; did you mean `seed`?"},
    {"max_steps: 10", "max_steps: 10\n  max_step: 10",
     "run.yaml:7:trainer.max_step: unknown key; did you mean `max_steps`?"},
    {"seed: 7", "seed: 7\nzzzzzzzzzzzz: 1", "run.yaml:4:zzzzzzzzzzzz: unknown key; remove it"},
    {"gradient_clip_val:", "gradient-clip-val:",
     "run.yaml:7:trainer.gradient-clip-val: unknown key: keys are written with underscores, "
     "`gradient_clip_val`"},
    {"seed: 7", "seed: 7\nmax_time: 1",
     "run.yaml:4:max_time: wrong section: `max_time` belongs in section `trainer` or section "
     "`exp_manager`, not in the top level"},
    {"devices: 8", "devices: 8\n  seed: 7",
     "run.yaml:6:trainer.seed: wrong section: `seed` belongs in the top level, not in section "
     "`trainer`"},
    {"devices: 8", "devices: 8\n  global-batch-size: 7",
     "run.yaml:6:trainer.global-batch-size: wrong section: `global_batch_size` belongs in section "
     "`data`, not in section `trainer`"},
    {"precision:\n  type: mixed_precision", "precision: {type: mixed_precision, lr: 1}",
     "run.yaml:42:precision.lr: wrong section: `lr` belongs in section `model.optim`, not in "
     "section `precision`"},
    {"    library: byte-level", "    library: byte-level\n    usefast: true",
     "run.yaml:19:data.tokenizer.usefast: unknown key; did you mean `use_fast`?"},
    {"  name: tiny\ndist", "  ema: {enable: false, deccay: 1}\ndist",
     "run.yaml:9:exp_manager.ema.deccay: unknown key; did you mean `decay`?"},
    {"  name: tiny\ndist", "  resume_from_checkpoint: s3://KEY:SECRET@bucket/x\ndist",
     "run.yaml:9:exp_manager.resume_from_checkpoint: expected an address without keys: it is "
     "written into files and messages; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
     "AWS_SESSION_TOKEN) in the environment, or a profile of the AWS SDK (AWS_PROFILE)"},
    // Types.
    {"seed: 7", "seed: seven", "run.yaml:3:seed: expected an integer, got 'seven'"},
    {"seed: 7", "seed: 0", "run.yaml:3:seed: must be greater than 0, got 0"},
    {"devices: 8", "devices: all",
     "run.yaml:5:trainer.devices: expected an integer that fits in 32 bits, got 'all'"},
    {"devices: 8", "devices: 0", "run.yaml:5:trainer.devices: must be at least 1, got 0"},
    {"devices: 8", "num_nodes: 8", "run.yaml:4:trainer.devices: this key is required and missing"},
    {"devices: 8", "devices: 8.5",
     "run.yaml:5:trainer.devices: expected an integer that fits in 32 bits, got '8.5'"},
    {"max_steps: 10", "max_steps: -1",
     "run.yaml:6:trainer.max_steps: the run has no end: expected a number of steps, or -1 with "
     "trainer.max_epochs or trainer.max_time, got -1 alone"},
    {"gradient_clip_val: 1.0", "gradient_clip_val: 0",
     "run.yaml:7:trainer.gradient_clip_val: must be greater than 0, got 0; null switches clipping "
     "off"},
    {"  name: tiny\ndist", "  name: ''\ndist",
     "run.yaml:9:exp_manager.name: must not be empty; remove it for the default"},
    {"sequence_parallel: true", "sequence_parallel: 1",
     "run.yaml:13:distributed_strategy.sequence_parallel: expected true or false, got '1'"},
    {"betas: [0.9, 0.95]", "betas: 0.9",
     "run.yaml:37:model.optim.betas: expected a list, got '0.9'"},
    {"betas: [0.9, 0.95]", "betas: [0.9]",
     "run.yaml:37:model.optim.betas: expected two numbers such as [0.9, 0.95], got 1"},
    {"betas: [0.9, 0.95]", "betas: [0.9, 1]",
     "run.yaml:37:model.optim.betas: each must be in [0, 1), got 1"},
    {"lr: 1.0e-3", "lr: 0", "run.yaml:36:model.optim.lr: must be greater than 0, got 0"},
    {"lr: 1.0e-3", "lr: .nan", "run.yaml:36:model.optim.lr: expected a finite number, got '.nan'"},
    {"lr: 1.0e-3", "weight_decay: 1",
     "run.yaml:34:model.optim.lr: this key is required and missing"},
    {"betas: [0.9, 0.95]", "weight_decay: -0.1",
     "run.yaml:37:model.optim.weight_decay: must not be negative, got -0.1"},
    {"warmup_steps: 2", "warmup_steps: -2",
     "run.yaml:40:model.optim.sched.warmup_steps: must not be negative, got -2"},
    {"warmup_steps: 2", "warmup_ratio: 2",
     "run.yaml:40:model.optim.sched.warmup_ratio: must be in [0, 1], got 2"},
    {"warmup_steps: 2", "warmup_steps: 2\n      warmup_ratio: 0.5",
     "run.yaml:41:model.optim.sched.warmup_ratio: excludes warmup_steps; remove one of them"},
    {"min_lr: 1.0e-5", "min_lr: 1",
     "run.yaml:41:model.optim.sched.min_lr: must not exceed model.optim.lr: 1 > 0.001"},
    {"      name: CosineAnnealing\n", "",
     "run.yaml:38:model.optim.sched.name: this key is required and missing; expected "
     "LinearAnnealingWithWarmUp, WarmupPolicy, WarmupHoldPolicy, "
     "CosineAnnealing, SquareAnnealing, SquareRootAnnealing, NoamAnnealing, NoamHoldAnnealing, "
     "WarmupAnnealing, InverseSquareRootAnnealing, "
     "T5InverseSquareRootAnnealing, PolynomialDecayAnnealing, PolynomialHoldDecayAnnealing, "
     "WarmupHoldAnnealLinear, "
     "WarmupHoldAnnealOneMinusSquareRoot, StepLR, ExponentialLR, ReduceLROnPlateau or CyclicLR"},
    {"name: CosineAnnealing", "name: LinearAnnealingWithWarmUp",
     "run.yaml:41:model.optim.sched.min_lr: LinearAnnealingWithWarmUp falls to 0; remove it or set "
     "it to 0"},
    {"num_layers: 4", "num_layers: -4", "run.yaml:20:model.num_layers: must be at least 1, got -4"},
    {"hidden_size: 64", "hidden_size: 99999999999",
     "run.yaml:21:model.hidden_size: expected an integer that fits in 32 bits, got '99999999999'"},
    {"  encoder_seq_length: 32\n", "",
     "run.yaml:19:model.encoder_seq_length: this key is required and missing"},
    {"make_vocab_size_divisible_by: 8", "layernorm_epsilon: 0",
     "run.yaml:27:model.layernorm_epsilon: must be greater than 0, got 0"},
    {"make_vocab_size_divisible_by: 8", "vocab_size: 256",
     "run.yaml:27:model.vocab_size: 256 is smaller than the tokenizer's vocabulary; the byte-level "
     "tokenizer needs at least 257"},
    {"make_vocab_size_divisible_by: 8", "vocab_size: 2147483647",
     "run.yaml:27:model.vocab_size: 2147483647 padded to a multiple of "
     "make_vocab_size_divisible_by 128 × TP 2 = 2147483648 does not fit in 32 bits"},
    {"type: mixed_precision", "type: fp16",
     "run.yaml:43:precision.type: unknown value `fp16`, did you mean `fp32`?; expected "
     "mixed_precision, mixed_precisionSR, bf16SR, autocast, fp32, "
     "fp64 or manual"},
    // Divisibility.
    {"num_attention_heads: 4", "num_attention_heads: 6",
     "run.yaml:21:model.hidden_size: 64 is not divisible by num_attention_heads 6; nearest legal "
     "values: 60 or 66"},
    {"num_kv_heads: 2", "num_kv_heads: 6",
     "run.yaml:23:model.num_attention_heads: 4 is not divisible by num_kv_heads 6; nearest legal "
     "values: 6"},
    {"hidden_size: 64", "hidden_size: 63",
     "run.yaml:21:model.hidden_size: 63 is not divisible by num_attention_heads 4; nearest legal "
     "values: 60 or 64"},
    {"hidden_size: 64", "hidden_size: 60",
     "run.yaml:21:model.hidden_size: the rotated part of a head, 15 × rotary_percentage 1 = 15, is "
     "odd; rotary embedding rotates pairs"},
    {"ffn_hidden_size: 96", "ffn_hidden_size: 97",
     "run.yaml:22:model.ffn_hidden_size: 97 is not divisible by tensor_model_parallel_size 2; "
     "nearest legal values: 96 or 98"},
    {"num_kv_heads: 2", "num_kv_heads: 1",
     "run.yaml:24:model.num_kv_heads: 1 is not divisible by tensor_model_parallel_size 2; nearest "
     "legal values: 2"},
    {"encoder_seq_length: 32", "encoder_seq_length: 33",
     "run.yaml:25:model.encoder_seq_length: 33 is not divisible by tensor_model_parallel_size 2, "
     "as sequence_parallel needs; nearest legal values: "
     "32 or 34"},
    {"num_layers: 4", "num_layers: 5",
     "run.yaml:20:model.num_layers: 5 is not divisible by pipeline_model_parallel_size 2; nearest "
     "legal values: 4 or 6"},
    {"devices: 8", "devices: 6",
     "run.yaml:5:trainer.devices: world size 6 = devices 6 × num_nodes 1 is not divisible by TP 2 "
     "× PP 2 = 4; nearest legal world sizes: 4 or 8"},
    {"devices: 8", "devices: 2147483647\n  num_nodes: 2147483647",
     "run.yaml:5:trainer.devices: expected a world size of at most 1048576, got "
     "4611686014132420609 = devices 2147483647 × num_nodes 2147483647"},
    {"global_batch_size: 16", "global_batch_size: 17",
     "run.yaml:16:data.global_batch_size: 17 is not divisible by micro_batch_size 2 × DP 2 = 4; "
     "nearest legal values: 16 or 20"},
    {"global_batch_size: 16", "global_batch_size: 2",
     "run.yaml:16:data.global_batch_size: 2 is not divisible by micro_batch_size 2 × DP 2 = 4; "
     "nearest legal values: 4"},
    {"global_batch_size: 16", "global_batch_size: 16\n  seq_length: 64",
     "run.yaml:17:data.seq_length: 64 differs from model.encoder_seq_length 32; write "
     "${model.encoder_seq_length}"},
    {"max_position_embeddings: 64", "max_position_embeddings: 16",
     "run.yaml:26:model.max_position_embeddings: 16 is smaller than encoder_seq_length 32; set it "
     "to at least 32"},
    {"max_position_embeddings: 64", "rope_theta: 5",
     "run.yaml:26:model.rope_theta: belongs to model_source hf; with model_source megatron write "
     "`position_freq_base`"},
    {"max_position_embeddings: 64", "model_config: config.json",
     "run.yaml:26:model.model_config: belongs to model_source hf; with model_source megatron write "
     "the sizes in section `model`"},
};

TEST(BadInput, EachMistakeHasItsExactText) {
  for (const BrokenText& broken : kBroken)
    EXPECT_EQ(problems_of(changed(broken.from, broken.to)), broken.expected);
}

TEST(BadInput, AllMistakesAreReportedInOnePass) {
  std::string text = changed("seed: 7", "seed: -1");
  text.replace(text.find("hidden_size: 64"), 15, "hiden_size: 64");
  text.replace(text.find("global_batch_size: 16"), 21, "global_batch_size: 18");
  EXPECT_EQ(problems_of(text, {"model.fp16_lm_cross_entropy=true", "precision.type=bf16"}),
            "run.yaml:3:seed: must be greater than 0, got -1\n"
            "run.yaml:19:model.hidden_size: this key is required and missing\n"
            "command line:precision.type: unknown value `bf16`, did you mean `bf16SR`?; expected "
            "mixed_precision, mixed_precisionSR, bf16SR, autocast, "
            "fp32, fp64 or manual\n"
            "run.yaml:16:data.global_batch_size: 18 is not divisible by micro_batch_size 2 × DP 2 "
            "= 4; nearest legal values: 16 or 20\n"
            "command line:model.fp16_lm_cross_entropy: not supported (got true): the loss is "
            "computed in fp32; remove it or set it to false\n"
            "run.yaml:21:model.hiden_size: unknown key; did you mean `hidden_size`?");
}

TEST(BadInput, AWrongValueDoesNotCauseFurtherComplaints) {
  EXPECT_EQ(problems_of(kBaseConfig, {"distributed_strategy.tensor_model_parallel_size=two"}),
            "command line:distributed_strategy.tensor_model_parallel_size: expected an integer "
            "that fits in 32 bits, got 'two'");
  EXPECT_EQ(problems_of(kBaseConfig, {"model.num_attention_heads=0", "model.num_kv_heads=null"}),
            "command line:model.num_attention_heads: must be at least 1, got 0");
}

TEST(BadInput, ASectionThatIsNoMappingIsNamedOnce) {
  EXPECT_EQ(problems_of(kBaseConfig, {"exp_manager=5"}),
            "command line:exp_manager: expected a mapping, got '5'");
  EXPECT_EQ(problems_of(kBaseConfig, {"data.tokenizer=[1]"}),
            "command line:data.tokenizer: expected a mapping, got a list");
  EXPECT_EQ(problems_of(kBaseConfig, {"model.optim.sched=cosine"}),
            "command line:model.optim.sched: expected a mapping, got 'cosine'");
}

TEST(BadInput, ConfigJsonIsCheckedLikeTheYaml) {
  const TemporaryDirectory directory;
  const auto problems = [&](const std::string& json) {
    return problems_of(kBaseConfig, {"model_source=hf",
                                     "model.model_config=" + directory.write("config.json", json)});
  };
  const std::string file = directory.path().string() + "/config.json";
  const std::string prefix = "command line:model.model_config: " + file;
  EXPECT_EQ(problems("{}"), "");
  EXPECT_EQ(problems("[1]"), prefix + " is not a JSON object; expected a Hugging Face config.json");
  EXPECT_EQ(problems(R"({"num_hidden_layers": "x"})"),
            prefix + ": num_hidden_layers: expected an integer of at least 1, got \"x\"");
  EXPECT_EQ(problems(R"({"hidden_size": -1})"),
            prefix + ": hidden_size: expected an integer of at least 1, got -1");
  EXPECT_EQ(problems(R"({"rms_norm_eps": 0})"),
            prefix + ": rms_norm_eps: expected a number greater than 0, got 0");
  EXPECT_EQ(problems(R"({"model_type": "t5"})"),
            prefix +
                ": model_type: \"t5\" is no model of the hub; expected llama, mistral, mixtral, "
                "qwen2, qwen3, olmo2, bert or vit");
  EXPECT_EQ(problems(R"({"hidden_act": "gelu"})"),
            prefix + ": hidden_act: \"gelu\" is not supported in this version; only \"silu\" is");
  EXPECT_EQ(problems(R"({"attention_bias": true})"),
            prefix + ": attention_bias: true is not supported in this version; only false is");
  EXPECT_EQ(problems(R"({"attention_dropout": 2})"),
            prefix + ": attention_dropout: expected a number in [0, 1], got 2");
  EXPECT_EQ(problems(R"({"tie_word_embeddings": "no"})"),
            prefix + ": tie_word_embeddings: expected true or false, got \"no\"");
  EXPECT_EQ(problems(R"({"rope_scaling": 8})"),
            prefix + ": rope_scaling: expected an object, got 8");
  EXPECT_EQ(problems(R"({"rope_scaling": {"factor": 8}})"),
            prefix + ": rope_scaling: rope_type: missing next to factor");
  EXPECT_EQ(problems(R"({"rope_scaling": {"rope_type": "linear"}})"),
            prefix + ": rope_scaling: factor: the type linear needs it");
  EXPECT_EQ(problems(R"({"rope_scaling": {"type": "cubic", "factor": 8}})"),
            prefix +
                ": rope_scaling: type: unknown type \"cubic\"; expected default, linear, dynamic "
                "or llama3");
  EXPECT_EQ(problems_of(kBaseConfig, {"model_source=hf", "model.model_config=/no/such.json"}),
            "command line:model.model_config: /no/such.json: cannot read: there is no such file");
}

}  // namespace
}  // namespace trellis::trainer
