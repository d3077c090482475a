#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "analysis/import/sources.h"
#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "rope_scaling": null, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "attention_bias": false, "torch_dtype": "bfloat16",
    "bos_token_id": 128000, "use_cache": true, "transformers_version": "4.40.0"})");
}

/// TrainingArguments(output_dir="out", use_cpu=True).to_json_string() of transformers 5.23.0: every
/// field, at the value that does nothing.
json all_arguments() {
  return json::parse(R"({
    "output_dir": "out", "per_device_train_batch_size": 8, "num_train_epochs": 3.0,
    "max_steps": -1, "learning_rate": 5e-05, "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": null, "warmup_steps": 0, "optim": "adamw_torch_fused",
    "optim_args": null, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "adam_epsilon": 1e-08, "optim_target_modules": null, "gradient_accumulation_steps": 1,
    "average_tokens_across_devices": true, "max_grad_norm": 1.0, "label_smoothing_factor": 0.0,
    "bf16": false, "fp16": false, "bf16_full_eval": false, "fp16_full_eval": false, "tf32": null,
    "activation_checkpointing": false, "activation_checkpointing_kwargs": null,
    "gradient_checkpointing": false, "gradient_checkpointing_kwargs": null,
    "torch_compile": false, "torch_compile_backend": null, "torch_compile_mode": null,
    "use_liger_kernel": false, "liger_kernel_config": null, "use_cache": false,
    "neftune_noise_alpha": null, "torch_empty_cache_steps": null, "auto_find_batch_size": false,
    "logging_strategy": "steps", "logging_steps": 500, "logging_first_step": false,
    "log_on_each_node": true, "logging_nan_inf_filter": true,
    "include_num_input_tokens_seen": "no", "log_level": "passive",
    "log_level_replica": "warning", "disable_tqdm": false, "report_to": [], "run_name": null,
    "project": "huggingface", "trackio_space_id": null, "trackio_bucket_id": null,
    "trackio_static_space_id": null, "eval_strategy": "no", "eval_steps": null, "eval_delay": 0,
    "per_device_eval_batch_size": 8, "prediction_loss_only": false, "eval_on_start": false,
    "eval_do_concat_batches": true, "eval_use_gather_object": false,
    "eval_accumulation_steps": null, "include_for_metrics": [], "batch_eval_metrics": false,
    "save_only_model": false, "save_strategy": "steps", "save_steps": 500,
    "save_on_each_node": false, "save_total_limit": null, "enable_jit_checkpoint": false,
    "push_to_hub": false, "hub_token": "<HUB_TOKEN>", "hub_private_repo": null,
    "hub_model_id": null, "hub_strategy": "every_save", "hub_always_push": false,
    "hub_revision": null, "load_best_model_at_end": false, "metric_for_best_model": null,
    "greater_is_better": null, "ignore_data_skip": false,
    "restore_callback_states_from_checkpoint": false, "full_determinism": false, "seed": 42,
    "data_seed": null, "use_cpu": true,
    "accelerator_config": {"split_batches": false, "dispatch_batches": null},
    "parallelism_config": null, "dataloader_drop_last": false, "dataloader_num_workers": 0,
    "dataloader_pin_memory": false, "dataloader_persistent_workers": false,
    "dataloader_prefetch_factor": null, "dataloader_multiprocessing_context": null,
    "dataloader_in_order": true, "remove_unused_columns": true, "label_names": null,
    "train_sampling_strategy": "random", "length_column_name": "length",
    "ddp_find_unused_parameters": null, "ddp_bucket_cap_mb": null,
    "ddp_broadcast_buffers": null, "ddp_static_graph": null, "ddp_backend": null,
    "ddp_timeout": 1800, "fsdp": null, "fsdp_config": null, "deepspeed": null, "debug": [],
    "skip_memory_metrics": true, "do_train": false, "do_eval": false, "do_predict": false,
    "resume_from_checkpoint": null, "local_rank": -1})");
}

