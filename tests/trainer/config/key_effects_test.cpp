// No key is read without effect: for each of the schema there is a value that changes the run, or
// every other value is refused, or `trellis validate` lists it among the keys without effect.
#include <map>
#include <optional>
#include <set>

#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_changes.h"
#include "trainer/config/model_properties.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::trainer {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kHf = {"model_source=hf"};
const Overrides kMegatronData = {"data.data_prefix=[/data/a]", "data.splits_string='8,1,1'",
                                 "data.dataloader_type=cyclic"};
const Overrides kMoe = {"model.moe.num_experts=8", "model.moe.top_k=2",
                        "model.moe.capacity_factor=2.0"};
const Overrides kOneRank = {"trainer.devices=1",
                            "distributed_strategy.tensor_model_parallel_size=1",
                            "distributed_strategy.pipeline_model_parallel_size=1"};

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A model that NxDT does not have; the base's sizes are of a decoder.
Overrides encoder(const std::string& keys) {
  return joined(
      joined(kHf, kOneRank),
      {"model={" + keys +
       ", num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4, optim: "
       "{name: adamw, lr: 1.0e-3}}"});
}

/// Those of scaled positions, optimizers and schedules.
std::vector<Overrides> contexts_of_model_part(const std::string& section) {
  std::vector<Overrides> contexts;
  const auto add = [&](const Overrides& context) { contexts.push_back(context); };
  if (section == "model.rope_scaling") {
    for (const char* type : {"linear", "llama3"}) {
      add(joined(kHf, {std::string("model.rope_scaling.rope_type=") + type,
                       "model.rope_scaling.factor=8.0", "model.rope_scaling.low_freq_factor=1.0",
                       "model.rope_scaling.high_freq_factor=4.0",
                       "model.rope_scaling.original_max_position_embeddings=32"}));
    }
    add(joined(kHf, {"model.rope_scaling={type: linear, factor: 8.0}"}));
  }
  if (section == "model.optim") {
    for (const OptimizerInfo& info : optimizer_table())
      add({"model.optim.name=" + info.name, "model.optim.betas=null"});
  }
  if (section == "model.optim.sched") {
    for (const char* arguments :
         {"CosineAnnealing, warmup_steps: 2", "NoamAnnealing, d_model: 512",
          "NoamHoldAnnealing, warmup_steps: 2, decay_rate: 0.5", "PolynomialDecayAnnealing",
          "WarmupHoldPolicy, hold_steps: 3", "StepLR, step_size: 3", "ExponentialLR, gamma: 0.9",
          "ReduceLROnPlateau"}) {
      add({std::string("model.optim.sched={name: ") + arguments + "}"});
    }
    add(
        {"model.optim.sched={name: CyclicLR, base_lr: 1.0e-4, max_lr: 1.0e-3, step_size_up: 3, "
         "mode: exp_range, cycle_momentum: false}"});
  }
  return contexts;
}

