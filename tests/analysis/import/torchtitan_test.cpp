#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/import/source_text.h"
#include "analysis/import/sources.h"
#include "analysis/import/toml_keys.h"
#include "analysis/import/torchtitan_rules.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Pair;
using KeyValues = std::map<std::string, std::string>;

KeyValues settings(const std::string& text) {
  KeyValues result;
  for (const Setting& setting : settings_of(import_torchtitan_text(text, "t.toml")))
    result[setting.key] = setting.value;
  return result;
}

ImportedKey key(const std::string& text, const std::string& name) {
  for (const ImportedKey& each : import_torchtitan_text(text, "t.toml").keys)
    if (each.source.key == name) return each;
  ADD_FAILURE() << name;
  return {};
}

std::string problem(const std::string& text) {
  try {
    (void)import_torchtitan_text(text, "t.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// torchtitan's train_configs/llama3_8b.toml, with more parallelism.
constexpr const char* kLlama = R"(# torchtitan Config.toml
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[metrics]
log_freq = 10
enable_tensorboard = true

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
converters = []

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.1

[training]
local_batch_size = 4
seq_len = 8192
max_norm = 1.0  # grad norm clipping
steps = 1000
dataset = "c4"

[training.dataloader]
num_workers = 2

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
context_parallel_degree = 1

[checkpoint]
enable = true
folder = "ckpt"
interval = 500
last_save_model_only = false
export_dtype = "float32"
async_mode = "async"

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
)";

TEST(TorchtitanImport, Llama) {
  EXPECT_THAT(settings(kLlama),
              IsSupersetOf(
                  {Pair("model.num_layers", "32"), Pair("model.hidden_size", "4096"),
                   Pair("model.ffn_hidden_size", "14336"), Pair("model.num_kv_heads", "8"),
                   Pair("model.vocab_size", "128256"), Pair("model.encoder_seq_length", "8192"),
                   // 2 × 4 × 8 × 2 ranks on nodes of 32; 4 samples on each of 8 data-parallel ranks
                   Pair("trainer.devices", "32"), Pair("trainer.num_nodes", "4"),
                   Pair("data.micro_batch_size", "2"), Pair("data.global_batch_size", "32"),
                   Pair("distributed_strategy.tensor_model_parallel_size", "8"),
                   Pair("distributed_strategy.sequence_parallel", "true"),
                   Pair("distributed_strategy.virtual_pipeline_model_parallel_size", "2"),
                   Pair("model.optim.betas", "[0.9, 0.95]"),
                   Pair("model.optim.sched.name", "WarmupHoldAnnealLinear"),
                   Pair("model.optim.sched.hold_steps", "0"),
                   Pair("exp_manager.checkpoint_callback_params.dirpath", "./outputs/ckpt"),
                   Pair("exp_manager.checkpoint_callback_params.every_n_train_steps", "500"),
                   Pair("exp_manager.async_checkpointing", "true"),
                   Pair("exp_manager.resume_if_exists", "true"),
                   Pair("data.tokenizer.type", "./assets/hf/Llama-3.1-8B"),
                   Pair("precision.type", "mixed_precision"), Pair("data.num_workers", "2")}));
  EXPECT_EQ(key(kLlama, "parallelism.data_parallel_shard_degree").status,
            ImportStatus::kUnsupported);
  EXPECT_EQ(key(kLlama, "activation_checkpoint.mode").status, ImportStatus::kUnsupported);
  EXPECT_EQ(key(kLlama, "optimizer.lr").source.where, "t.toml:18");
  EXPECT_EQ(key(kLlama, "model.converters").status, ImportStatus::kDefault);
}

TEST(TorchtitanImport, ShardDegree) {
  const std::string sharded =
      "[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n"
      "[parallelism]\ndata_parallel_shard_degree = 8\n";
  EXPECT_THAT(settings(sharded), Contains(Pair("distributed_strategy.fsdp", "true")));
  EXPECT_THAT(settings(sharded + "data_parallel_replicate_degree = 2\n"),
              IsSupersetOf({Pair("distributed_strategy.fsdp", "true"),
                            Pair("distributed_strategy.data_parallel_replicate_size", "2")}));
  for (const char* more :
       {"fsdp_reshard_after_forward = \"never\"\n", "pipeline_parallel_degree = 2\n"})
    EXPECT_EQ(key(sharded + more, "parallelism.data_parallel_shard_degree").status,
              ImportStatus::kUnsupported)
        << more;
}

/// torchtitan/models/llama3: hidden size of SwiGLU = 2/3 · 4 · dim · multiplier, rounded up.
TEST(TorchtitanImport, SizesOfFlavorsAreTorchtitansFormula) {
  const std::map<std::string_view, std::pair<double, int>> kFormula = {
      {"debugmodel", {1, 256}}, {"8B", {1.3, 1024}}, {"70B", {1.3, 4096}}, {"405B", {1.2, 4096}}};
  for (const TorchtitanFlavor& flavor : torchtitan_flavors()) {
    const auto [multiplier, multiple] = kFormula.at(flavor.name);
    const int hidden = static_cast<int>(multiplier * (2 * 4 * flavor.hidden / 3));
    EXPECT_EQ(flavor.ffn, (hidden + multiple - 1) / multiple * multiple) << flavor.name;
  }
}

TEST(TorchtitanImport, SchedulesAreTorchtitans) {
  const auto made = [](const std::string& lines) {
    return settings(
        "[optimizer]\nlr = 1e-3\n[training]\nsteps = 100\n[lr_scheduler]\n"
        "warmup_steps = 10\n" +
        lines);
  };
  const auto name = [&](const std::string& lines) {
    return made(lines).at("model.optim.sched.name");
  };
  EXPECT_EQ(name(""), "LinearAnnealingWithWarmUp");
  EXPECT_EQ(name("min_lr_factor = 0.1"), "WarmupAnnealing");
  EXPECT_EQ(made("min_lr_factor = 0.5").at("model.optim.sched.min_lr"), "0.0005");
  EXPECT_EQ(name("decay_type = \"cosine\""), "CosineAnnealing");
  EXPECT_EQ(name("decay_type = \"sqrt\""), "WarmupHoldAnnealOneMinusSquareRoot");
  EXPECT_EQ(made("decay_ratio = 0.2").at("model.optim.sched.hold_steps"), "70");
  EXPECT_EQ(
      key("[lr_scheduler]\ndecay_type = \"cosine\"\ndecay_ratio = 0.2", "lr_scheduler.decay_type")
          .status,
      ImportStatus::kUnsupported);
}

/// Every key of torchtitan is classified, alone, whatever its value.
TEST(TorchtitanImport, EveryKnownKeyIsClassified) {
  std::set<std::string> names;
  for (const TorchtitanRow& row : torchtitan_rows()) {
    std::istringstream words{std::string(row.keys)};
    for (std::string name; words >> name;) {
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_EQ(torchtitan_rule(name) != nullptr, row.does == TorchtitanRow::Does::kRule) << name;
    }
  }
  EXPECT_EQ(names.size(), 149U);  // of JobConfig
  for (const std::string& name : names) {
    for (const char* value : {"1", "2", "\"odd\"", "true", "[]", "-0.5"}) {
      const ImportedConfig imported =
          import_torchtitan_text(fmt::format("{} = {}", name, value), "t.toml");
      ASSERT_EQ(imported.keys.size(), 1U);
      EXPECT_NE(imported.keys[0].status, ImportStatus::kUnclassified) << name;
      EXPECT_EQ(imported.keys[0].note.find("no rule"), std::string::npos) << name;
    }
  }
}

/// As train_configs/llama3_8b.toml was in 2024.
constexpr const char* kFileOf2024 = R"([job]
use_for_integration_test = true
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[optimizer]
name = "AdamW"
lr = 3e-4
fused = true
[training]
batch_size = 2
seq_len = 4096
warmup_steps = 20
steps = 100
data_parallel_shard_degree = 2
tensor_parallel_degree = 4
compile = true
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1f1b"
[checkpoint]
enable_checkpoint = true
interval_type = "steps"
interval = 50
model_weights_only = false
[float8]
enable_float8_linear = false
)";
/// The same, as its keys are called since.
constexpr const char* kSameSince = R"([model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 4096
steps = 100
[lr_scheduler]
warmup_steps = 20
[parallelism]
data_parallel_shard_degree = 2
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
[compile]
enable = true
[checkpoint]
enable = true
interval = 50
)";

