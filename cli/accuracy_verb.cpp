#include <fnmatch.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/accuracy/evaluate.h"
#include "cli/accuracy/memory_rows.h"
#include "cli/accuracy/score.h"
#include "cli/verbs.h"

namespace trellis::cli {

namespace {

struct Options {
  std::string subject, use = "all";
  std::vector<std::string> rows, overrides;
  bool published_only = false, json = false;
};

bool wanted(const Options& options, const PublishedRow& row) {
  if (options.use != "all" && options.use != name(row.use)) return false;
  const auto matches = [&](const std::string& glob) { return fnmatch(glob.c_str(), row.id.c_str(), 0) == 0; };
  return options.rows.empty() || std::any_of(options.rows.begin(), options.rows.end(), matches);
}

int run_memory(const Options& options) {
  std::vector<MemoryRow> rows = read_memory_rows();
  const auto matches = [](const MemoryRow& row, const std::string& glob) { return fnmatch(glob.c_str(), row.id.c_str(), 0) == 0; };
  std::erase_if(rows, [&](const MemoryRow& row) {
    return !options.rows.empty() && std::none_of(options.rows.begin(), options.rows.end(), [&](const std::string& glob) { return matches(row, glob); });
  });
  if (rows.empty()) throw ConfigError("no row of memory is asked for: the ids stand in benchmarks/published/memory.yaml");
  if (options.use != "all" || !options.overrides.empty() || options.published_only) throw ConfigError("memory: nothing is fitted: leave out --use, --set and --published-only");
  const std::vector<MemoryAnswer> answers =
      answer_memory_rows(rows, [](const MemoryRow& row, const MemoryAnswer& answer) { std::cerr << row.id << ": " << (answer.error.empty() ? answer.verdict : answer.error) << "\n"; });
  std::cout << (options.json ? memory_accuracy_json(rows, answers).dump(1) + "\n" : memory_accuracy_text(rows, answers));
  return 0;
}

int run(const Options& options) {
  if (options.subject == "memory") return run_memory(options);
  const PublishedRows published = read_published_rows(options.subject);
  Evaluator evaluator(options.overrides, !options.published_only);
  std::vector<ScoredRow> scored;
  std::vector<PublishedRow> excluded;
  for (const PublishedRow& row : published.rows) {
    if (!wanted(options, row)) continue;
    if (row.use == RowUse::kExcluded) {
      excluded.push_back(row);
    } else {
      scored.push_back({row, evaluator.time_us(options.subject, row)});
    }
  }
  published.document.problems().throw_if_any();
  if (scored.empty() && excluded.empty()) throw ConfigError("no row of " + options.subject + " is asked for: the ids stand in benchmarks/published/" + options.subject + ".yaml");
  std::cout << (options.json ? accuracy_json(options.subject, scored, excluded).dump(1) + "\n" : accuracy_text(options.subject, scored, excluded));
  return 0;
}

}  // namespace

void add_accuracy(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("accuracy", "how far the model is from published measurements, row by row, worst first");
  auto options = std::make_shared<Options>();
  verb->add_option("subject", options->subject, "kernels, dma, collectives or memory")->required()->check(CLI::IsMember({"kernels", "dma", "collectives", "memory"}));
  verb->add_option("--rows", options->rows, "only rows whose id matches, e.g. 'T14-*'")->type_name("GLOB")->allow_extra_args(false);
  verb->add_option("--use", options->use, "fit: rows that parameters were fitted on; test: rows held out; excluded; all")
      ->capture_default_str()->check(CLI::IsMember({"all", "fit", "test", "excluded"}));
  verb->add_option("--set", options->overrides, "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")->type_name("KEY=VALUE")->allow_extra_args(false);
  verb->add_flag("--published-only", options->published_only, "leave the fitted parameters out: what documents alone give");
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.accuracy/1)");
  verb->footer("The published rows, with their sources, stand in benchmarks/published/.\n"
               "Examples:\n  trellis accuracy kernels\n  trellis accuracy collectives --use test\n"
               "  trellis accuracy memory: published runs that fitted or were out of memory, each run by `trellis memory`");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace trellis::cli
