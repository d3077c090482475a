#include "analysis/import/megatron_args.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/import/shell_words.h"
#include "analysis/import/sources.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Pair;
namespace fs = std::filesystem;
using KeyValues = std::map<std::string, std::string>;

class MegatronImport : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::temp_directory_path() / fmt::format("megatron-{}-{}.sh", test->name(), getpid());
  }
  void TearDown() override { fs::remove(path_); }

  ImportedConfig import(const std::string& text) {
    static ShellReader reader;  // started once
    return import_megatron_text(text, path_.string(), reader);
  }
  KeyValues settings(const std::string& text) {
    KeyValues result;
    for (const Setting& setting : settings_of(import(text))) result[setting.key] = setting.value;
    return result;
  }
  ImportedKey key(const std::string& text, const std::string& name) {
    for (const ImportedKey& each : import(text).keys)
      if (each.source.key == name) return each;
    ADD_FAILURE() << name;
    return {};
  }
  std::string problem(const std::string& text) {
    try {
      (void)import(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  fs::path path_;
};

constexpr const char* kGpt3 = R"(#!/bin/bash
# GPT-3 of 175 billion parameters: the sizes of its paper's Table 2.1.
GPUS=8; NODES=128
LAUNCH=(--nproc_per_node $GPUS --nnodes $NODES --node_rank ${RANK:-0})
MODEL=(
  --num-layers 96   --hidden-size 12288
  --num-attention-heads 96 --seq-length 2048 # tokens
  --max-position-embeddings 2048
)
torchrun ${LAUNCH[@]} pretrain_gpt.py \
  ${MODEL[@]} --micro-batch-size 1 --global-batch-size 1536 --train-iters 1000 \
  --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --lr-warmup-fraction .01 --lr-decay-iters 800 \
  --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad 1.0 --bf16 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
  --num-layers-per-virtual-pipeline-stage 3 \
  --data-path data/gpt_text_document --split 949,50,1 --tokenizer-type GPT2BPETokenizer \
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
  --save ckpt --load ckpt --save-interval 100 --eval-interval 200 --eval-iters 10 2>&1 | tee log
)";

constexpr const char* kLlama3 = R"(
OPTIONS=" \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 \
  --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000 \
  --use-rope-scaling --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0"
python -m torch.distributed.run --nproc-per-node=8 pretrain_gpt.py $OPTIONS --bf16 \
  --micro-batch-size 1 --train-samples 12800 --lr 3e-4 --context-parallel-size 2 \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta/llama3 --vocab-size 128256 \
  --use-distributed-optimizer --data-path 0.3 a 0.7 b --exit-duration-in-mins 90
)";

constexpr const char* kMixtral = R"(
srun sh -c "python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --seq-length 4096 --swiglu --normalization RMSNorm --num-experts 8 \
  --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --expert-model-parallel-size 8 \
  --moe-router-load-balancing-type aux_loss --micro-batch-size 1 --global-batch-size 256 \
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall --train-iters 100 --lr 1e-4"
)";

TEST_F(MegatronImport, Gpt3) {
  EXPECT_THAT(
      settings(kGpt3),
      IsSupersetOf(
          {Pair("trainer.devices", "8"), Pair("trainer.num_nodes", "128"),
           Pair("model.num_layers", "96"), Pair("data.global_batch_size", "1536"),
           Pair("trainer.max_steps", "1000"), Pair("model.optim.sched.name", "CosineAnnealing"),
           Pair("model.optim.sched.warmup_steps", "8"),
           Pair("model.optim.sched.constant_steps", "200"),
           Pair("model.optim.betas", "[0.9, 0.95]"),
           Pair("distributed_strategy.virtual_pipeline_model_parallel_size", "2"),
           Pair("data.data_prefix", "[data/gpt_text_document]"),
           Pair("data.splits_string", "\"949,50,1\""), Pair("data.tokenizer.library", "megatron"),
           Pair("exp_manager.resume_if_exists", "true"), Pair("precision.type", "mixed_precision"),
           Pair("name", "megatron_gpt")}));
}