/// The arguments that optimum-neuron adds.
json neuron_arguments() {
  return json::parse(R"({
    "tensor_parallel_size": 8, "pipeline_parallel_size": 1,
    "pipeline_parallel_num_microbatches": -1, "disable_sequence_parallel": false,
    "kv_size_multiplier": null, "num_local_ranks_per_step": 8, "use_xser": true,
    "async_save": true, "fuse_qkv": false, "recompute_causal_mask": true, "zero_1": true,
    "use_autocast": false, "stochastic_rounding_enabled": true,
    "optimizer_use_master_weights": true, "optimizer_use_fp32_grad_acc": true,
    "optimizer_save_master_weights_in_ckpt": false, "skip_cache_push": false,
    "dataloader_prefetch_size": null, "overwrite_output_dir": false, "logging_dir": "logs",
    "warmup_ratio": 0.0, "virtual_pipeline_parallel_size": 1, "transpose_nki_inputs": true})");
}

class HuggingFace : public testing::Test {
 protected:
  TemporaryDirectory directory_;

  ImportedConfig import(const json& config, const std::optional<json>& args = std::nullopt) {
    directory_.write("model/config.json", config.dump(2));
    const std::string file = args ? directory_.write("args.json", args->dump(2)) : "";
    return import_hugging_face((directory_.path() / "model").string(), file);
  }
  ImportedConfig with(const json& changes) {
    json args = all_arguments();
    args.update(changes);
    return import(llama(), args);
  }
  std::string error_of(const std::string& path, const std::string& args = "") {
    try {
      (void)import_hugging_face(path, args);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
};

ImportedKey find(const ImportedConfig& imported, const std::string& key) {
  const auto found =
      std::ranges::find_if(imported.keys, [&](const auto& each) { return each.source.key == key; });
  return found == imported.keys.end() ? ImportedKey{{"absent", "", ""}} : *found;
}

ImportStatus status(const ImportedConfig& imported, const std::string& key) {
  return find(imported, key).status;
}

std::map<std::string, std::string> result(const ImportedConfig& imported) {
  std::map<std::string, std::string> values;
  for (const Setting& setting : settings_of(imported)) values[setting.key] = setting.value;
  return values;
}

std::vector<std::string> keys_with(const ImportedConfig& imported, ImportStatus status) {
  std::vector<std::string> keys;
  for (const ImportedKey& key : imported.keys)
    if (key.status == status) keys.push_back(key.source.key);
  return keys;
}

/// Qwen/Qwen3-8B's config.json.
TEST_F(HuggingFace, Qwen3HasNormsOfQueriesAndKeys) {
  json config = json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
  const ImportedConfig imported = import(config);
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnclassified).empty());
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnsupported).empty());
  EXPECT_EQ(status(imported, "config.use_sliding_window"), ImportStatus::kMapped);
  config["use_sliding_window"] = true;
  EXPECT_EQ(status(import(config), "config.use_sliding_window"), ImportStatus::kUnsupported)
      << "its windows begin at a layer";
}

/// Qwen/Qwen2-0.5B's config.json.
TEST_F(HuggingFace, Qwen2HasBiasesOfQueriesKeysAndValues) {
  json config = json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
  const ImportedConfig imported = import(config);
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnclassified).empty());
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnsupported).empty());
  EXPECT_EQ(find(imported, "config.max_window_layers").note, "use_sliding_window is off");
  config["use_sliding_window"] = true;
  EXPECT_EQ(status(import(config), "config.use_sliding_window"), ImportStatus::kUnsupported)
      << "its windows begin at a layer";
}

/// allenai/OLMo-2-1124-7B's config.json.
TEST_F(HuggingFace, Olmo2IsKnown) {
  const ImportedConfig imported = import(json::parse(R"({
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0",
    "use_cache": false, "vocab_size": 100352})"));
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnclassified).empty());
  EXPECT_TRUE(keys_with(imported, ImportStatus::kUnsupported).empty());
}

