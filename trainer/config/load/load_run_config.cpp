#include "trainer/config/load/load_run_config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include <fmt/format.h>

#include "base/address.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/problem.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_software.h"
#include "sim/config/system_config.h"
#include "trainer/config/checks/cross_checks.h"
#include "trainer/config/load/resolved_yaml.h"
#include "trainer/config/lora_targets.h"
#include "trainer/config/model_properties.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

SectionReaders open_sections(SectionReader root) {
  SectionReader model = root.section("model");
  return {root,
          root.section("trainer"),
          root.section("exp_manager"),
          root.section("distributed_strategy"),
          root.section("data"),
          model,
          model.section("optim"),
          root.section("precision"),
          root.section("model_alignment_strategy")};
}

void read_top_level(SectionReader& reader, RunConfig& config) {
  config.name = reader.required<std::string>("name");
  if (!reader.has("model_source")) {
    reader.problem("model_source", "this key is required and missing; expected megatron or hf");
  }
  config.model_source = reader.one_of("model_source", config.model_source, {"megatron", "hf"});
  config.software = reader.get<std::string>("software", config.software);
  try {
    (void)sim::software_stack(config.software);
  } catch (const ConfigError& error) {
    reader.problem("software", error.what());
  }
  config.machine = {reader.get<std::string>("instance", ""), reader.map().where("instance")};
  config.seed = reader.get<std::int64_t>("seed", config.seed);
  if (config.seed <= 0)
    reader.problem("seed", fmt::format("must be greater than 0, got {}", config.seed));
  config.bucket_size_collectives_mb = reader.positive("bucket_size_collectives", 1);
  if (!reader.has_value("bucket_size_collectives")) config.bucket_size_collectives_mb = 0;
}

/// Where the file has the properties of its model, which a checkpoint is compared with.
void note_model_places(const YamlMap& root, RunConfig& config) {
  for (const ModelProperty& property : model_properties({})) {
    const std::string key = key_of(config, property.key);
    YamlMap section = root;
    std::size_t begin = 0, end = key.find('.');
    for (; end != std::string::npos; end = key.find('.', begin)) {
      const std::string part = key.substr(begin, end - begin);
      if (!section.is_map(part)) break;
      section = section.map(part);
      begin = end + 1;
    }
    const std::string name = key.substr(begin);
    if (end == std::string::npos && section.has(name))
      config.places.where[key] = terminal_line(section.where(name));
  }
}

RunConfig read_sections(SectionReaders& readers, const std::filesystem::path& directory,
                        const std::string& instance) {
  RunConfig config;
  read_top_level(readers.root, config);
  const bool hf = config.model_source == "hf";
  config.trainer = read_trainer(readers.trainer, instance);
  for (const char* key : {"devices", "num_nodes", "lnc"})
    config.places.where["trainer." + std::string(key)] =
        terminal_line(readers.trainer.map().where(key));
  note_model_places(readers.root.map(), config);
  config.exp_manager = read_exp_manager(readers.exp_manager, config.trainer);
  config.distributed_strategy = read_distributed_strategy(readers.distributed_strategy);
  const AlignmentSection alignment = read_alignment(readers.alignment);
  config.alignment = alignment.strategy;
  config.data = read_data(readers.data, hf, alignment);
  const bool tokenized = config.data.kind == DataKind::kHfDataset;
  ModelSurroundings surroundings{hf, directory, &config.distributed_strategy,
                                 tokenized ? nullptr : &config.data.tokenizer};
  config.model = read_model(readers.model, surroundings);
  config.model.lora = alignment.lora;
  if (alignment.lora && alignment.lora->targets.empty() && alignment.lora->target_regex.empty())
    config.model.lora->targets = default_lora_targets(config.model);
  if (config.model.lora && config.model.lora->load)
    name_fused_layers(config.model, *config.model.lora);
  config.model.orpo = alignment.orpo;
  config.model.dpo = alignment.dpo;
  config.model.optim = read_optim(readers.optim, config.trainer.max_steps);
  config.precision = read_precision(readers.precision, config.distributed_strategy.zero1,
                                    surroundings.bf16_checkpoint);
  return config;
}

/// Overrides that NxDT's launcher derives from the environment; they follow the user's own.
std::vector<std::string> overrides_of_environment() {
  const char* compile = std::getenv("COMPILE");
  if (compile != nullptr && std::string(compile) == "1") {
    return {"trainer.max_steps=10", "exp_manager.create_tensorboard_logger=false",
            "exp_manager.create_checkpoint_callback=false"};
  }
  const char* iterations = std::getenv("TRAIN_ITERS");
  if (iterations == nullptr || *iterations == '\0') return {};
  std::int64_t steps = 0;
  const char* last = iterations + std::string(iterations).size();
  const auto [end, error] = std::from_chars(iterations, last, steps);
  if (error != std::errc() || end != last || steps < 1) {
    throw ConfigError(fmt::format(
        "TRAIN_ITERS: expected a number of steps of at least 1, got '{}'; correct it or unset it",
        iterations));
  }
  return {fmt::format("trainer.max_steps={}", steps)};
}

std::vector<std::string> with_environment(std::vector<std::string> overrides) {
  for (std::string& override_text : overrides_of_environment())
    overrides.push_back(std::move(override_text));
  return overrides;
}