TEST_F(MegatronImport, Llama3) {
  const KeyValues made = settings(kLlama3);
  EXPECT_THAT(
      made,
      IsSupersetOf(
          {Pair("model.num_kv_heads", "8"), Pair("model.has_bias", "false"),
           Pair("model.activation", "swiglu"), Pair("model.rope_scaling.factor", "8"),
           Pair("distributed_strategy.context_parallel_order", "balanced"),
           Pair("model.fusions.ring_attention", "true"),
           Pair("model.fusions.flash_attention", "false"),
           Pair("trainer.max_steps", "3200"),  // 8 ranks / CP 2 × 1
           Pair("data.global_batch_size", "4"), Pair("trainer.max_time", "\"00:01:30:00\""),
           Pair("model.optim.sched.name", "LinearAnnealingWithWarmUp"),
           Pair("data.tokenizer.type", "meta/llama3"), Pair("data.data_prefix", "[0.3, a, 0.7, b]"),
           Pair("data.splits_string", "\"969,30,1\""), Pair("name", "megatron_llama")}));
}

TEST_F(MegatronImport, Mixtral) {
  EXPECT_THAT(settings(kMixtral),
              IsSupersetOf({Pair("model.moe.num_experts", "8"), Pair("model.moe.top_k", "2"),
                            Pair("model.moe.dropless", "true"),
                            Pair("model.moe.router_aux_loss_coef", "1e-2"),
                            Pair("model.moe.output_router_logits", "true"),
                            Pair("distributed_strategy.expert_model_parallel_size", "8"),
                            Pair("name", "megatron_mixtral")}));
  EXPECT_EQ(key(kMixtral, "--moe-grouped-gemm").status, ImportStatus::kIgnored);
  EXPECT_EQ(key("--moe-router-topk 2", "--moe-router-topk").status, ImportStatus::kDefault);
}

/// A name has one row; each is classified, alone and without a value that has to make sense.
TEST_F(MegatronImport, EveryKnownNameIsClassified) {
  std::multiset<std::string> names;
  for (const auto& rows :
       {megatron_mapped_rows(), megatron_ignored_rows(), megatron_refused_rows()}) {
    for (const MegatronRow& row : rows) {
      EXPECT_EQ(row.does == MegatronRow::Does::kIgnored || row.does == MegatronRow::Does::kRefused,
                !row.note.empty() && row.does != MegatronRow::Does::kMoves)
          << row.names;
      std::istringstream words{std::string(row.names)};
      for (std::string name; words >> name;) names.insert(name);
    }
  }
  std::string text;
  for (const std::string& name : names) {
    EXPECT_EQ(names.count(name), 1U) << name;
    const bool flag = megatron_row(name, false)->values == MegatronRow::Values::kNone;
    text += "--" + name + (flag ? "\n" : " 1\n");
  }
  const ImportedConfig imported = import(text);
  EXPECT_EQ(imported.keys.size(), names.size());
  for (const ImportedKey& each : imported.keys) {
    EXPECT_NE(each.status, ImportStatus::kUnclassified) << each.source.key << ": " << each.note;
    EXPECT_EQ(each.note.find("no rule"), std::string::npos) << each.source.key;
    EXPECT_EQ(each.settings.empty(), each.status != ImportStatus::kMapped) << each.source.key;
    EXPECT_TRUE(each.status == ImportStatus::kMapped || !each.note.empty()) << each.source.key;
  }
}

TEST_F(MegatronImport, UnderscoresAndEqualSigns) {
  const KeyValues made = settings("--num-layers 4 --lr 1e-3 --bf16");
  EXPECT_EQ(made, settings("--num_layers=4 --lr=1e-3 --bf16"));
  EXPECT_EQ(key("--num_layers 4", "--num_layers").status, ImportStatus::kMapped);
}

TEST_F(MegatronImport, AnOddTextStaysAValue) {
  EXPECT_THAT(settings(R"(--num-layers 4 --data-path a --split '9\x,1')"),
              IsSupersetOf({Pair("data.splits_string", R"("9\\x,1,0")")}));
}