TEST_F(HuggingFace, EveryFieldIsKnownAndNoneIsLost) {
  json args = all_arguments();
  args.update(neuron_arguments());
  const ImportedConfig imported = import(llama(), args);
  EXPECT_EQ(imported.from, "hf");
  EXPECT_EQ(imported.keys.size(), llama().size() + args.size());
  EXPECT_THAT(keys_with(imported, ImportStatus::kUnclassified), testing::IsEmpty());
  EXPECT_THAT(keys_with(imported, ImportStatus::kUnsupported), testing::IsEmpty());
  for (const ImportedKey& key : imported.keys) {
    EXPECT_EQ(key.settings.empty() || key.status == ImportStatus::kMapped, true) << key.source.key;
    EXPECT_EQ(key.note.empty() && key.status == ImportStatus::kIgnored, false) << key.source.key;
  }
}

TEST_F(HuggingFace, RandomKeysAreUnclassifiedWhereverTheyAre) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    json config = llama(), args = all_arguments();
    std::vector<std::string> added;
    for (int i = 0; i < 5; ++i) {
      const std::string name = fmt::format("zz{}_{}", random() % 100000, i);
      const json value = i % 2 == 0 ? json(random() % 10) : json{{"inner", {1, nullptr, "x"}}};
      (i < 2 ? config : args)[name] = value;
      added.push_back((i < 2 ? "config." : "training_args.") + name);
    }
    const ImportedConfig imported = import(config, args);
    EXPECT_EQ(imported.keys.size(), config.size() + args.size());
    EXPECT_THAT(keys_with(imported, ImportStatus::kUnclassified),
                testing::UnorderedElementsAreArray(added));
  }
}

TEST_F(HuggingFace, AMisspeltKeyGetsTheNearestNameAndItsLine) {
  directory_.write("model/config.json", llama().dump());
  const std::string args =
      directory_.write("args.json", "{\n  \"seed\": 1,\n  \"learning_rat\": 0.1\n}\n");
  const ImportedConfig imported = import_hugging_face((directory_.path() / "model").string(), args);
  const ImportedKey key = find(imported, "training_args.learning_rat");
  EXPECT_EQ(key.status, ImportStatus::kUnclassified);
  EXPECT_THAT(key.note, HasSubstr("`learning_rate`"));
  EXPECT_EQ(key.source.where, args + ":3");
  EXPECT_EQ(imported.keys.back().source.key, "training_args.learning_rat");  // order of the file
}

TEST_F(HuggingFace, TheModelIsOneSetting) {
  const ImportedConfig imported = import(llama());
  const auto values = result(imported);
  EXPECT_EQ(values.at("model.model_config"), (directory_.path() / "model/config.json").string());
  EXPECT_EQ(values.at("model_source"), "hf");
  EXPECT_EQ(values.at("name"), "hf_llama");
  EXPECT_EQ(values.at("model.encoder_seq_length"), "4096");
  EXPECT_EQ(status(imported, "config.hidden_size"), ImportStatus::kMapped);
  EXPECT_EQ(status(imported, "config.rope_scaling"), ImportStatus::kDefault);
  EXPECT_EQ(status(imported, "config.bos_token_id"), ImportStatus::kIgnored);
  EXPECT_EQ(status(imported, "config.architectures"), ImportStatus::kDefault);
  std::size_t settings = 0;
  for (const ImportedKey& key : imported.keys) settings += key.settings.size();
  EXPECT_EQ(settings, 1u);
}

