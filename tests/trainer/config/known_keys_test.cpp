#include "trainer/config/reader/known_keys.h"

#include <set>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string dotted(const KeyGroup& group, const std::string& key) {
  return group.section.empty() ? key : std::string(group.section) + "." + key;
}

std::set<std::string> sections() {
  std::set<std::string> names;
  for (const KeyGroup& group : key_groups()) names.emplace(group.section);
  return names;
}

/// Visits every key of the table with its group.
template <typename Visitor>
void for_each_key(KeyUse use, Visitor visit) {
  for (const std::string& section : sections()) {
    for (const KnownKey& known : known_keys_of(section)) {
      if (known.group->use == use) visit(*known.group, known.key);
    }
  }
}

TEST(KnownKeys, NameEachKeyOncePerSection) {
  for (const std::string& section : sections()) {
    std::set<std::string> seen;
    for (const KnownKey& known : known_keys_of(section))
      EXPECT_TRUE(seen.insert(known.key).second) << section << "." << known.key;
  }
}

TEST(KnownKeys, SectionsAndTheirKeysBelongTogether) {
  std::set<std::string> opened = {""};
  for_each_key(KeyUse::kSection, [&](const KeyGroup& group, const std::string& key) {
    opened.insert(dotted(group, key));
  });
  EXPECT_EQ(opened, sections());
}

/// The settings that a section needs before its other keys may be written.
std::vector<std::string> context_of(const KeyGroup& group) {
  if (group.section == "model.moe") return {"model.moe.num_experts=8"};
  if (!group.section.starts_with("model_alignment_strategy.")) return {};
  if (!group.section.ends_with(".peft")) return {"model_source=hf"};
  return {"model_source=hf", "model_alignment_strategy={sft: {}, peft: {lora_rank: 8}}"};
}

RunCheck check_with(const KeyGroup& group, const std::string& key, const std::string& value) {
  const TemporaryDirectory directory;
  std::vector<std::string> overrides = context_of(group);
  overrides.push_back(dotted(group, key) + "=" + value);
  return check_run_config(directory.write("run.yaml", kBaseConfig), overrides);
}

std::vector<std::string> neutral_values(const KeyGroup& group) {
  std::vector<std::string> values;
  std::istringstream stream{std::string(group.neutral)};
  for (std::string value; std::getline(stream, value, '|');) values.push_back(value);
  return values;
}

TEST(KnownKeys, IgnoredKeysTakeAnyValue) {
  for_each_key(KeyUse::kIgnored, [](const KeyGroup& group, const std::string& key) {
    for (const char* value : {"anything", "null", "[1, 2]", "{a: 1}"})
      EXPECT_THAT(check_with(group, key, value).problems, IsEmpty()) << key;
  });
}

TEST(KnownKeys, IgnoredKeysAreListedWithTheReason) {
  for_each_key(KeyUse::kIgnored, [](const KeyGroup& group, const std::string& key) {
    ASSERT_FALSE(group.why.empty()) << key;
    EXPECT_THAT(
        check_with(group, key, "1").without_effect,
        testing::Contains(testing::AllOf(
            testing::Field(&KeyWithoutEffect::key, dotted(group, key)),
            testing::Field(&KeyWithoutEffect::why, std::string(group.why)),
            testing::Field(&KeyWithoutEffect::where, "command line:" + dotted(group, key)))));
  });
  for_each_key(KeyUse::kNeutral, [](const KeyGroup& group, const std::string& key) {
    EXPECT_THAT(check_with(group, key, neutral_values(group).front()).without_effect, IsEmpty())
        << key << ": only ignored keys are listed";
  });
}

TEST(KnownKeys, NeutralValuesAreAcceptedAndOthersNamedWithTheReason) {
  for_each_key(KeyUse::kNeutral, [](const KeyGroup& group, const std::string& key) {
    const std::vector<std::string> neutral = neutral_values(group);
    for (const std::string& value : neutral)
      EXPECT_THAT(check_with(group, key, value).problems, IsEmpty()) << key << "=" << value;
    ASSERT_FALSE(group.why.empty()) << key;
    EXPECT_THAT(check_with(group, key, "something_else").problems,
                ElementsAre("command line:" + dotted(group, key) +
                            ": not supported (got something_else): " + std::string(group.why) +
                            "; remove it or set it to " + neutral.front()));
  });
}

