#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/collectives/collective_sweep.h"
#include "base/error.h"
#include "base/yaml/yaml.h"
#include "cli/options/not_empty.h"
#include "cli/verbs/verbs.h"

namespace trellis::cli {

namespace {

struct CollectivesOptions {
  analysis::CollectiveSweep sweep;
  std::string min = "8 B", max = "1 GiB", algorithm = "auto";
  bool json = false, list_algorithms = false;
};

Bytes parse_size(const std::string& option, const std::string& text) {
  // nccom-test takes "8", "1K", "32M"; units of this program are "8B", "1KiB", "32 MB".
  const bool bare = text.find_first_not_of("0123456789") == std::string::npos;
  const auto size = parse_quantity<Bytes>(bare ? text + " B" : text);
  if (!size)
    throw ConfigError(fmt::format(
        "{} \"{}\": expected a size below 8 EiB with its unit, e.g. 8B, 64KiB, 1GiB, 32MB", option,
        text));
  return *size;
}

void print_table(const analysis::CollectiveSweepResult& result) {
  std::cout << fmt::format("{:>12} {:>12} {:>6} {:>12} {:>13} {:>13}  {:<36} {}\n", "size (B)",
                           "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)",
                           "algorithm", "busiest link");
  for (const analysis::CollectiveSweepRow& row : result.rows) {
    const sim::CollectiveTiming& t = row.timing;
    const std::string link = t.busiest_link.empty() ? "-"
                                                    : fmt::format("{} {:.0f} %", t.busiest_link,
                                                                  100 * t.busiest_link_share);
    std::cout << fmt::format("{:>12} {:>12} {:>6} {:>12.2f} {:>13.2f} {:>13.2f}  {:<36} {}\n",
                             row.size.value, row.count, result.dtype, to_microseconds(t.time),
                             t.algorithm_bandwidth.value * 1e-9, t.bus_bandwidth.value * 1e-9,
                             sim::describe(t.algorithm), link);
  }
  for (const std::string& note : result.notes) std::cout << fmt::format("note: {}\n", note);
}

nlohmann::json sweep_to_json(const analysis::CollectiveSweepResult& result,
                             const CollectivesOptions& options) {
  nlohmann::json rows = nlohmann::json::array();
  for (const analysis::CollectiveSweepRow& row : result.rows) {
    const sim::CollectiveTiming& t = row.timing;
    rows.push_back({{"size_bytes", row.size.value},
                    {"count", row.count},
                    {"time_us", to_microseconds(t.time)},
                    {"algbw_gb_per_s", t.algorithm_bandwidth.value * 1e-9},
                    {"busbw_gb_per_s", t.bus_bandwidth.value * 1e-9},
                    {"algorithm", sim::describe(t.algorithm)},
                    {"wire_bytes", t.wire_bytes.value},
                    {"busiest_link", t.busiest_link},
                    {"busiest_link_share", t.busiest_link_share},
                    {"bound_by", t.bound_by},
                    {"bound_share", t.bound_share}});
  }
  return {{"schema", "trellis.collectives/1"},
          {"op", name(result.kind)},
          {"instance", options.sweep.instance},
          {"nodes", options.sweep.load.nodes},
          {"ranks", result.cores.size()},
          {"cores", result.cores},
          {"dtype", result.dtype},
          {"rows", rows},
          {"notes", result.notes}};
}

void list_algorithms(const CollectivesOptions& options) {
  const auto table = analysis::selection_rows(options.sweep);
  if (options.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& row : table)
      rows.push_back(
          {{"algorithm", row.algorithm}, {"sizes", row.sizes}, {"condition", row.condition}});
    std::cout << nlohmann::json({{"schema", "trellis.collective_algorithms/1"},
                                 {"instance", options.sweep.instance},
                                 {"rows", rows}})
                     .dump(1)
              << "\n";
    return;
  }
  std::cout << fmt::format("{}: the first row that applies is taken\n{:<18} {:<14} {}\n",
                           options.sweep.instance, "algorithm", "sizes", "condition");
  for (const auto& row : table)
    std::cout << fmt::format("{:<18} {:<14} {}\n", row.algorithm, row.sizes, row.condition);
}

void run(CollectivesOptions options) {
  if (options.list_algorithms) return list_algorithms(options);
  if (options.sweep.op.empty())
    throw ConfigError("trellis collectives: which one? " + analysis::known_operations());
  options.sweep.min = parse_size("--min", options.min);
  options.sweep.max = parse_size("--max", options.max);
  if (options.algorithm != "auto")
    options.sweep.algorithm = sim::parse_algorithm(options.algorithm);
  const analysis::CollectiveSweepResult result = analysis::sweep(options.sweep);
  if (options.json) {
    std::cout << sweep_to_json(result, options).dump(1) << "\n";
  } else {
    print_table(result);
  }
}

}  // namespace

void add_collectives(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "collectives", "how long a collective takes, size by size, as nccom-test prints it");
  auto options = std::make_shared<CollectivesOptions>();
  verb->add_option("op", options->sweep.op, analysis::known_operations());
  verb->add_option("--instance", options->sweep.instance, "machine (see `trellis describe`)")
      ->capture_default_str();
  verb->add_option("--nodes", options->sweep.load.nodes, "how many of them")->capture_default_str();
  CLI::Option* ranks =
      verb->add_option("--ranks", options->sweep.ranks,
                       "logical cores, equally many on each node; none: all there are");
  verb->add_option("--cores", options->sweep.cores,
                   "the cores themselves instead of --ranks, e.g. 0,8,16,24")
      ->delimiter(',')
      ->check(not_empty("core numbers"))
      ->excludes(ranks);
  verb->add_option("--min", options->min,
                   "first size: what an all-gather ends with and a reduce-scatter starts with")
      ->capture_default_str();
  verb->add_option("--max", options->max, "last size")->capture_default_str();
  verb->add_option("--factor", options->sweep.factor, "from one size to the next")
      ->capture_default_str();
  verb->add_option("--dtype", options->sweep.dtype, "uint8, fp8, bf16, fp16, fp32, int32, …")
      ->capture_default_str();
  verb->add_option("--algorithm", options->algorithm,
                   "auto (the selection table), ring, mesh, single_step_mesh, rdh, kangaring or "
                   "hierarchical")
      ->capture_default_str();
  verb->add_option("--lnc", options->sweep.load.logical_core_size,
                   "physical cores per logical core, 1 or 2; none: the instance's default");
  verb->add_option("--set", options->sweep.load.overrides,
                   "hardware parameter, e.g. collectives.message_time=0.5us; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("--list-algorithms", options->list_algorithms, "print the selection table");
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.collectives/1)");
  verb->footer(
      "Sizes and bandwidths are nccom-test's: time in microseconds, algbw = size / time, busbw = "
      "algbw x 2(n-1)/n for all_reduce,\n"
      "(n-1)/n for all_gather, reduce_scatter and all_to_all. The machine is idle otherwise.\n"
      "Examples:\n  trellis collectives all_reduce --instance trn1.32xlarge --ranks 32 --min 1MiB "
      "--max 1GiB\n"
      "  trellis collectives all_gather --instance trn2.48xlarge --nodes 4 --min 64MiB --max 64MiB "
      "--json\n"
      "  trellis collectives all_reduce --instance trn2.48xlarge --min 1MiB --max 1GiB --algorithm "
      "ring\n"
      "  trellis collectives --list-algorithms --instance trn2.48xlarge");
  verb->callback([options, &exit_code] {
    run(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