/// The document that `open` gives for some overrides, with what saved adapters say of themselves.
YamlDocument with_adapter_values(
    const std::vector<std::string>& overrides,
    const std::function<YamlDocument(const std::vector<std::string>&)>& open) {
  YamlDocument document = open(overrides);
  const YamlMap root = document.root();
  if (!root.is_map("model_alignment_strategy")) return document;
  const YamlMap alignment = root.map("model_alignment_strategy");
  if (!alignment.is_map("peft")) return document;
  const std::vector<std::string> saved = overrides_of_adapter(alignment.map("peft"));
  if (saved.empty()) return document;
  std::vector<std::string> all = overrides;
  all.insert(all.end(), saved.begin(), saved.end());
  return open(all);
}

/// All but the resolved text.
RunCheck check_document(const YamlDocument& document, const std::string& file,
                        const std::string& instance) {
  Findings findings{document.problems()};
  for (const std::string& where : document.addresses_with_keys())
    document.problems().add(where, kKeysAdvice);
  SectionReaders readers = open_sections(SectionReader(document.root(), "", findings));
  RunCheck check;
  check.config = read_sections(readers, std::filesystem::path(file).parent_path(), instance);
  cross_check(check.config, readers);
  readers.root.finish();
  check.problems = document.problems().lines();
  check.warnings = std::move(findings.warnings);
  if (!check.problems.empty()) return check;
  check.config.unsupported = std::move(findings.unsupported);
  check.without_effect = std::move(findings.without_effect);
  return check;
}

void apply(const VerbChanges& changes, RunConfig& config) {
  if (changes.without_progress) config.trainer.enable_progress_bar = false;
  if (changes.steps == 0 || changes.steps == config.trainer.max_steps) return;
  std::optional<SchedSection>& schedule = config.model.optim.sched;
  if (schedule && !schedule->max_steps && config.trainer.max_steps > 0)
    schedule->max_steps = config.trainer.max_steps;
  config.trainer.max_steps = changes.steps;
}

RunConfig without_problems(RunCheck check) {
  std::string text;
  for (const std::string& problem : shown_problems(check.problems))
    text += (text.empty() ? "" : "\n") + problem;
  if (!text.empty()) throw ConfigError(text);
  for (const std::string& warning : check.warnings) log_warning(warning);
  return std::move(check.config);
}

}  // namespace

std::map<std::string, KeyRead> read_keys_of(const std::string& text) {
  const YamlDocument document = YamlDocument::parse(text, "probe");
  std::map<std::string, KeyRead> reads;
  Findings findings{document.problems()};
  findings.reads = &reads;
  SectionReaders readers = open_sections(SectionReader(document.root(), "", findings));
  (void)read_sections(readers, {}, sim::kTrainingInstance);
  return reads;
}

RunConfigFile::RunConfigFile(std::string file)
    : file_(std::move(file)), source_(YamlSource::load(file_)) {}

RunCheck RunConfigFile::check(const std::vector<std::string>& overrides,
                              const std::string& instance) const {
  const auto open = [&](const std::vector<std::string>& all) { return source_.with(all); };
  return check_document(with_adapter_values(with_environment(overrides), open), file_, instance);
}

RunConfig RunConfigFile::load(const std::vector<std::string>& overrides,
                              const std::string& instance, const VerbChanges& changes) const {
  RunConfig config = without_problems(check(overrides, instance));
  apply(changes, config);
  return config;
}

RunCheck check_run_config(const std::string& file, const std::vector<std::string>& overrides,
                          const std::string& instance, const VerbChanges& changes) {
  const auto open = [&](const std::vector<std::string>& all) {
    return YamlDocument::load(file, all);
  };
  const YamlDocument document = with_adapter_values(with_environment(overrides), open);
  RunCheck check = check_document(document, file, instance);
  if (!check.problems.empty()) return check;
  apply(changes, check.config);
  check.config.resolved_yaml = to_resolved_yaml(check.config, document.root());
  return check;
}

RunCheck check_run_config_text(const std::string& text, const std::string& file) {
  return check_document(YamlDocument::parse(text, file), file, sim::kTrainingInstance);
}

RunCheck check_saved_run_config(const std::string& text, const std::string& file) {
  const YamlDocument document = YamlDocument::parse(text, file);
  RunCheck check = check_document(document, file, sim::kTrainingInstance);
  if (check.problems.empty())
    check.config.resolved_yaml = to_resolved_yaml(check.config, document.root());
  return check;
}

RunConfig load_run_config(const std::string& file, const std::vector<std::string>& overrides,
                          const std::string& instance, const VerbChanges& changes) {
  return without_problems(check_run_config(file, overrides, instance, changes));
}

RunConfig load_run_config(const RunSource& source, const VerbChanges& changes) {
  return load_run_config(source.config_file, source.overrides, source.instance, changes);
}

void refuse_unsupported(const RunConfig& config, bool simulate) {
  std::string text;
  for (const UnsupportedFeature& feature : config.unsupported) {
    if (simulate && !feature.changes_step) continue;
    text += fmt::format("\n  {}: {}", feature.where, feature.text);
  }
  if (text.empty()) return;
  throw ConfigError(
      fmt::format("{}: this version validates, but does not support:{}\nSwitch these off to run "
                  "the rest; `trellis validate` shows what "
                  "will be built",
                  config.name, text));
}

}  // namespace trellis::trainer
