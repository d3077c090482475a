#include "trainer/files/checkpoint/conversion/model_check.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/address.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_changes.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_model.h"
#include "trainer/files/checkpoint/formats/hugging_face/hugging_face_source.h"
#include "trainer/files/checkpoint/formats/megatron/arguments.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/saved_model.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

using trainer::ModelDifference;
using trainer::RunConfig;

/// Rows that pad a vocabulary are fewer than this.
int padding_unit(const RunConfig& config) {
  return config.model.make_vocab_size_divisible_by * config.tp();
}

/// Rows that are no padding are not left out; new ones are said.
void add_vocabulary(const SavedModel& saved, int saved_unit, const RunConfig& config,
                    std::vector<ModelDifference>& differences) {
  const int rows = saved.model.vocab_size, wanted = config.model.vocab_size;
  if (rows == 0 || wanted == 0) return;
  if (rows - wanted >= saved_unit) {
    differences.push_back(
        {trainer::kVocabularyKey, fmt::format("{}", rows), fmt::format("{}", wanted)});
  } else if (wanted - rows >= padding_unit(config)) {
    log_warning(fmt::format(
        "{}: its vocabulary has {} rows, model.vocab_size is {}: the rows after them are zeros",
        saved.where, rows, wanted));
  }
}

std::string name_there(const SavedModel& saved, const std::string& key) {
  const auto found = saved.names.find(key);
  return found == saved.names.end() || found->second.empty() ? key : found->second;
}

std::string difference_text(const SavedModel& saved, const RunConfig& config,
                            const ModelDifference& difference) {
  const std::string key = trainer::key_of(config, difference.key);
  const bool is_foreign = key.starts_with(trainer::kArgumentsPrefix);
  return fmt::format("{}: {}: expected {}{}, got {}", saved.where,
                     name_there(saved, difference.key), difference.wanted,
                     is_foreign ? "" : " by " + config.places.of(key),
                     terminal_line(difference.saved));
}

/// Throws for what is not accepted, and names what is.
void judge(const SavedModel& saved, int saved_unit, const RunConfig& config) {
  std::vector<ModelDifference> differences = trainer::model_differences(saved.model, config.model);
  differences.insert(differences.end(), saved.others.begin(), saved.others.end());
  add_vocabulary(saved, saved_unit, config, differences);
  std::string refused, options;
  for (const ModelDifference& difference : differences) {
    const std::string text = difference_text(saved, config, difference);
    if (trainer::is_accepted(config.exp_manager.checkpoints.accept_differences, difference.key)) {
      log_warning(text + ": accepted, the configuration's value counts");
      continue;
    }
    refused += text + "\n";
    options += " --accept-difference " + trainer::key_of(config, difference.key);
  }
  if (refused.empty()) return;
  throw ConfigError(refused +
                    "The weights are those of another model. Correct the configuration, or take "
                    "them into this one:" +
                    options);
}

void say_not_compared(const std::string& where, const std::string& why) {
  log_info(where + ": " + why +
           ": whether its model computes what that of the configuration does is not known; names "
           "and shapes of its weights are compared");
}

void check_arguments(const megatron::MegatronSource& source, const RunConfig& config) {
  const std::string where = source.address() + "/" + megatron::kCommonFile;
  const Value* args = source.common().find(Value("args"));
  if (args == nullptr) return say_not_compared(where, "has no args");
  const SavedModel saved = megatron::model_of_arguments(*args, config.model, where);
  const auto count = [&](const char* name) {
    const Value* value = args->find(Value(name));
    return value != nullptr && value->is(Value::Kind::kInt) && value->as_int() > 0
               ? static_cast<int>(value->as_int())
               : 1;
  };
  judge(saved, count("make_vocab_size_divisible_by") * count("tensor_model_parallel_size"), config);
  std::string unstated;
  for (const std::string& key : saved.unstated)
    unstated += (unstated.empty() ? "" : ", ") + trainer::key_of(config, key);
  if (!unstated.empty())
    log_info(where + ": args do not say " + unstated + ": taken to be the configuration's");
}

}  // namespace

std::vector<std::string> unused_weights(const std::vector<std::string>& stored,
                                        const std::set<std::string>& asked) {
  std::set<std::string> unused;
  for (const std::string& key : stored) {
    std::string weight = parse_state_key(key).weight;
    if (!weight.empty() && !asked.contains(weight) && !is_derived_name(weight))
      unused.insert(std::move(weight));
  }
  return {unused.begin(), unused.end()};
}

namespace {

std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (text.empty() ? "" : ", ") + terminal_line(names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

void judge_unused_weights(const std::vector<std::string>& unused, const std::string& address,
                          const RunConfig& config, bool speaks,
                          const std::vector<std::string>& missing) {
  if (unused.empty()) return;
  std::string text =
      fmt::format("{}: has {} weights that the model of the configuration does not have: {}",
                  address, unused.size(), first_names(unused));
  if (!missing.empty()) text += "; it has no " + first_names(missing);
  const std::string key = trainer::kUnusedWeightsKey;
  if (!trainer::is_accepted(config.exp_manager.checkpoints.accept_differences, key))
    throw ConfigError(text +
                      "; correct the configuration, or leave them out: --accept-difference " + key);
  if (speaks) log_warning(text + ": left out, as accepted");
}

void check_hub_config(const std::string& text, const std::string& where, const RunConfig& config) {
  const hugging_face::HubConfig hub = hugging_face::read_hub_config(text, where);
  SavedModel saved{where, hugging_face::hub_model(hub, text, where)};
  for (const trainer::ModelProperty& property : trainer::model_properties(saved.model))
    saved.names[property.key] = hugging_face::hub_name(hub, property.key);
  judge(saved, 1, config);
}

std::string saved_configuration(const Value& user_content) {
  const Value* parameters = user_content.find(Value("hyper_parameters"));
  const Value* text = parameters == nullptr ? nullptr : parameters->find(Value("cfg"));
  return text != nullptr && text->is_string() ? text->as_string() : "";
}

void check_saved_configuration(const std::string& text, const std::string& where,
                               const RunConfig& config, std::optional<std::int64_t> step) {
  if (text.empty()) return say_not_compared(where, "has no configuration of a training");
  const trainer::RunCheck check = trainer::check_saved_run_config(without_keys(text), where);
  if (!check.problems.empty())
    return say_not_compared(where, "its configuration is none of this version (" +
                                       terminal_line(check.problems.front()) + ")");
  judge({where, check.config.model}, padding_unit(check.config), config);
  if (!step || config.resolved_yaml.empty()) return;
  for (const trainer::RunChange& change : trainer::run_changes(check.config, config, *step))
    log_warning(fmt::format("{}: {} was {}, and is {} from here on", where, change.key,
                            terminal_line(change.saved), terminal_line(change.now)));
}

void check_saved_model(const TensorSource& source, const RunConfig& config,
                       std::optional<std::int64_t> step) {
  if (const auto* folder = dynamic_cast<const hugging_face::HuggingFaceSource*>(&source))
    return check_hub_config(folder->config_text(),
                            source.address() + "/" + hugging_face::kConfigFile, config);
  if (const auto* folder = dynamic_cast<const megatron::MegatronSource*>(&source))
    return check_arguments(*folder, config);
  const auto* training = dynamic_cast<const native::NativeSource*>(&source);
  const bool is_ours = training != nullptr && training->is_ours();
  const std::string where =
      is_ours ? source.address() + "/" + native::kUserContentFile : source.address();
  check_saved_configuration(is_ours ? saved_configuration(training->user_content()) : "", where,
                            config, step);
}

}  // namespace trellis::checkpoint
