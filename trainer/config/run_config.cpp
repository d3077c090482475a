#include "trainer/config/run_config.h"

#include <fmt/format.h>

#include "trainer/config/cross_checks.h"
#include "trainer/config/resolved_yaml.h"
#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

SectionReaders open_sections(const YamlDocument& document) {
  SectionReader root(document.root(), "", document.problems());
  SectionReader model = root.section("model");
  return {root,
          root.section("trainer"),
          root.section("exp_manager"),
          root.section("distributed_strategy"),
          root.section("data"),
          model,
          model.section("optim"),
          root.section("precision")};
}

void read_top_level(SectionReader& reader, RunConfig& config) {
  config.name = reader.required<std::string>("name");
  if (!reader.has("model_source")) {
    reader.problem("model_source", "this key is required and missing; expected megatron or hf");
  }
  config.model_source = reader.one_of("model_source", config.model_source, {"megatron", "hf"}, {});
  config.seed = reader.get<std::int64_t>("seed", config.seed);
  if (config.seed <= 0) reader.problem("seed", fmt::format("must be greater than 0, got {}", config.seed));
}

RunConfig read_sections(SectionReaders& readers) {
  RunConfig config;
  read_top_level(readers.root, config);
  config.trainer = read_trainer(readers.trainer);
  config.exp_manager = read_exp_manager(readers.exp_manager);
  config.distributed_strategy = read_distributed_strategy(readers.distributed_strategy);
  config.data = read_data(readers.data);
  config.model = read_model(readers.model, config.model_source, config.tp());
  config.model.optim = read_optim(readers.optim, config.trainer.max_steps);
  config.precision = read_precision(readers.precision, config.distributed_strategy.zero1);
  return config;
}

}  // namespace

RunConfig load_run_config(const std::string& file, const std::vector<std::string>& overrides) {
  const YamlDocument document = YamlDocument::load(file, overrides);
  SectionReaders readers = open_sections(document);
  RunConfig config = read_sections(readers);
  cross_check(config, readers);
  const bool source_is_known = readers.root.good({"model_source"});
  readers.root.finish(source_is_known && config.model_source == "megatron");
  document.problems().throw_if_any();
  log_remarks(config);
  config.resolved_yaml = to_resolved_yaml(config);
  return config;
}

}  // namespace trellis::trainer
