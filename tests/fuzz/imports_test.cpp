#include <stdexcept>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "analysis/import/import_report.h"
#include "analysis/import/shell_words.h"
#include "analysis/import/source_text.h"
#include "analysis/import/sources.h"
#include "base/yaml/yaml.h"
#include "tests/fuzz/changed_files.h"
#include "tests/fuzz/json_mutator.h"

/// Whatever a configuration of another program holds, its import gives a YAML file that parses and
/// texts without control characters, or a ConfigError.
namespace trellis::fuzz {
namespace {

constexpr const char* kToml = R"(# torchtitan
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
converters = []
[lr_scheduler]
warmup_steps = 200
decay_ratio = 0.8
decay_type = 'sqrt'
min_lr_factor = 0.1
[training]
local_batch_size = 4
steps = 1_000
dataloader = {num_workers = 2}
[parallelism]
data_parallel_replicate_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 8
[checkpoint]
enable = true
folder = "ckpt"
)";

void check_import(const analysis::ImportedConfig& imported) {
  const std::string yaml = analysis::import_yaml(imported, "source");
  try {
    (void)YamlDocument::parse(yaml, "result").root();
  } catch (const ConfigError& error) {
    throw std::runtime_error("the result is no YAML: " + std::string(error.what()));
  }
  for (const std::string& text : {analysis::import_text(imported, true), yaml}) {
    if (const std::string why = unfit(text); !why.empty()) throw std::runtime_error(why);
  }
  (void)analysis::import_json(imported, "source", {}).dump();
}

constexpr const char* kNemo = R"(
name: gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16-mixed, max_steps: 10, logger: false}
exp_manager: {exp_dir: null, create_checkpoint_callback: true, resume_if_exists: true}
model:
  micro_batch_size: 1
  global_batch_size: 16
  tensor_model_parallel_size: 4
  megatron_amp_O2: true
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  activation: fast-swiglu
  tokenizer: {library: megatron, type: GPT2BPETokenizer, vocab_file: null}
  data: {data_prefix: [1.0, "a b"], splits_string: "900,50,50", seq_length: 128}
  optim:
    {name: distributed_fused_adam, lr: 2e-4, betas: [0.9, 0.98], sched: {name: CosineAnnealing}}
)";

constexpr const char* kScript = R"(#!/bin/bash
# A comment.
export CUDA_DEVICE_MAX_CONNECTIONS=1
HIDDEN=1024; FFN=$((HIDDEN * 4))
MODEL=(
  --num-layers 8 --hidden-size ${HIDDEN} --ffn-hidden-size "$FFN" --num-attention-heads 16
  --seq-length ${SEQ:-2048} --swiglu --normalization RMSNorm  # norms
)
if [ "$1" = moe ]; then MODEL+=(--num-experts 8 --moe-router-topk 2); fi
torchrun --nproc_per_node=8 --nnodes 2 pretrain_gpt.py ${MODEL[@]} "${DATA[@]}" \
  --data-path '1.0 data' --lr 3e-4 --lr-decay-style cosine --bf16 --train-samples 1000 \
  --micro-batch-size 1 --global-batch-size 16 2>&1 | tee log.txt
cat <<END
--not-an-argument
END
)";

TEST(Imports, Nemo) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.write("nemo.yaml", kNemo);
  fuzz_files({file}, [&] { check_import(analysis::import_nemo(file.string(), {})); });
}

TEST(Imports, Nxdt) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.write("nxdt.yaml", kNemo);
  fuzz_files({file}, [&] { check_import(analysis::import_nxdt(file.string(), {})); });
}

TEST(Imports, Megatron) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.write("train.sh", kScript);
  analysis::ShellReader reader;
  fuzz_files({file}, [&] {
    check_import(analysis::import_megatron_text(analysis::read_source_text(file.string()),
                                                file.string(), reader));
    (void)analysis::detect_source(file.string());
  });
}

TEST(Imports, Torchtitan) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.write("train.toml", kToml);
  fuzz_files({file}, [&] {
    check_import(analysis::import_torchtitan(file.string()));
    (void)analysis::detect_source(file.string());
  });
}

TEST(Imports, HuggingFace) {
  const nlohmann::json config = {{"model_type", "llama"},
                                 {"architectures", {"LlamaForCausalLM"}},
                                 {"hidden_size", 64},
                                 {"intermediate_size", 128},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2},
                                 {"vocab_size", 320},
                                 {"max_position_embeddings", 128},
                                 {"rms_norm_eps", 1e-5},
                                 {"rope_scaling", nullptr},
                                 {"torch_dtype", "bfloat16"}};
  const nlohmann::json arguments = {{"per_device_train_batch_size", 2},
                                    {"gradient_accumulation_steps", 4},
                                    {"learning_rate", 1e-4},
                                    {"lr_scheduler_type", "cosine"},
                                    {"max_steps", 100},
                                    {"warmup_ratio", 0.1},
                                    {"bf16", true},
                                    {"save_strategy", "steps"},
                                    {"save_steps", 50},
                                    {"optim", "adamw_torch"}};
  const TemporaryDirectory directory;
  const std::filesystem::path model = directory.write("model/config.json", config.dump(1));
  const std::filesystem::path args = directory.write("arguments.json", arguments.dump(1));
  fuzz_files(
      {model, args},
      [&] { check_import(analysis::import_hugging_face(model.string(), args.string())); },
      &mutate_json);
}

}  // namespace
}  // namespace trellis::fuzz