TEST_F(HuggingFace, WhatTheReaderOfTheModelRefusesIsUnsupported) {
  const auto refused = [&](const std::string& key, const json& value) {
    json config = llama();
    config[key] = value;
    const ImportedKey found = find(import(config), "config." + key);
    EXPECT_EQ(found.status, ImportStatus::kUnsupported) << key << " " << value;
    EXPECT_NE(found.note, "");
  };
  refused("model_type", "gemma2");
  refused("hidden_act", "gelu");
  refused("attention_bias", true);
  refused("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}});
  refused("rope_scaling", {{"rope_type", "spiral"}, {"factor", 4.0}});
  refused("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}});
  refused("quantization_config", {{"quant_method", "gptq"}});
  refused("architectures", {"LlamaForSequenceClassification"});
  refused("num_key_value_heads", -1);
  refused("layer_types", {"full_attention", "sliding_attention"});
}

TEST_F(HuggingFace, NestedKeysOfRopeAreKnownToo) {
  json config = llama();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(status(import(config), "config.rope_scaling"), ImportStatus::kMapped);
  config["rope_scaling"]["swirl"] = 3;
  const ImportedKey key = find(import(config), "config.rope_scaling");
  EXPECT_EQ(key.status, ImportStatus::kUnclassified);
  EXPECT_THAT(key.note, HasSubstr("`swirl`"));
}

TEST_F(HuggingFace, LabelsOfImagesAreCounted) {
  json config = {{"model_type", "vit"},
                 {"hidden_size", 64},
                 {"intermediate_size", 256},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"image_size", 32},
                 {"patch_size", 8},
                 {"id2label", {{"0", "cat"}, {"1", "dog"}}},
                 {"label2id", {{"cat", 0}, {"dog", 1}}}};
  const auto values = result(import(config));
  EXPECT_EQ(values.at("model.num_labels"), "2");
  EXPECT_FALSE(values.contains("model.encoder_seq_length"));
}

TEST_F(HuggingFace, TheGlobalBatchIsComputed) {
  const json batch = {{"per_device_train_batch_size", 2}, {"gradient_accumulation_steps", 4}};
  const auto global = [&](json changes) {
    changes.update(batch);
    const ImportedConfig imported = with(changes);
    EXPECT_THAT(find(imported, "training_args.gradient_accumulation_steps").note, HasSubstr("DP"));
    return result(imported).at("data.global_batch_size");
  };
  EXPECT_EQ(global({{"world_size", 64}}), "512");
  EXPECT_EQ(global({{"world_size", 64}, {"tensor_parallel_size", 8}}), "64");
  EXPECT_EQ(global({}), "256");  // 32 assumed ranks
  EXPECT_EQ(global({{"tensor_parallel_size", 32}}), "8");
  const auto values = result(with({{"world_size", 64}, {"num_machines", 4}}));
  EXPECT_EQ(values.at("trainer.devices"), "16");
  EXPECT_EQ(values.at("trainer.num_nodes"), "4");
}

TEST_F(HuggingFace, APipelineCutsTheBatchOfADevice) {
  const auto values = result(with({{"world_size", 32},
                                   {"tensor_parallel_size", 8},
                                   {"pipeline_parallel_size", 2},
                                   {"per_device_train_batch_size", 4},
                                   {"gradient_accumulation_steps", 4},
                                   {"pipeline_parallel_num_microbatches", 8}}));
  EXPECT_EQ(values.at("data.micro_batch_size"), "2");
  EXPECT_EQ(values.at("data.global_batch_size"), "32");
}

TEST_F(HuggingFace, RanksThatDoNotDivideAreUnsupported) {
  const ImportedConfig imported = with({{"world_size", 30}, {"tensor_parallel_size", 8}});
  EXPECT_EQ(status(imported, "training_args.world_size"), ImportStatus::kUnsupported);
  EXPECT_EQ(status(imported, "training_args.gradient_accumulation_steps"),
            ImportStatus::kUnsupported);
}

TEST_F(HuggingFace, KeyAndValueHeadsAreCopiedForTensorParallelRanks) {
  const auto values = result(with({{"tensor_parallel_size", 32}}));
  EXPECT_EQ(values.at("distributed_strategy.kv_replicator"), "4");
  EXPECT_EQ(values.at("model.qkv_linear"), "true");
  EXPECT_EQ(values.at("distributed_strategy.sequence_parallel"), "true");
  const auto explicit_copies =
      result(with({{"tensor_parallel_size", 32}, {"kv_size_multiplier", 8}}));
  EXPECT_EQ(explicit_copies.at("distributed_strategy.kv_replicator"), "8");
}

TEST_F(HuggingFace, LengthOfTheRun) {
  const auto epochs = result(with({{"num_train_epochs", 2.0}}));
  EXPECT_EQ(epochs.at("trainer.max_steps"), "-1");
  EXPECT_EQ(epochs.at("trainer.max_epochs"), "2");
  const ImportedConfig steps = with({{"max_steps", 200}, {"num_train_epochs", 2.5}});
  EXPECT_EQ(result(steps).at("trainer.max_steps"), "200");
  EXPECT_EQ(result(steps).at("trainer.max_epochs"), "-1");
  EXPECT_EQ(status(steps, "training_args.num_train_epochs"), ImportStatus::kIgnored);
  EXPECT_EQ(status(with({{"num_train_epochs", 2.5}}), "training_args.num_train_epochs"),
            ImportStatus::kUnsupported);
}

TEST_F(HuggingFace, ScheduleAndWarmup) {
  const std::string sched = "model.optim.sched.";
  auto values = result(with({{"max_steps", 1000}, {"warmup_steps", 0.0251}}));
  EXPECT_EQ(values.at(sched + "name"), "LinearAnnealingWithWarmUp");
  EXPECT_EQ(values.at(sched + "warmup_steps"), "26");
  values = result(with({{"max_steps", 1000},
                        {"learning_rate", 1e-3},
                        {"lr_scheduler_type", "cosine_with_min_lr"},
                        {"lr_scheduler_kwargs", {{"min_lr_rate", 0.5}}},
                        {"warmup_ratio", 0.1}}));
  EXPECT_EQ(values.at(sched + "name"), "CosineAnnealing");
  EXPECT_EQ(values.at(sched + "min_lr"), "0.0005");
  EXPECT_EQ(values.at(sched + "warmup_steps"), "100");
  values =
      result(with({{"max_steps", 1000},
                   {"lr_scheduler_type", "warmup_stable_decay"},
                   {"lr_scheduler_kwargs", {{"num_decay_steps", 200}, {"decay_type", "1-sqrt"}}},
                   {"warmup_steps", 100}}));
  EXPECT_EQ(values.at(sched + "name"), "WarmupHoldAnnealOneMinusSquareRoot");
  EXPECT_EQ(values.at(sched + "hold_steps"), "700");
  values = result(with({{"lr_scheduler_type", "constant"}, {"warmup_steps", 10}}));
  EXPECT_FALSE(values.contains(sched + "name"));
  EXPECT_FALSE(values.contains(sched + "warmup_steps"));
}

TEST_F(HuggingFace, RefusedArguments) {
  const auto refused = [&](const std::string& key, const json& value) {
    const ImportedKey found = find(with({{key, value}}), "training_args." + key);
    EXPECT_EQ(found.status, ImportStatus::kUnsupported) << key << " " << value;
    EXPECT_NE(found.note, "");
    EXPECT_TRUE(found.settings.empty());
  };
  refused("optim", "lion_32bit");
  refused("optim_args", "momentum=0.9");
  refused("lr_scheduler_type", "greedy");
  refused("lr_scheduler_type", "inverse_sqrt");  // without warm-up
  refused("lr_scheduler_kwargs", {{"swing", 3}});
  refused("fp16", true);
  for (const char* word : {"shard_grad_op", "hybrid_shard", "offload", "auto_wrap", "1"})
    refused("fsdp", {word});
  refused("deepspeed", {{"zero_optimization", {{"stage", 3}}}});
  refused("label_smoothing_factor", 0.1);
  refused("push_to_hub", true);
  refused("report_to", {"wandb"});
  refused("save_steps", 0.5);  // of an unknown number of steps
  refused("seed", 0);
  refused("data_seed", 43);
  refused("accelerator_config", {{"split_batches", true}});
}

TEST_F(HuggingFace, FullyShardedData) {
  const char* key = "distributed_strategy.fsdp";
  for (const json& value : {json("full_shard auto_wrap"), json({"full_shard"}), json(true)}) {
    const auto values = result(with({{"fsdp", value}}));
    EXPECT_EQ(values.at(key), "true") << value;
    EXPECT_EQ(values.at("distributed_strategy.zero1"), "true") << value;
  }
  for (const json& value : {json(""), json::array(), json(false)})
    EXPECT_FALSE(result(with({{"fsdp", value}})).contains(key)) << value;
  const auto status = [&](const json& strategy, const json& config) {
    return find(with({{"fsdp", strategy}, {"fsdp_config", config}}), "training_args.fsdp_config")
        .status;
  };
  EXPECT_EQ(status("full_shard", {{"transformer_layer_cls_to_wrap", {"Layer"}}}),
            ImportStatus::kIgnored);
  EXPECT_EQ(status("", {{"offload_params", true}}), ImportStatus::kIgnored);
  for (const char* refused :
       {"offload_params", "fsdp_offload_params", "activation_checkpointing", "xla", "xla_fsdp_v2"})
    EXPECT_EQ(status("full_shard", {{refused, true}}), ImportStatus::kUnsupported) << refused;
  EXPECT_EQ(status("full_shard", {{"reshard_after_forward", false}}), ImportStatus::kUnsupported);
}

TEST_F(HuggingFace, OptimizersHaveTheirOwnArguments) {
  auto values = result(with({{"optim", "adamw_torch"}, {"adam_beta2", 0.95}}));
  EXPECT_EQ(values.at("model.optim.name"), "adamw");
  EXPECT_EQ(values.at("model.optim.betas"), "[0.9, 0.95]");
  const ImportedConfig adafactor = with({{"optim", "adafactor"}});
  values = result(adafactor);
  EXPECT_EQ(values.at("model.optim.relative_step"), "false");
  EXPECT_FALSE(values.contains("model.optim.betas"));
  EXPECT_FALSE(values.contains("model.optim.eps"));
  EXPECT_EQ(status(adafactor, "training_args.adam_beta1"), ImportStatus::kIgnored);
}

TEST_F(HuggingFace, PrecisionFollowsTheTrainer) {
  EXPECT_EQ(result(with(json::object())).at("precision.type"), "fp32");
  EXPECT_EQ(result(with({{"bf16", true}})).at("precision.type"), "autocast");
  json neuron = neuron_arguments();
  neuron["bf16"] = true;
  EXPECT_EQ(result(with(neuron)).at("precision.type"), "mixed_precisionSR");
  neuron["stochastic_rounding_enabled"] = false;
  EXPECT_EQ(result(with(neuron)).at("precision.type"), "mixed_precision");
  neuron["optimizer_use_master_weights"] = false;
  const auto values = result(with(neuron));
  EXPECT_EQ(values.at("precision.type"), "manual");
  EXPECT_EQ(values.at("precision.master_weights"), "false");
  EXPECT_EQ(values.at("precision.fp32_grad_acc"), "true");
}

TEST_F(HuggingFace, CheckpointsAndValidation) {
  const std::string params = "exp_manager.checkpoint_callback_params.";
  auto values = result(with({{"save_total_limit", 2}, {"save_steps", 0.1}, {"max_steps", 500}}));
  EXPECT_EQ(values.at(params + "save_top_k"), "2");
  EXPECT_EQ(values.at(params + "monitor"), "step");
  EXPECT_EQ(values.at(params + "every_n_train_steps"), "50");
  EXPECT_EQ(values.at("trainer.limit_val_batches"), "0");
  values = result(with({{"save_strategy", "no"},
                        {"eval_strategy", "steps"},
                        {"eval_steps", 25},
                        {"gradient_checkpointing", true},
                        {"max_grad_norm", 0}}));
  EXPECT_EQ(values.at("exp_manager.create_checkpoint_callback"), "false");
  EXPECT_FALSE(values.contains(params + "every_n_train_steps"));
  EXPECT_EQ(values.at("trainer.val_check_interval"), "25");
  EXPECT_FALSE(values.contains("trainer.limit_val_batches"));
  EXPECT_EQ(values.at("model.activations_checkpoint_granularity"), "full");
  EXPECT_EQ(values.at("trainer.gradient_clip_val"), "null");
}

TEST_F(HuggingFace, ArgumentsNextToTheModelAreRead) {
  directory_.write("model/config.json", llama().dump());
  directory_.write("model/training_args.json", R"({"max_steps": 7, "hub_token": "hf_secret"})");
  const ImportedConfig imported =
      import_hugging_face((directory_.path() / "model/config.json").string(), "");
  EXPECT_EQ(result(imported).at("trainer.max_steps"), "7");
  EXPECT_EQ(result(imported).at("data.micro_batch_size"), "8");  // transformers' default
  EXPECT_THAT(find(imported, "training_args.hub_token").source.value,
              testing::Not(HasSubstr("secret")));
}

TEST_F(HuggingFace, BadFilesAreNamed) {
  const std::string good = directory_.write("good.json", llama().dump());
  std::filesystem::create_directories(directory_.path() / "empty");
  const std::string folder = (directory_.path() / "empty").string();
  EXPECT_THAT(error_of(folder), AllOf(HasSubstr(folder), HasSubstr("no config.json")));
  const std::string nest(100000, '[');
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "empty"},
      {"hidden_size: 3", "no JSON"},
      {R"({"hidden_size": NaN})", "no JSON"},
      {R"({"hidden_size": 1e999})", "no JSON"},
      {R"({"a": )" + nest, "nested"},
      {"[1, 2]", "not an object"},
      {R"({"seed": 1, "seed": 2})", "twice"},
      {"{\"a\": \"\xff\"}", "no JSON"}};
  for (const auto& [text, why] : bad) {
    const std::string file = directory_.write("bad.json", text);
    EXPECT_THAT(error_of(file), AllOf(HasSubstr(file), HasSubstr(why)));
    EXPECT_THAT(error_of(good, file), AllOf(HasSubstr(file), HasSubstr(why)));
  }
  EXPECT_THAT(error_of(good, directory_.path() / "none.json"), HasSubstr("none.json"));
  EXPECT_THAT(error_of(directory_.write("bad.json", "{}")), HasSubstr("config.hidden_size"));
}

