#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/import/shell_words.h"
#include "analysis/import/sources.h"

/// Configurations as the documentation of NeMo 1.x, NeMo-Megatron for Neuron and Megatron-LM
/// describes them: sizes from the models' papers, keys from the lists of the documentation.
namespace trellis::analysis {
namespace {

using Values = std::map<std::string, std::string>;

struct Documented {
  const char* name;
  const char* base;      ///< "nemo", "nnm" or "megatron"
  const char* more;      ///< "key value" lines over the base's; Megatron-LM: arguments
  const char* expected;  ///< "key value" lines of settings
  const char* refused;   ///< a key that must be unsupported, or ""
};

constexpr const char* kNemo = R"(
name gpt
defaults [_self_]
hydra.run.dir .
trainer.devices 8
trainer.num_nodes 4
trainer.accelerator gpu
trainer.precision bf16
trainer.max_steps 1000
trainer.gradient_clip_val 1.0
exp_manager.explicit_log_dir results
exp_manager.checkpoint_callback_params.save_nemo_on_train_end false
model.mcore_gpt true
model.micro_batch_size 1
model.global_batch_size 256
model.tensor_model_parallel_size 4
model.virtual_pipeline_model_parallel_size null
model.megatron_amp_O2 "true"
model.attention_type "multihead"
model.activation "fast-swiglu"
model.normalization rmsnorm
model.restore_from_path null
model.cpu_offloading_num_layers ${sum:${.num_layers},-1}
model.kv_channels null
model.nsys_profile.ranks [0]
model.megatron_timer_kwargs.log_mode minmax
model.data.mmap_bin_files true
model.optim.name "distributed_fused_adam"
model.optim.sched.name CosineAnnealing
)";
constexpr const char* kNnm = R"(
trainer.devices 32
trainer.num_nodes 4
trainer.precision 32
model.megatron_amp_O2 false
model.wrap_with_zero true
model.zero_use_master_weight false
model.zero_use_fp32_grad_accum false
model.save_xser true
model.convert_to_hf false
model.output_dir null
model.save_logits_interval 0
model.data.chat false
model.nsys_profile.enabled false
async_checkpointing false
enable_recovery_time_instrumentation false
enable_checkpoint_removal_protection true
)";
constexpr const char* kMegatronBase =
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --micro-batch-size 1 "
    "--global-batch-size 64 --train-iters 100 --lr 1e-4 --bf16 --use-distributed-optimizer "
    "--tokenizer-type NullTokenizer --data-path data/text --seq-length 4096 "
    "--max-position-embeddings 4096 ";
constexpr const char* kLlamaOfHub =
    " --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 128256 ";

constexpr Documented kDocumented[] = {
    {"gpt_126m", "nemo", "model.num_layers 12\nmodel.hidden_size 768", "model.num_layers 12", ""},
    {"gpt_5b", "nemo", "model.num_layers 24\nmodel.hidden_size 4096", "model.activation swiglu",
     ""},
    {"gpt_20b", "nemo", "model.num_layers 44\nmodel.pipeline_model_parallel_size 2",
     "distributed_strategy.pipeline_model_parallel_size 2\nprecision.type mixed_precision", ""},
    {"gpt_175b", "nemo", "model.num_layers 96\nmodel.virtual_pipeline_model_parallel_size 12",
     "distributed_strategy.virtual_pipeline_model_parallel_size 12\ndistributed_strategy.zero1 "
     "true",
     ""},
    {"llama2_7b", "nemo", "model.num_layers 32\nmodel.bias false", "model.has_bias false", ""},
    {"llama2_70b", "nemo", "model.num_layers 80\nmodel.num_query_groups 8", "model.num_kv_heads 8",
     ""},
    {"mixtral_8x7b", "nemo",
     "model.num_layers 32\nmodel.num_moe_experts 8\nmodel.moe_router_topk 2",
     "model.moe.num_experts 8", ""},
    {"gemma2_9b", "nemo",
     "model.num_layers 42\nmodel.mcore_customization_config.final_logit_softcapping 30.0",
     "model.num_layers 42", "model.mcore_customization_config.final_logit_softcapping"},
    {"mamba", "nemo", "model.num_layers 48\nmodel.hybrid_override_pattern \"M-M*\"",
     "model.num_layers 48", "model.hybrid_override_pattern"},
    {"bert", "nemo", "model.num_layers 24\nmodel.mcore_bert true\nmodel.data.masked_lm_prob 0.15",
     "model.num_layers 24", "model.data.masked_lm_prob"},
    {"t5", "nemo", "model.num_layers 12\nmodel.encoder.num_layers 12", "model.num_layers 12",
     "model.encoder.num_layers"},
    {"nnm_gpt_6.7b", "nnm", "model.num_layers 32", "precision.type fp32", ""},
    {"nnm_llama_7b", "nnm", "model.zero_use_master_weight true",
     "precision.type manual\nprecision.master_weights true", ""},
    {"nnm_llama_70b", "nnm", "model.num_query_groups 8", "model.num_kv_heads 8", ""},
    {"nnm_mistral_7b", "nnm", "model.window_size 4096", "distributed_strategy.zero1 true",
     "model.window_size"},
    {"mlm_gpt3_175b", "megatron", "--num-layers 96 --hidden-size 12288 --num-attention-heads 96",
     "model.num_layers 96", ""},
    {"mlm_llama3_8b", "megatron", "--num-layers 32 --hidden-size 4096 LLAMA --fp8-format hybrid",
     "model.activation swiglu", "--fp8-format"},
    {"mlm_llama3_70b", "megatron", "--num-layers 80 --hidden-size 8192 LLAMA",
     "model.num_layers 80", ""},
    {"mlm_mixtral", "megatron", "--num-layers 32 LLAMA --num-experts 8 --moe-router-topk 2",
     "model.moe.num_experts 8", ""},
    {"mlm_t5", "megatron", "--num-layers 12 --encoder-num-layers 12", "trainer.max_steps 100",
     "--encoder-num-layers"},
};

