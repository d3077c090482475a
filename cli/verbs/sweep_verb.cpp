#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/sweep/runner.h"
#include "analysis/sweep/sweep_output.h"
#include "analysis/sweep/sweep_page.h"
#include "analysis/sweep/table_cells.h"
#include "base/error.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/options/shard_of_launch.h"
#include "cli/output/output_files.h"
#include "cli/output/parquet_file.h"
#include "cli/verbs/verbs.h"
#include "traces/table_request.h"

namespace trellis::cli {
namespace {

struct SweepOptions {
  analysis::SweepRequest request;
  analysis::RunOptions run;
  analysis::RankRequest rank;
  std::vector<std::string> folders;
  std::string out, shard, csv, parquet, svg, html;
  std::size_t top = 10;
  bool all = false, json = false;
};

trainer::TableRequest table_of(const analysis::SweepResult& result) {
  trainer::TableRequest table;
  for (const analysis::SweepColumn& column : analysis::sweep_columns())
    table.columns.emplace_back(column.name, column.type);
  for (const analysis::SweepRow& row : result.rows)
    table.rows.push_back(analysis::sweep_cells(result, row));
  return table;
}

/// Calls `work` when every output can be written, then writes all of them.
template <typename Work>
void with_outputs(const SweepOptions& options, const Work& work) {
  OutputFiles files({{"--csv", options.csv},
                     {"--parquet", options.parquet},
                     {"--svg", options.svg},
                     {"--html", options.html}});
  const ParquetWriter parquet(options.parquet);
  const analysis::SweepResult result = work();
  files.write("--csv", [&] { return analysis::sweep_csv(result); });
  files.write("--parquet", [&] { return parquet.content(table_of(result)); });
  files.write("--svg", [&] { return analysis::sweep_svg(result); });
  files.write("--html", [&] { return analysis::sweep_page(result); });
  std::cout << (options.json ? analysis::sweep_json(result).dump(1) + "\n"
                             : analysis::sweep_text(result))
            << std::flush;
  files.finish();
}

void sweep(SweepOptions& options) {
  if (options.request.config.empty())
    throw ConfigError(
        "which configuration? Expected `trellis sweep CONFIG --nodes N`, or `trellis sweep merge "
        "DIR…`");
  const bool launched = take_shard_of_launch("sweep", options.shard, options.out);
  for (const std::string& file : {options.csv, options.parquet, options.svg, options.html}) {
    if (launched && !file.empty())
      throw ConfigError(file +
                        ": every process of the launcher would write it: give it to `trellis "
                        "sweep merge`");
  }
  if (!options.shard.empty()) options.run.shard = parse_shard(options.shard);
  if (options.request.fast && !options.out.empty())
    throw ConfigError(
        "--fast: its estimates are not kept in a journal: leave out --out and --shard");
  if (!options.out.empty()) options.run.out = options.out;
  options.request.top = options.all ? 0 : options.top;
  const Machine machine =
      machine_of(options.request.config, options.request.overrides, {options.request.instance, 0});
  options.request.instance = machine.instance;
  if (options.request.nodes.empty() && options.request.chips == 0)
    options.request.nodes = {machine.nodes};
  const std::optional<analysis::Ranking> ranking = analysis::read_ranking(
      options.rank, options.request.instance);  // before anything is simulated
  with_outputs(options, [&] {
    analysis::SweepResult result = analysis::run_sweep(options.request, options.run);
    result.ranking = ranking;
    return result;
  });
}

void output_options(CLI::App& verb, SweepOptions& options) {
  verb.add_option("--csv", options.csv,
                  "every candidate with status, reason, bounds, figures and the command that gives "
                  "them again")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--parquet", options.parquet, "the same as Parquet")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--svg", options.svg, "step time against peak memory, with the Pareto front")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--html", options.html,
                  "one page without network: the Pareto picture, and a table of the layouts that "
                  "sorts by a click")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--rank-by", options.rank.by,
                  "also one list of all numbers of nodes: by time, by cost, or by deadline (those "
                  "in time, the cheapest first)")
      ->capture_default_str()
      ->check(CLI::IsMember({"time", "cost", "deadline"}));
  verb.add_option("--prices", options.rank.prices, "price file (examples/prices.yaml)")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--paying", options.rank.paying,
                  "which of the file's ways to pay; none: its first")
      ->check(not_empty("a way to pay"));
  verb.add_option("--tokens", options.rank.tokens,
                  "the whole training, e.g. 300B: its time and cost")
      ->check(not_empty("a number"));
  verb.add_option("--deadline", options.rank.deadline,
                  "the longest time that the training may take, e.g. 30d")
      ->check(not_empty("a time"));
  verb.add_flag("--json", options.json, "one JSON document (schema trellis.sweep/1)");
}