TEST(TorchtitanImport, FilesOf2024) {
  const std::string old = kFileOf2024, now = kSameSince;
  EXPECT_EQ(settings(old), settings(now));
  const ImportedConfig imported = import_torchtitan_text(old, "t.toml");
  EXPECT_EQ(count(imported, ImportStatus::kUnclassified), 0U);
  EXPECT_THAT(key(old, "training.batch_size").note,
              HasSubstr("since called training.local_batch_size"));
  for (const TorchtitanRow& row : torchtitan_old_rows()) {
    std::istringstream words{std::string(row.keys)};
    for (std::string name; words >> name;)
      EXPECT_NE(key(name + " = 1", name).status, ImportStatus::kUnclassified) << name;
  }
}

TEST(TorchtitanImport, RandomKeysAreNeverDropped) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::string name;
    for (int i = 0; i < 9; ++i) name += static_cast<char>('a' + random() % 26);
    std::string text = kLlama;
    const char* sections[] = {"[job]\n", "[training]\n", "[quantize.linear.float8]\n", "[model]\n"};
    const std::string header = sections[random() % 4];
    text.insert(text.find(header) + header.size(), name + " = 3\n");
    const ImportedConfig imported = import_torchtitan_text(text, "t.toml");
    EXPECT_EQ(count(imported, ImportStatus::kUnclassified), 1U);
    EXPECT_EQ(imported.keys.size(), import_torchtitan_text(kLlama, "t.toml").keys.size() + 1);
  }
  EXPECT_THAT(key("[training]\nstep = 3", "training.step").note, HasSubstr("training.steps?"));
}