TEST_F(MegatronImport, OrderDoesNotMatter) {
  std::vector<std::string> arguments = {"--num-layers 8",
                                        "--pipeline-model-parallel-size 2",
                                        "--lr-decay-iters 50",
                                        "--train-samples 1000",
                                        "--global-batch-size 10",
                                        "--lr-decay-style cosine",
                                        "--normalization RMSNorm",
                                        "--num-layers-per-virtual-pipeline-stage 2",
                                        "--swiglu",
                                        "--num-query-groups 2",
                                        "--group-query-attention",
                                        "--lr-warmup-fraction 0.1"};
  const auto joined = [&] {
    std::string text = "python pretrain_gpt.py";
    for (const std::string& argument : arguments) text += " " + argument;
    return text;
  };
  const KeyValues first = settings(joined());
  EXPECT_THAT(first, Contains(Pair("model.optim.sched.warmup_steps", "5")));
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    std::ranges::shuffle(arguments, random);
    EXPECT_EQ(settings(joined()), first) << joined();
  }
}

TEST_F(MegatronImport, NoArgumentIsLost) {
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    std::string text = "torchrun --nproc_per_node 2 my_pretrain.py";
    std::size_t arguments = 1;
    for (std::size_t n = random() % 12; n > 0; --n, ++arguments) {
      const auto& names = megatron_names();
      text += random() % 3 == 0 ? fmt::format(" --unknown-{}", random() % 1000)
                                : " --" + names[random() % names.size()];
      for (std::size_t values = 1 + random() % 2; values > 0; --values)
        text += random() % 4 == 0 ? " $1" : fmt::format(" {}", random() % 100);
    }
    const ImportedConfig imported = import(text);
    const auto named = std::ranges::count_if(
        imported.keys, [](const ImportedKey& each) { return each.source.key.starts_with("--"); });
    EXPECT_EQ(static_cast<std::size_t>(named), arguments) << text;
  }
}

TEST_F(MegatronImport, UnknownArgumentsAreNamed) {
  const ImportedKey near = key("--num-layer 4 --lr 1", "--num-layer");
  EXPECT_EQ(near.status, ImportStatus::kUnclassified);
  EXPECT_THAT(near.note, HasSubstr("--num-layers"));
  EXPECT_EQ(near.source.value, "4");
}

TEST_F(MegatronImport, TheLastOfAnArgumentCounts) {
  EXPECT_THAT(settings("--num-layers 4 --num_layers 8"), Contains(Pair("model.num_layers", "8")));
  EXPECT_EQ(key("--seed 1 --lr 2 --seed 3", "--seed").status, ImportStatus::kIgnored);
}

TEST_F(MegatronImport, SubstitutionsAreNotExecuted) {
  const ImportedKey data =
      key("D=$(touch made-by-import)\npretrain_gpt.py --data-path $D/x", "--data-path");
  EXPECT_EQ(data.status, ImportStatus::kUnsupported);
  EXPECT_THAT(data.note, HasSubstr("is not executed: write the value"));
  EXPECT_FALSE(fs::exists("made-by-import"));
  const std::string conditional = "A=(--lr 1)\nif x; then A+=(--bf16); fi\npretrain_gpt.py ${A[@]}";
  EXPECT_THAT(key(conditional, "--bf16").note, HasSubstr("condition of the shell (line 2)"));
  EXPECT_EQ(key("pretrain_gpt.py --bf16 $MORE", "$MORE").status, ImportStatus::kUnsupported);
}

/// The form of tests/functional_tests/test_cases/*/model_config.yaml.
TEST_F(MegatronImport, ConfigurationsOfItsFunctionalTests) {
  const char* text =
      "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  --num-layers: 12\n"
      "  --hidden-size: 512\n  --bf16: true\n  --data-path: 0.5 a 0.5 b\n  --split: 949,50,1\n"
      "  --vocab-file: ${DATA_PATH}/bpe/vocab.json\nTEST_TYPE: regular\n";
  EXPECT_THAT(settings(text),
              IsSupersetOf({Pair("model.num_layers", "12"), Pair("model.hidden_size", "512"),
                            Pair("precision.type", "mixed_precision"),
                            Pair("data.data_prefix", "[0.5, a, 0.5, b]"),
                            Pair("data.splits_string", "\"949,50,1\"")}));
  EXPECT_EQ(key(text, "--num-layers").source.where, path_.string() + ":4");
  EXPECT_EQ(key(text, "--vocab-file").status, ImportStatus::kUnsupported);
  for (const char* other : {"ENV_VARS", "TEST_TYPE"})
    EXPECT_EQ(key(text, other).status, ImportStatus::kIgnored) << other;
  EXPECT_THAT(problem("MODEL_ARGS:\n  --lr: {a: 1}\n"),
              HasSubstr(":2:MODEL_ARGS.--lr: expected one"));
}

