#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/export/exported_config.h"
#include "analysis/export/megatron_words.h"
#include "analysis/import/import_report.h"
#include "analysis/import/megatron_table.h"
#include "analysis/import/shell_words.h"
#include "analysis/import/sources.h"

namespace trellis::analysis {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;
using KeyValues = std::map<std::string, std::string>;

/// Arguments → a configuration of this program → arguments.
class MegatronRoundTrip : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::temp_directory_path() / fmt::format("export-{}-{}.yaml", test->name(), getpid());
  }
  void TearDown() override { fs::remove(path_); }

  ExportedConfig exported(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    std::ofstream(path_) << yaml;
    return export_megatron(path_.string(), overrides);
  }
  /// By setting, with every default and derived number: what a run depends on.
  static KeyValues resolved(const ImportedConfig& imported) {
    const auto settings = ResolvedSettings::of_settings(settings_of(imported));
    if (!settings) throw std::runtime_error("no legal configuration");
    KeyValues all;
    for (const SourceKey& key : settings->all()) all[key.key] = key.value;
    return all;
  }
  static std::string differences(const KeyValues& before, const KeyValues& after) {
    std::string text;
    for (const auto& [key, value] : before)
      if (!after.contains(key) || after.at(key) != value)
        text += fmt::format("{}: {} → {}\n", key, value, after.contains(key) ? after.at(key) : "");
    for (const auto& [key, value] : after)
      if (!before.contains(key)) text += fmt::format("{}: nothing → {}\n", key, value);
    return text;
  }
  void expect_same_after_a_round(const std::string& script) {
    const ImportedConfig before = import_megatron_text(script, "before.sh", reader_);
    const std::string written = exported(import_yaml(before, "before.sh")).text;
    SCOPED_TRACE(script + "\n" + written);
    const ImportedConfig after = import_megatron_text(written, "after.sh", reader_);
    EXPECT_EQ(differences(resolved(before), resolved(after)), "");
    for (const ImportedKey& key : after.keys)
      EXPECT_TRUE(key.status == ImportStatus::kMapped || key.status == ImportStatus::kDefault ||
                  key.source.key == "--mock-data")
          << key.source.key << ": " << key.note;
  }
  fs::path path_;
  ShellReader reader_;
};

constexpr const char* kScripts[] = {
    R"(torchrun --nproc_per_node 8 --nnodes 128 pretrain_gpt.py
  --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536 --train-iters 1000
  --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --lr-warmup-fraction .01 --lr-decay-iters 800
  --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.1 --clip-grad 1.0 --bf16
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
  --num-layers-per-virtual-pipeline-stage 3 --data-path data/gpt --split 949,50,1
  --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt --vocab-size 50257
  --save ckpt --load ckpt --save-interval 100 --eval-interval 200 --eval-iters 10
  --tensorboard-dir logs --recompute-granularity selective --recompute-modules core_attn mlp)",
    R"(torchrun --nproc_per_node 8 pretrain_gpt.py
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
  --position-embedding-type rope --rotary-base 500000 --use-rope-scaling --swiglu
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
  --attention-dropout 0 --hidden-dropout 0 --bf16 --micro-batch-size 1 --train-samples 12800
  --lr 3e-4 --context-parallel-size 2 --tokenizer-type HuggingFaceTokenizer
  --tokenizer-model meta/llama3 --vocab-size 128256 --use-distributed-optimizer
  --data-path 0.3 a 0.7 b --exit-duration-in-mins 90
  --load other --finetune --recompute-granularity full --recompute-method uniform)",
    R"(torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512
  --ffn-hidden-size 1024 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256
  --swiglu --normalization RMSNorm --position-embedding-type rope --num-experts 8
  --disable-bias-linear
  --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type aux_loss
  --moe-shared-expert-intermediate-size 2048 --micro-batch-size 1 --global-batch-size 256
  --train-iters 100 --lr 1e-4 --vocab-size 1000 --lr-decay-style WSD --lr-wsd-decay-style linear
  --lr-wsd-decay-iters 20 --lr-warmup-iters 10 --window-size 127,0
  --optimizer sgd --sgd-momentum 0.8)",
};