TEST(TorchtitanImport, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(problem("[training]\nsteps = = 3\n"), HasSubstr("t.toml:2: expected TOML"));
  EXPECT_THAT(problem("[training]\nsteps = 1\nsteps = 2\n"), HasSubstr("t.toml:3: expected TOML"));
  EXPECT_THAT(problem("[=\n"), HasSubstr("t.toml:1: expected TOML"));
  std::string parts = "a";
  for (int i = 0; i < 50'000; ++i) parts += ".a";
  for (const std::string& text : {parts + " = 1", "[" + parts + "]", "[[" + parts + "]]",
                                  "x = {" + parts + " = 1}", "x = 1\n'a' . \"b\" ." + parts})
    EXPECT_THAT(problem("[training]\n" + text), HasSubstr("a key of more than 200 parts"));
  const std::string dots(300, '.');
  EXPECT_EQ(problem("[job]\n# " + dots + "\ndescription = \"" + dots + "\\\"" + dots + "\"\n"), "");
  EXPECT_EQ(problem("[job]\ndescription = \"\"\"" + dots + "\n\"" + dots + "\"\"\"\n"), "");
  EXPECT_THAT(problem("[a]\n\"b c\" = 1\n"), HasSubstr("t.toml:2: a.b c"));
  EXPECT_THAT(problem("[a]\n\"b\\u0007\" = 1\n"), HasSubstr("t.toml:2"));
}

TEST(TomlKeys, ValuesAreYamlInTheOrderOfTheLines) {
  const std::vector<SourceKey> keys = toml_keys(
      "z = 1\n[b]\nx = [1, 'two words', {c = true}]\n[a]\ny = 1979-05-27\nt = 1e3\n"
      "[empty]\n",
      "f");
  std::string text;
  for (const SourceKey& key : keys) text += key.key + ": " + key.value + " " + key.where + "\n";
  EXPECT_EQ(text,
            "z: 1 f:1\nb.x: [1, \"two words\", {c: true}] f:3\na.y: \"1979-05-27\" f:5\n"
            "a.t: 1000 f:6\nempty: {} f:7\n");
}

/// torchtitan 0.3.0 wrote this of its function llama3_debugmodel; how weights begin is left out.
std::string written_by_0_3() {
  return read_source_text(std::string(TRELLIS_SOURCE_DIR) +
                          "/tests/analysis/import/torchtitan_0_3.json");
}

std::string with(std::string text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before;
  return at == std::string::npos ? text : text.replace(at, before.size(), after);
}

/// The same run, as 0.2.2's TOML has it.
TEST(TorchtitanImport, JsonOf0_3TrainsTheRunOfTheToml) {
  const KeyValues expected = settings(R"([model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[metrics]
log_freq = 1
[optimizer]
name = "AdamW"
lr = 8e-4
[lr_scheduler]
warmup_steps = 2
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.0
[training]
local_batch_size = 8
seq_len = 2048
steps = 10
)");
  KeyValues got = settings(written_by_0_3());
  const auto same = [](const std::string& one, const std::string& other) {
    const double number = std::strtod(one.c_str(), nullptr);
    return one == other || one == "\"" + other + "\"" ||
           (number != 0 && number == std::strtod(other.c_str(), nullptr));
  };
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(got.contains(key)) << key;
    EXPECT_TRUE(same(got[key], value)) << key << ": " << got[key] << ", expected " << value;
  }
}