/// Configurations in which the keys of a section may act; the base alone is the first of each.
std::vector<Overrides> contexts_of(const std::string& section) {
  std::vector<Overrides> contexts = {{}};
  const auto add = [&](const Overrides& context) { contexts.push_back(context); };
  if (section.starts_with("exp_manager.early"))
    add({"exp_manager.create_early_stopping_callback=true"});
  if (section == "exp_manager")
    add({"exp_manager.async_checkpointing=true", "distributed_strategy.zero1=true"});
  if (section == "exp_manager.ema") add({"exp_manager.ema.enable=true"});
  if (section == "data") add(kMegatronData);
  if (section == "data.tokenizer") {
    add({"data.tokenizer.library=sentencepiece", "data.tokenizer.model=/tokenizer.model",
         "model.vocab_size=300"});
    add({"data.tokenizer.library=megatron", "data.tokenizer.type=GPT2BPETokenizer",
         "data.tokenizer.model=/tokenizer.model", "model.vocab_size=50304"});
  }
  if (section == "distributed_strategy") {
    add({"model.fusions.ring_attention=true", "model.fusions.flash_attention=false"});
    add(kMoe);
    add(joined(kHf, {"model.qkv_linear=true"}));
    add({"distributed_strategy.fsdp=true", "distributed_strategy.pipeline_model_parallel_size=1"});
  }
  if (section == "model") {
    add({"model.normalization=layernorm"});
    add({"model.qk_layernorm=true"});
    add(kHf);
    add({"model.activations_checkpoint_granularity=selective"});
    add(joined(kHf, {"precision.type=autocast"}));
    add(
        encoder("model_type: bert, encoder_seq_length: 32, max_position_embeddings: 64, "
                "vocab_size: 300"));
    add(encoder("model_type: vit, image_size: 64, patch_size: 8, num_labels: 10"));
  }
  if (section == "model.moe") {
    add(kMoe);
    add({"model.moe.num_experts=8"});
    add(joined(kMoe, {"model.moe.top_k=1"}));
    add({"model.moe.num_experts=8", "model.moe.dropless=true"});
    add(joined(kMoe, {"model.moe.routing_algorithm=sinkhorn", "model.moe.top_k=1"}));
    add(joined(kMoe, {"model.moe.routing_algorithm=group_limited", "model.moe.num_groups=4"}));
  }
  for (const Overrides& context : contexts_of_model_part(section)) add(context);
  if (section == "model") add({"model.dist_ckpt_format=torch_dist"});
  if (section == "precision") add({"precision.type=manual", "precision.xla_downcast_bf16='1'"});
  if (section.starts_with("model_alignment_strategy.")) {
    const std::string name = section.substr(section.find('.') + 1);
    const std::string strategy = name == "peft" ? "sft" : name;
    add(joined(joined(kHf, kOneRank), {"model_alignment_strategy={" + strategy + ": {}" +
                                       (name == "peft" ? ", peft: {lora_rank: 8}" : "") + "}"}));
    if (name == "peft") {
      add(joined(joined(kHf, kOneRank),
                 {"model_alignment_strategy={sft: {}, peft: {lora_rank: 8, lora_alpha: 8, "
                  "target_modules: [q_proj], load_lora_from_ckpt: true}}"}));
      add(joined(joined(kHf, kOneRank),
                 {"exp_manager.create_checkpoint_callback=true",
                  "model_alignment_strategy={sft: {}, peft: {lora_rank: 8}}"}));
    }
  }
  return contexts;
}

/// Values of keys that are words, lists or paths.
std::vector<std::string> values_of(const std::string& key) {
  static const std::map<std::string, std::vector<std::string>> kWords = {
      {"model_source", {"hf"}},
      {"software", {"nxd"}},
      {"trainer.max_time", {"'00:01:00:00'"}},
      {"exp_manager.max_time", {"'00:01:00:00'"}},
      {"exp_manager.max_time_per_run", {"'00:01:00:00'"}},
      {"exp_manager.files_to_copy", {"[a.txt]"}},
      {"exp_manager.accept_differences", {"[model.rope_theta]"}},
      {"exp_manager.early_stopping_callback_params.monitor", {"lr"}},
      {"exp_manager.early_stopping_callback_params.mode", {"max"}},
      {"exp_manager.checkpoint_callback_params.mode", {"max"}},
      {"data.data_prefix", {"[1.0, /data/b]"}},
      {"data.splits_string", {"'6,2,2'"}},
      {"data.dataloader_type", {"single"}},
      {"data.tokenizer.library", {"sentencepiece"}},
      {"data.tokenizer.special_tokens", {"post_processor"}},
      {"model_alignment_strategy.dpo.reference", {"start"}},
      {"model.normalization", {"layernorm"}},
      {"model.activation", {"geglu"}},
      {"model.transformer_block_type", {"post_ln"}},
      {"model.position_embedding_type", {"learned_absolute"}},
      {"model.pipeline_cuts", {"[model.layers.0]"}},
      {"distributed_strategy.context_parallel_order", {"balanced"}},
      {"model.activations_checkpoint_granularity", {"full"}},
      {"model.activations_checkpoint_recompute", {"[LlamaMLP]"}},
      {"model.torch_dtype", {"bfloat16"}},
      {"model.model_type", {"mistral", "bert"}},
      {"model.dist_ckpt_format", {"torch_dist"}},
      {"model.dist_ckpt_load_strictness", {"log_all"}},
      {"model.rope_scaling.rope_type", {"linear", "llama3"}},
      {"model.rope_scaling.type", {"linear", "llama3", "{}"}},
      {"model.moe.routing_algorithm", {"sinkhorn"}},
      {"model.moe.router_activation", {"softmax"}},
      {"model.optim.name", {"sgd", "adam"}},
      {"model.optim.betas", {"[0.8, 0.9]"}},
      {"model.optim.etas", {"[0.4, 1.3]"}},
      {"model.optim.step_sizes", {"[1.0e-5, 40]"}},
      {"model.optim.eps", {"1.0e-5", "[1.0e-20, 1.0e-2]"}},
      {"model.optim.sched.name", {"WarmupPolicy"}},
      {"model.optim.sched.mode", {"max", "triangular2"}},
      {"model.optim.sched.threshold_mode", {"abs"}},
      {"model.optim.sched.scale_mode", {"iterations", "cycle"}},
      {"model.optim.sched.min_lr", {"1.0e-6"}},
      {"model.optim.sched.base_lr", {"2.0e-4"}},
      {"model.optim.sched.max_lr", {"2.0e-3"}},
      {"model.max_position_embeddings", {"128"}},
      {"model.vocab_size", {"600"}},
      {"precision.type", {"fp32"}},
      {"precision.parallel_layers_reduce_dtype", {"fp32"}},
      {"precision.xla_use_bf16", {"'1'"}},
      {"precision.xla_downcast_bf16", {"'0'"}},
      {"precision.neuron_rt_stochastic_rounding_en", {"'1'"}},
      {"model_alignment_strategy.orpo.implementation", {"trl"}},
      {"model_alignment_strategy.orpo.truncation_mode", {"keep_end"}},
      {"model_alignment_strategy.dpo.truncation_mode", {"keep_end"}},
      {"model_alignment_strategy.sft.truncation_mode", {"keep_end"}},
      {"model_alignment_strategy.peft.lora_bias", {"all"}},
      {"model_alignment_strategy.peft.init_lora_weights", {"gaussian"}},
      {"model_alignment_strategy.peft.target_modules", {"[o_proj]"}},
      {"model_alignment_strategy.peft.modules_to_save", {"[lm_head]"}},
  };
  const auto found = kWords.find(key);
  if (found != kWords.end()) return found->second;
  return {"2", "4", "1", "8", "64", "0.25", "0.01", "1.5", "true", "false", "/some/where"};
}