TEST_F(MegatronRoundTrip, EveryScriptKeepsItsRun) {
  for (std::string script : kScripts) {
    std::ranges::replace(script, '\n', ' ');
    expect_same_after_a_round(script);
  }
}

/// One of the values of each argument, or none.
std::string random_script(std::mt19937& random) {
  static const std::vector<std::pair<const char*, std::vector<const char*>>> kChoices = {
      {"--num-query-groups", {"2", "4"}},
      {"--ffn-hidden-size", {"256", "512"}},
      {"--init-method-std", {"0.01", "0.023"}},
      {"--norm-epsilon", {"1e-6", "1e-5"}},
      {"--hidden-dropout", {"0", "0.2"}},
      {"--attention-dropout", {"0.0", "0.05"}},
      {"--rotary-base", {"500000", "10000"}},
      {"--position-embedding-type", {"rope", "learned_absolute"}},
      {"--use-rope-scaling --position-embedding-type rope", {"--rope-scaling-factor 4", ""}},
      {"--normalization", {"RMSNorm", "LayerNorm"}},
      {"--apply-layernorm-1p", {""}},
      {"--swiglu", {""}},
      {"--openai-gelu", {""}},
      {"--qk-layernorm", {""}},
      {"--disable-bias-linear", {"", "--add-qkv-bias"}},
      {"--untie-embeddings-and-output-weights", {""}},
      {"--window-size", {"15,0", "63,0"}},
      {"--recompute-granularity", {"full", "selective"}},
      {"--tensor-model-parallel-size", {"2 --sequence-parallel", "2", "4"}},
      {"--pipeline-model-parallel-size", {"2", "2 --num-virtual-stages-per-pipeline-rank 2"}},
      {"--use-distributed-optimizer", {""}},
      {"--bf16", {""}},
      {"--seed", {"7", "42"}},
      {"--clip-grad", {"0", "0.0", "2.5"}},
      {"--eval-interval", {"10 --eval-iters 3", "20"}},
      {"--log-interval", {"5"}},
      {"--save", {"ckpt --save-interval 10", "ckpt --load ckpt --save-interval 5 --async-save"}},
      {"--weight-decay", {"0", "0.1"}},
      {"--adam-beta2", {"0.95"}},
      {"--adam-eps", {"1e-6"}},
      {"--lr-decay-style", {"constant", "linear", "cosine", "inverse-square-root"}},
      {"--lr-warmup-iters", {"5", "10"}},
      {"--min-lr", {"1e-5", "0"}},
      {"--data-path", {"a --split 9,1,0", "0.5 a 0.5 b", "\"1 a 2 b\""}},
      {"--dataloader-type", {"single", "cyclic"}},
      {"--num-workers", {"0", "2"}},
      {"--reset-position-ids", {""}},
      {"--eod-mask-loss", {""}},
      {"--exit-duration-in-mins", {"10", "3000"}},
      {"--tensorboard-dir", {"logs"}},
  };
  std::string text =
      "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
      "--num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --vocab-size 500 "
      "--micro-batch-size 1 --global-batch-size 64 --train-iters 50 --lr 1e-3 "
      "--tokenizer-type NullTokenizer";
  for (const auto& [name, values] : kChoices) {
    if (random() % 2 == 0) continue;
    text += fmt::format(" {} {}", name, values[random() % values.size()]);
    if (std::string_view(name) == "--num-query-groups") text += " --group-query-attention";
  }
  return text;
}