/// "key value" lines; the last of a key counts.
Values lines(const std::string& text) {
  Values values;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (const auto space = line.find(' '); space != std::string::npos)
      values[line.substr(0, space)] = line.substr(space + 1);
  return values;
}

/// Dotted keys as a YAML text: sorted, so that the keys of a section are neighbours.
std::string yaml(const Values& values) {
  std::string text;
  std::vector<std::string> open;
  for (const auto& [key, value] : values) {
    std::vector<std::string> parts;
    std::istringstream in(key);
    for (std::string part; std::getline(in, part, '.');) parts.push_back(part);
    std::size_t same = 0;
    while (same + 1 < parts.size() && same < open.size() && open[same] == parts[same]) ++same;
    for (open.resize(same); open.size() + 1 < parts.size(); open.push_back(parts[open.size()]))
      text += std::string(2 * open.size(), ' ') + parts[open.size()] + ":\n";
    text += std::string(2 * open.size(), ' ') + parts.back() + ": " + value + "\n";
  }
  return text;
}

class DocumentedConfigs : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / fmt::format("documented-{}.yaml", getpid());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  ImportedConfig nemo(const Values& values) {
    std::ofstream(path_) << yaml(values);
    return import_nemo(path_.string(), {});
  }
  static Values keys(const Documented& config) {
    const bool nnm = config.base == std::string("nnm");
    Values values = lines(kNemo);
    if (nnm)
      for (const auto& [key, value] : lines(kNnm)) values[key] = value;
    values["model.num_layers"] = "2";
    for (const auto& [key, value] : lines(config.more)) values[key] = value;
    return values;
  }
  ImportedConfig import(const Documented& config) {
    if (config.base != std::string("megatron")) return nemo(keys(config));
    std::string text = kMegatronBase + std::string(config.more);
    if (const auto at = text.find("LLAMA"); at != std::string::npos)
      text.replace(at, 5, kLlamaOfHub);
    return import_megatron_text(text, "train.sh", reader_);
  }

  std::filesystem::path path_;
  ShellReader reader_;
};

TEST_F(DocumentedConfigs, EveryKeyIsClassified) {
  for (const Documented& config : kDocumented) {
    SCOPED_TRACE(config.name);
    const ImportedConfig imported = import(config);
    if (imported.from == "nemo") {
      EXPECT_EQ(imported.keys.size(), keys(config).size());
    }
    Values settings;
    for (const Setting& setting : settings_of(imported)) settings[setting.key] = setting.value;
    for (const auto& [key, value] : lines(config.expected)) EXPECT_EQ(settings[key], value) << key;
    bool refused = false;
    for (const ImportedKey& key : imported.keys) {
      EXPECT_NE(key.status, ImportStatus::kUnclassified) << key.source.key << ": " << key.note;
      EXPECT_TRUE(key.status == ImportStatus::kMapped || !key.note.empty()) << key.source.key;
      if (key.status != ImportStatus::kUnsupported) continue;
      EXPECT_EQ(key.source.key, config.refused) << key.note;
      refused = true;
    }
    EXPECT_EQ(refused, *config.refused != '\0');
  }
}

TEST_F(DocumentedConfigs, RandomKeysAreNeverDropped) {
  std::mt19937 random(3);
  for (const Documented& config : kDocumented) {
    if (config.base == std::string("megatron")) continue;  // MegatronImport.NoArgumentIsLost
    Values values = keys(config);
    std::string key = random() % 2 == 0 ? "model.zz" : "trainer.zz";
    for (int i = 0; i < 8; ++i) key += static_cast<char>('a' + random() % 26);
    values[key] = fmt::format("{}", random() % 100);
    const ImportedConfig imported = nemo(values);
    EXPECT_EQ(imported.keys.size(), values.size());
    for (const ImportedKey& each : imported.keys)
      EXPECT_EQ(each.status == ImportStatus::kUnclassified, each.source.key == key)
          << each.source.key;
  }
}

}  // namespace
}  // namespace trellis::analysis