/// Keys that may say one thing only: any other value is refused.
const std::set<std::string>& keys_of_one_value() {
  static const std::set<std::string> keys = {
      "data.seq_length", "model_alignment_strategy.dpo.loss_type",
      "model_alignment_strategy.dpo.precompute_ref_log_probs", "model.optim.sched.cycle_momentum"};
  return keys;
}

RunCheck check(const std::string& file, const Overrides& overrides) {
  RunCheck checked = check_run_config(file, overrides);
  checked.config.resolved_yaml.clear();  // says what was written, not what it does
  return checked;
}

class KeyEffects : public testing::Test {
 protected:
  /// "" when the key has an effect, else what was tried.
  [[nodiscard]] std::string verdict(const std::string& section, const std::string& key) {
    std::string tried;
    for (const Overrides& context : contexts_of(section)) {
      const RunCheck base = check(file_, context);
      if (!base.problems.empty()) {
        tried += "\n  context is refused: " + base.problems.front();
        continue;
      }
      for (const std::string& value : values_of(key)) {
        const RunCheck changed = check(file_, joined(context, {key + "=" + value}));
        if (!changed.problems.empty()) {
          if (keys_of_one_value().contains(key)) return "";
          tried += "\n  " + value + ": " + changed.problems.front();
        } else if (changed.config != base.config) {
          return "";
        } else {
          tried += "\n  " + value + ": nothing changes";
        }
      }
    }
    return tried;
  }

  const TemporaryDirectory directory_;
  const std::string file_ = directory_.write("run.yaml", kBaseConfig);
};

TEST_F(KeyEffects, EveryKeyThatIsReadActs) {
  // A separate file: what it says is compared, not its path.
  const std::string model =
      directory_.write("config.json",
                       R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
      "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 12345.0})");
  std::set<std::string> sections;
  for (const KeyGroup& group : key_groups()) sections.emplace(group.section);
  for (const std::string& section : sections) {
    for (const KnownKey& known : known_keys_of(section)) {
      if (known.group->use != KeyUse::kSupported) continue;
      const std::string key = section.empty() ? known.key : section + "." + known.key;
      if (key == "model.model_config") continue;
      EXPECT_EQ(verdict(section, key), "") << key;
    }
  }
  const RunCheck without = check(file_, kHf),
                 with = check(file_, joined(kHf, {"model.model_config=" + model}));
  EXPECT_THAT(with.problems, testing::IsEmpty());
  EXPECT_NE(with.config, without.config) << "model.model_config";
}