TEST_F(MegatronRoundTrip, RandomScriptsKeepTheirRun) {
  std::mt19937 random(7);
  int rounds = 0;
  for (int tried = 0; tried < 200 && rounds < 40; ++tried) {
    const std::string script = random_script(random);
    try {
      (void)resolved(import_megatron_text(script, "before.sh", reader_));
    } catch (const std::exception&) {
      continue;  // what contradicts is refused, before anything is written
    }
    ++rounds;
    expect_same_after_a_round(script);
  }
  EXPECT_EQ(rounds, 40);
}

/// Each name of the table that decides something is written, or another spelling of it is.
TEST_F(MegatronRoundTrip, EveryNameOfTheTableHasAnInverse) {
  for (const auto rows : {megatron_mapped_rows(), launcher_rows()}) {
    for (const MegatronRow& row : rows) {
      if (row.does != MegatronRow::Does::kRule) continue;
      std::istringstream words{std::string(row.names)};
      for (std::string name; words >> name;) {
        EXPECT_NE(megatron_word(name), nullptr) << name;
      }
    }
  }
}

constexpr const char* kYaml = R"(
name: small
model_source: megatron
software: nxd
trainer: {devices: 8, max_steps: 10, val_check_interval: 3}
exp_manager: {log_gradient_norm: true}
distributed_strategy: {tensor_model_parallel_size: 2, zero1: true, kv_replicator: 1}
data: {micro_batch_size: 1, global_batch_size: 8, train_dir: text}
model:
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: 256
  num_attention_heads: 4
  encoder_seq_length: 64
  max_position_embeddings: 64
  vocab_size: 300
  activation: geglu
  transformer_block_type: gpt_j
  optim: {name: adamw_fp32OptState, lr: 0.001, sched: {name: CosineAnnealing, warmup_steps: 2}}
precision: {type: mixed_precision}
)";

TEST_F(MegatronRoundTrip, WhatMegatronDoesNotHaveIsListedWithItsPlace) {
  const ExportedConfig result = exported(kYaml, {"model.hidden_dropout=0"});
  std::map<std::string, LeftOut> left_out;
  for (const LeftOut& key : result.left_out) left_out[key.key] = key;
  const auto why = [&](const std::string& key) {
    return left_out.contains(key) ? left_out.at(key).why : "not listed";
  };
  EXPECT_EQ(why("software"), "Megatron-LM has no such setting");
  EXPECT_EQ(why("model.transformer_block_type"), "Megatron-LM has no such setting");
  EXPECT_EQ(why("exp_manager.log_gradient_norm"), "Megatron-LM has no such setting");
  EXPECT_EQ(why("model.optim.name"), "Megatron-LM would have adamw");
  EXPECT_EQ(why("model.activation"), "Megatron-LM would have gelu");
  EXPECT_THAT(why("data.train_dir"), HasSubstr("trellis data preprocess"));
  EXPECT_EQ(left_out.at("software").where, path_.string() + ":4");
  for (const char* kept : {"trainer.devices", "trainer.max_steps", "model.vocab_size", "seed",
                           "distributed_strategy.zero1", "model.hidden_dropout"})
    EXPECT_EQ(why(kept), "not listed") << kept;
  EXPECT_THAT(result.text, HasSubstr(" --vocab-size 300"));
  EXPECT_THAT(result.text, Not(HasSubstr("--swiglu")));
}

/// Megatron-LM's --qk-layernorm normalises each head.
TEST_F(MegatronRoundTrip, NormsAcrossHeadsHaveNoArgument) {
  const std::vector<std::string> each = {"model.qk_layernorm=true"};
  EXPECT_THAT(exported(kYaml, each).text, HasSubstr("--qk-layernorm"));
  const std::vector<std::string> across = {"model.qk_layernorm=true",
                                           "model.qk_layernorm_across_heads=true"};
  const ExportedConfig result = exported(kYaml, across);
  EXPECT_THAT(result.text, Not(HasSubstr("--qk-layernorm")));
  EXPECT_THAT(result.left_out, Contains(testing::Field(&LeftOut::key, "model.qk_layernorm")));
}

}  // namespace
}  // namespace trellis::analysis