TEST(TorchtitanImport, JsonOf0_3IsClassifiedWithItsLines) {
  const std::string text = written_by_0_3();
  for (const ImportedKey& each : import_torchtitan_text(text, "t.json").keys) {
    EXPECT_NE(each.status, ImportStatus::kUnclassified) << each.source.key << each.note;
    EXPECT_EQ(each.note.find("no rule"), std::string::npos) << each.source.key;
    const std::size_t colon = each.source.where.find(':');
    ASSERT_NE(colon, std::string::npos) << each.source.key;
  }
  const ImportedKey steps = key(text, "training.steps");
  const auto before = static_cast<std::size_t>(std::stoi(steps.source.where.substr(7)) - 1);
  std::istringstream lines(text);
  std::string line;
  for (std::size_t i = 0; i <= before; ++i) std::getline(lines, line);
  EXPECT_THAT(line, HasSubstr("\"steps\": 10"));
  EXPECT_EQ(key(text, "activation_checkpoint").status, ImportStatus::kUnsupported);  // selective
  EXPECT_EQ(key(text, "model_spec.model.layers.0.attention.inner_attention").status,
            ImportStatus::kUnsupported);
}

std::string everywhere(std::string text, const std::string& before, const std::string& after) {
  EXPECT_THAT(text, HasSubstr(before));
  for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size())
    text.replace(at, before.size(), after);
  return text;
}

/// The attention and the experts of torchtitan 0.3's qwen3, sizes of llama3's debug model.
std::string with_experts(const std::string& more = "") {
  std::string text = everywhere(written_by_0_3(), "\"qk_norm\": null",
                                "\"qk_norm\": {\"normalized_shape\": 16, \"eps\": 1e-05, "
                                "\"elementwise_affine\": true}");
  text = std::regex_replace(text, std::regex("\"feed_forward\": .*\"moe\": null"),
                            "\"feed_forward\": null, \"moe\": null");
  return everywhere(text, "\"moe\": null",
                    R"("moe": {"num_experts": 64, "routed_experts": {"inner_experts": {"dim": 256,
              "hidden_dim": 96, "num_experts": 64)" +
                        more +
                        R"(}, "token_dispatcher": {"num_experts": 64, "top_k": 8}}, "router":
              {"num_experts": 64, "gate": {"in_features": 256, "out_features": 64, "bias": false},
              "num_expert_groups": null, "num_limited_groups": null, "top_k": 8,
              "score_func": "softmax", "route_norm": true, "route_scale": 1.0},
              "load_balance_coeff": 0.001, "shared_experts": null})");
}