TEST_F(MegatronImport, DefaultsOfTheEnvironmentAreNamed) {
  const ImportedKey layers = key("pretrain_gpt.py --num-layers ${N:-4}", "--num-layers");
  EXPECT_EQ(layers.status, ImportStatus::kMapped);
  EXPECT_THAT(layers.note, HasSubstr("the default of ${N}"));
}

TEST_F(MegatronImport, ListsThatAnotherScriptSources) {
  const char* text = "H=512\nMODEL_ARGS=(\n  --num-layers 4\n  --hidden-size $H --bf16 $1\n)\n";
  EXPECT_THAT(settings(text),
              IsSupersetOf({Pair("model.num_layers", "4"), Pair("model.hidden_size", "512")}));
  EXPECT_EQ(key(text, "$1").status, ImportStatus::kUnsupported);
}

TEST_F(MegatronImport, ValuesThatAreNotSupported) {
  for (const char* text :
       {"--fp16", "--fp8-format hybrid", "--multi-latent-attention", "--mtp-num-layers 1",
        "--position-embedding-type none", "--normalization Other", "--optimizer muon",
        "--reset-attention-mask", "--num-layers 1 2", "--bf16 true", "--recompute-method block",
        "--num-experts 8", "--window-size 5,-1"}) {
    const ImportedConfig imported = import(text);
    ASSERT_EQ(imported.keys.size(), 1U) << text;
    EXPECT_EQ(imported.keys[0].status, ImportStatus::kUnsupported) << text;
    EXPECT_FALSE(imported.keys[0].note.empty()) << text;
  }
  for (const char* text : {"--mtp-num-layers 0", "--softmax-type vanilla", "--rope-type rope",
                           "--recompute-method uniform", "--lr-warmup-init 0.0"})
    EXPECT_EQ(import(text).keys[0].status, ImportStatus::kDefault) << text;
}

TEST_F(MegatronImport, Schedules) {
  const auto schedule = [&](const std::string& more) {
    std::string text;
    for (const auto& [name, value] : settings("--train-iters 100 --lr 1 " + more))
      if (name.starts_with("model.optim.sched.") && !name.ends_with("min_lr"))
        text += name.substr(18) + "=" + value + " ";
    return text;
  };
  EXPECT_EQ(schedule(""), "name=LinearAnnealingWithWarmUp ");
  EXPECT_EQ(schedule("--min-lr 0.1"), "name=WarmupAnnealing ");
  EXPECT_EQ(schedule("--lr-decay-style constant --lr-warmup-iters 5"),
            "name=WarmupPolicy warmup_steps=5 ");
  EXPECT_EQ(schedule("--lr-decay-style inverse-square-root"), "name=NoamHoldAnnealing ");
  EXPECT_EQ(schedule("--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 20 "
                     "--lr-warmup-iters 10"),
            "hold_steps=70 name=WarmupHoldAnnealLinear warmup_steps=10 ");
  EXPECT_THAT(key("--train-iters 10 --lr-decay-iters 20", "--lr-decay-iters").note,
              HasSubstr("outlast"));
}

TEST_F(MegatronImport, BadFilesAreNamed) {
  const std::string file = path_.string();
  EXPECT_THAT(problem("go\npretrain_gpt.py --lr 'x"), HasSubstr(file + ":2: this is no script"));
  EXPECT_THAT(problem("echo --lr"), HasSubstr(": no command of Megatron-LM"));
  EXPECT_THAT(problem("pretrain_gpt.py --lr 1\npretrain_gpt.py --lr 2"),
              HasSubstr(":2: a second command that trains"));
  EXPECT_THAT(problem("pretrain_gpt.py --lr --bf16"), HasSubstr(":1: --lr: expected a value"));
  EXPECT_THAT(problem("pretrain_gpt.py 5 --lr 1"), HasSubstr("'5' belongs to no argument"));
}

}  // namespace
}  // namespace trellis::analysis