TEST(KnownKeys, LaterKeysJoinTheListOfWhatIsNotSupported) {
  for_each_key(KeyUse::kLater, [](const KeyGroup& group, const std::string& key) {
    const std::vector<std::string> neutral = neutral_values(group);
    for (const std::string& value : neutral)
      EXPECT_THAT(check_with(group, key, value).config.unsupported, IsEmpty())
          << key << "=" << value;
    const RunCheck check = check_with(group, key, "something_else");
    EXPECT_THAT(check.problems, IsEmpty());
    const std::string text = std::string(group.why) + "; " + dotted(group, key) + "=" +
                             neutral.front() + " does without";
    EXPECT_THAT(check.config.unsupported,
                ElementsAre(UnsupportedFeature{dotted(group, key), text, false}));
  });
}

/// The rows of NeMo's configuration that NxDT moved, renamed or dropped: each is answered by a text
/// that says where to go.
TEST(KnownKeys, NemosKeysAreExplained) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"restore_from_path=x", "exp_manager.resume_from_checkpoint"},
      {"trainer.accelerator=gpu", "--device"},
      {"trainer.precision=16", "section `precision`"},
      {"trainer.logger=true", "create_tensorboard_logger"},
      {"trainer.enable_checkpointing=true", "create_checkpoint_callback"},
      {"trainer.use_distributed_sampler=true", "data module"},
      {"trainer.accumulate_grad_batches=4", "derived"},
      {"trainer.benchmark=true", "GPU"},
      {"trainer.enable_model_summary=true", "trellis validate"},
      {"exp_manager.create_wandb_logger=true", "Weights & Biases"},
      {"exp_manager.wandb_logger_kwargs={project: x}", "does not exist"},
      {"model.mcore_gpt=true", "one implementation"},
      {"model.tensor_model_parallel_size=2", "section `distributed_strategy`"},
      {"model.pipeline_model_parallel_size=2", "section `distributed_strategy`"},
      {"model.virtual_pipeline_model_parallel_size=2", "section `distributed_strategy`"},
      {"model.sequence_parallel=true", "section `distributed_strategy`"},
      {"model.micro_batch_size=1", "section `data`"},
      {"model.global_batch_size=1", "section `data`"},
      {"model.tokenizer={library: x}", "section `data`"},
      {"model.data={x: 1}", "the top level"},
      {"model.pre_process=false", "first stage always embeds"},
      {"model.num_query_groups=8", "num_kv_heads"},
      {"model.native_amp_init_scale=5", "loss scaling"},
      {"model.megatron_amp_O2=true", "section `precision`"},
      {"model.seed=5", "the top level"},
      {"model.resume_from_checkpoint=x", "section `exp_manager`"},
      {"model.transformer_engine=true", "one implementation"},
      {"model.nsys_profile={enabled: true}", "trellis simulate"},
      {"model.flexible_pipeline_parallel_stages=[1]", "pipeline_cuts"},
      {"distributed_strategy.wrap_with_zero=true", "zero1"},
      {"model.zero_use_master_weight=true", "section `precision`"},
  };
  for (const auto& [change, expected] : rows)
    EXPECT_THAT(problems_of(kBaseConfig, {change}), HasSubstr(expected)) << change;
}

TEST(IsNeutral, ComparesValuesNotSpellings) {
  EXPECT_TRUE(is_neutral("0.0", "0"));
  EXPECT_TRUE(is_neutral("1.", "1|null"));
  EXPECT_TRUE(is_neutral("False", "false"));
  EXPECT_TRUE(is_neutral("~", "1|null"));
  EXPECT_TRUE(is_neutral("Null", "null"));
  EXPECT_FALSE(is_neutral("0.1", "0"));
  EXPECT_FALSE(is_neutral("10", "1"));
  EXPECT_FALSE(is_neutral("", "null"));
}

}  // namespace
}  // namespace trellis::trainer