TEST_F(HuggingFace, ValuesOfAWrongTypeAreReportedTogetherWithTheirLines) {
  const std::string good = directory_.write("good.json", llama().dump());
  const std::string args = directory_.write("args.json", R"({
    "learning_rate": "fast",
    "per_device_train_batch_size": 0,
    "bf16": "yes",
    "max_steps": 1.5})");
  EXPECT_THAT(error_of(good, args),
              AllOf(HasSubstr(args + ":2: training_args.learning_rate: expected a number"),
                    HasSubstr(args + ":3: training_args.per_device_train_batch_size"),
                    HasSubstr(args + ":4: training_args.bf16: expected true or false"),
                    HasSubstr(args + ":5: training_args.max_steps: expected an integer")));
}

/// Whatever the values are: an error with the file's name, or every key classified.
TEST_F(HuggingFace, RandomValuesNeverLoseAKey) {
  const std::vector<json> values = {nullptr,    true,
                                    false,      0,
                                    -1,         1,
                                    7,          0.5,
                                    1e300,      9.2e18,
                                    "",         "no",
                                    "steps",    "epoch",
                                    "x",        json::array(),
                                    {1, "a"},   json::object(),
                                    {{"a", 1}}, "\x1b[31m\n",
                                    2147483647};
  json config = llama(), args = all_arguments();
  args.update(neuron_arguments());
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    json changed_config = config, changed_args = args;
    json& changed = round % 3 == 0 ? changed_config : changed_args;
    for (int i = 0; i < 2; ++i)
      std::next(changed.begin(), static_cast<int>(random() % changed.size())).value() =
          values[random() % values.size()];
    try {
      const ImportedConfig imported = import(changed_config, changed_args);
      EXPECT_EQ(imported.keys.size(), config.size() + args.size());
      (void)settings_of(imported);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(directory_.path().string()));
    }
  }
}

}  // namespace
}  // namespace trellis::analysis