TEST(TorchtitanImport, JsonOf0_3HasExpertsAndNormsOfHeads) {
  const std::string text =
      with(with_experts(), "\"expert_parallel_degree\": 1", "\"expert_parallel_degree\": 4");
  EXPECT_THAT(settings(text),
              IsSupersetOf({Pair("model.qk_layernorm", "true"), Pair("model.moe.num_experts", "64"),
                            Pair("model.moe.top_k", "8"), Pair("model.moe.dropless", "true"),
                            Pair("model.moe.normalize_top_k_affinities", "true"),
                            Pair("model.ffn_hidden_size", "96"),
                            Pair("distributed_strategy.expert_model_parallel_size", "4")}));
  for (const ImportedKey& each : import_torchtitan_text(text, "t.json").keys)
    EXPECT_NE(each.source.key, "model_spec.model.layers.1");
  const std::string where = "model_spec.model.layers.0.moe";
  EXPECT_THAT(key(text, where).note, HasSubstr("load_balance_coeff"));
  const std::pair<const char*, const char*> kOthers[] = {
      {"\"softmax\"", "\"sigmoid\""},
      {"\"num_expert_groups\": null", "\"num_expert_groups\": 4"},
      {"\"shared_experts\": null", "\"shared_experts\": {}"},
      {"\"out_features\": 64, \"bias\": false", "\"out_features\": 64, \"bias\": true"}};
  for (const auto& [one, other] : kOthers)
    EXPECT_EQ(key(everywhere(text, one, other), where).status, ImportStatus::kUnsupported) << other;
  for (const char* other : {"null", "7", "\"x\"", "[]", "{\"inner_experts\": 3}"})
    EXPECT_EQ(key(everywhere(text, "\"routed_experts\"",
                             fmt::format("\"routed_experts\": {}, \"others\"", other)),
                  where)
                  .status,
              ImportStatus::kUnsupported)
        << other;
  EXPECT_EQ(key(with_experts(", \"swiglu_limit\": 7.0"), where).status, ImportStatus::kUnsupported);
  EXPECT_EQ(key(everywhere(text, "\"normalized_shape\": 16,", "\"normalized_shape\": 256,"),
                "model_spec.model.layers.0.attention.qk_norm")
                .status,
            ImportStatus::kUnsupported);
}

TEST(TorchtitanImport, JsonOf0_3NamesWhatIsNotBuiltHere) {
  const std::string text = written_by_0_3();
  const std::string recompute = "\"force_recompute_mm_shapes_by_fqns\"";
  EXPECT_EQ(key(with(text, recompute, "\"memory_budget\""), "activation_checkpoint").source.value,
            "memory_budget");
  EXPECT_EQ(key(with(text, "\"moe\": null", "\"moe\": {\"k\": 1}"), "model_spec.model.layers.0.moe")
                .status,
            ImportStatus::kUnsupported);
  EXPECT_EQ(
      key(with(text, "\"qk_norm\": null", "\"qk_norm\": {}"), "model_spec.model.layers.1").status,
      ImportStatus::kUnsupported);
  EXPECT_EQ(key(with(text, "\".*\"", "\".*bias$\""), "optimizer.param_groups").status,
            ImportStatus::kUnsupported);
  EXPECT_EQ(
      key(with(text, "\"fused\"", "\"fused_opt_states_bf16\""), "optimizer.implementation").status,
      ImportStatus::kUnsupported);
  EXPECT_EQ(key(with(text, "\"gc_debug\"", "\"gc_debig\""), "training.gc_debig").status,
            ImportStatus::kUnclassified);
  const std::string tp =
      with(text, "\"tensor_parallel_degree\": 1", "\"tensor_parallel_degree\": 4");
  EXPECT_EQ(settings(tp)["distributed_strategy.sequence_parallel"], "true");
  EXPECT_EQ(settings(with(
                tp, "\"enable_sequence_parallel\": true",
                "\"enable_sequence_parallel\": false"))["distributed_strategy.sequence_parallel"],
            "false");
}

TEST(TorchtitanImport, ProgramsAreNamedWithWhatToDo) {
  for (const char* text : {"torchrun -m torchtitan.train --module llama3 --config llama3_8b\n",
                           "from torchtitan.trainer import Trainer\nc = Trainer.Config(\n"})
    EXPECT_THAT(problem(text), HasSubstr("ConfigManager().parse_args().to_dict()")) << text;
}

}  // namespace
}  // namespace trellis::analysis