/// Where ranks, files and messages are, how the same numbers are computed, how long a run lasts,
/// what a new model begins with: a training that goes on says nothing of them.
bool may_be_silent(const std::string& key) {
  static const std::set<std::string> kKeys = {
      "data.micro_batch_size",
      "data.num_workers",
      "data.index_mapping_dir",
      "data.val_dir",
      "data.test_dir",
      "data.validation_drop_last",
      "model.init_method_std",
      "model.use_scaled_init_method",
      "model.qkv_linear",
      "model.fuse_qkv",
      "model.fuse_gate_up",
      "model.fusions.flash_attention",
      "model.fusions.ring_attention",
      "model.pipeline_cuts",
      "model.weight_init_only",
      "model.model_type",
      "model.torch_dtype",
      "model.make_vocab_size_divisible_by",
      "model.vocab_size",
      "model.optim.sched.max_steps",  // said where rates differ
      "data.shuffle",
      "data.dev_choose_samples",  // of records alone, which the base does not have
      "model_alignment_strategy.peft.lora_save_dir",
      "model_alignment_strategy.peft.lora_load_tag",
      "model_alignment_strategy.peft.load_lora_from_ckpt",
      "model_alignment_strategy.peft.save_lora_base",
      "model_alignment_strategy.peft.merge_lora",
      "model_alignment_strategy.dpo.ref_cache"};
  return kKeys.contains(key) || key.starts_with("model.activations_checkpoint") ||
         key.starts_with("model.dist_ckpt_");
}

/// Encoders have tables of positions, where nothing turns; sinkhorn alone has its activation;
/// linear scaling has a factor alone.
bool acts_nowhere(const std::string& key, const Overrides& context) {
  const std::string text = testing::PrintToString(context);
  const auto has = [](const std::string& in, const char* part) {
    return in.find(part) != std::string::npos;
  };
  if (key == "model.moe.router_activation") return !has(text, "sinkhorn");
  if (has(key, "rope_scaling.") && (has(text, "rope_type=linear") || has(text, "{type: linear")))
    return has(key, "_freq_factor") || has(key, "original_max");
  return (has(text, "model_type: bert") || has(text, "model_type: vit")) &&
         (has(key, "rope_") || has(key, "rotary_") || has(key, "posit"));
}

/// A checkpoint is compared with a configuration that has another value of one key.
TEST_F(KeyEffects, NoOtherModelAndNoOtherTrainingIsSilent) {
  for (const std::string section :
       {"model", "model.rope_scaling", "model.moe", "model.fusions", "model.optim",
        "model.optim.sched", "data", "precision", "model_alignment_strategy.sft",
        "model_alignment_strategy.dpo", "model_alignment_strategy.orpo",
        "model_alignment_strategy.peft"}) {
    for (const KnownKey& known : known_keys_of(section)) {
      const std::string key = section + "." + known.key;
      if (known.group->use != KeyUse::kSupported || may_be_silent(key)) continue;
      for (const Overrides& context : contexts_of(section)) {
        const RunCheck base = check_run_config(file_, context);
        for (const std::string& value : values_of(key)) {
          if (!base.problems.empty()) break;
          const RunCheck other = check_run_config(file_, joined(context, {key + "=" + value}));
          RunConfig a = base.config, b = other.config;
          a.resolved_yaml.clear(), b.resolved_yaml.clear();
          if (!other.problems.empty() || a == b || acts_nowhere(key, context)) continue;
          const bool is_said = !model_differences(base.config.model, other.config.model).empty() ||
                               !run_changes(base.config, other.config, 0).empty();
          EXPECT_TRUE(is_said) << key << "=" << value << " with "
                               << testing::PrintToString(context);
        }
      }
    }
  }
}

TEST_F(KeyEffects, LayoutPathsAndLoggingSayNothing) {
  const RunConfig base = check_run_config(file_, {}).config;
  const RunConfig other =
      check_run_config(
          file_, {"trainer.devices=16", "trainer.max_steps=9999", "exp_manager.exp_dir=/other",
                  "trainer.log_every_n_steps=7", "distributed_strategy.zero1=false",
                  "data.num_workers=3", "data.val_dir=/other"})
          .config;
  EXPECT_THAT(model_differences(base.model, other.model), testing::IsEmpty());
  for (const RunChange& change : run_changes(base, other, 5))
    EXPECT_THAT(change.key, testing::StartsWith("model.optim.sched"));
}

/// A key without effect: the test above would find it.
TEST_F(KeyEffects, AKeyWithoutEffectIsFound) {
  EXPECT_NE(verdict("data", "data.dataset_name"), "");
  EXPECT_NE(verdict("model", "model.save_logits"), "");
}

TEST_F(KeyEffects, KeysOfAlignmentDataAreListed) {
  const Overrides sft =
      joined(joined(kHf, kOneRank), {"model_alignment_strategy={sft: {packing: true}}",
                                     "data.subset_name=s", "data.prompt_name=p"});
  std::vector<std::string> listed;
  for (const KeyWithoutEffect& key : check(file_, sft).without_effect) listed.push_back(key.key);
  EXPECT_THAT(listed, testing::IsSupersetOf({"data.subset_name", "data.prompt_name"}));
}

}  // namespace
}  // namespace trellis::trainer