void add_merge(CLI::App& verb, int& exit_code) {
  CLI::App* merge = verb.add_subcommand("merge", "one result from the journals of all shards");
  auto options = std::make_shared<SweepOptions>();
  merge
      ->add_option("folders", options->folders,
                   "folders that `trellis sweep --shard i/n --out` wrote")
      ->required();
  output_options(*merge, *options);
  merge->callback([options, &exit_code] {
    with_outputs(*options, [&] {
      analysis::SweepResult result =
          analysis::merge_sweep({options->folders.begin(), options->folders.end()});
      result.ranking = analysis::read_ranking(options->rank, result.space.request.instance);
      return result;
    });
    exit_code = 0;
  });
}

constexpr const char* kSweepFooter =
    "Examples:\n  trellis sweep examples/llama3_8b_trn1.yaml --nodes 1 --only vpp=1 --fix "
    "zero1,kv --out sweep\n"
    "  trellis sweep examples/llama3_8b_trn1.yaml --nodes 1,2,4 --gbs 256 --top 5 --csv "
    "layouts.csv --svg layouts.svg\n"
    "  trellis sweep examples/llama3_8b_trn1.yaml --nodes 1,2,4 --rank-by deadline --prices "
    "examples/prices.yaml --tokens 300B --deadline 60d\n"
    "  trellis sweep CONFIG --nodes 16 --shard $SLURM_ARRAY_TASK_ID/8 --out "
    "part$SLURM_ARRAY_TASK_ID; trellis sweep merge part*\n"
    "Status: illegal (a rule of `trellis validate`), oom (with `software: nxd` or optimum-neuron "
    "by what that is estimated to take), dominated (slower at least than the best, or slower and "
    "larger than another), ok.\n"
    "Bounds: analysis/sweep/bounds.h. Every simulated row says the `trellis simulate` command that "
    "gives its step time again, to the picosecond.";

/// Options of what is simulated, how, and where it is kept.
void run_options(CLI::App& verb, SweepOptions& options) {
  verb.add_option("--top", options.top,
                  "stop when no other candidate can be among so many best of its number of nodes")
      ->capture_default_str()
      ->check(at_least(1));
  verb.add_flag("--all", options.all, "simulate every candidate that is legal and may fit");
  verb.add_flag(
      "--fast", options.request.fast,
      "estimate the layouts that their bounds leave from short simulations of one layer, within "
      "5 % where links are not contended, and simulate only those that may be among the best by "
      "that");
  verb.add_option("--jobs", options.run.jobs,
                  "simulations at the same time; 0: one per host core. Results do not depend on it")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a process"));
  add_part_options(verb, options.shard, options.out);
}

}  // namespace

void add_sweep(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("sweep",
                                      "every layout of a configuration on a machine: legal, too "
                                      "large, slower than the best; the best ones simulated");
  auto options = std::make_shared<SweepOptions>();
  options->request.instance.clear();
  verb->add_option("config", options->request.config, "NxDT YAML");
  verb->add_option("overrides", options->request.overrides,
                   "key.path=value, of what the sweep does not vary itself");
  verb->add_option(
      "--instance", options->request.instance,
      "machine (see `trellis describe`); none: the configuration's `instance`, else trn1.32xlarge");
  verb->add_option("--nodes", options->request.nodes,
                   "how many of them; several: 2,4,8; none: trainer.num_nodes")
      ->delimiter(',')
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_option("--chips", options->request.chips,
                   "instead: chips, of one instance or of whole ones")
      ->check(at_least(1));
  verb->add_option("--gbs", options->request.global_batch_size,
                   "global batch size; none: the configuration's")
      ->check(at_least(1));
  verb->add_option("--only", options->request.only,
                   "AXIS=V1,V2: an axis takes these values; axes: tp, pp, vpp, dp, cp, ep, mbs, "
                   "sp, zero1, fsdp, kv, recompute; cp: with ring attention, ep: of a mixture; "
                   "fsdp: without --only the configuration's alone")
      ->type_name("AXIS=VALUES")
      ->allow_extra_args(false);
  verb->add_option("--fix", options->request.fix, "AXIS,AXIS: these keep the configuration's value")
      ->delimiter(',')
      ->type_name("AXES")
      ->allow_extra_args(false);
  run_options(*verb, *options);
  output_options(*verb, *options);
  verb->require_subcommand(0, 1);
  verb->footer(kSweepFooter);
  add_merge(*verb, exit_code);
  verb->callback([verb, options, &exit_code] {
    if (!verb->get_subcommands().empty()) return;
    sweep(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
