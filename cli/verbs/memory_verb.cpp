#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/memory/changes.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/number_text.h"
#include "base/process/parallel_for.h"
#include "base/process/run_self.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/verbs/verbs.h"
#include "traces/report/memory_plan.h"
#include "trainer/requests/memory_request.h"

namespace trellis::cli {
namespace {

using nlohmann::json;

struct MemoryOptions {
  trainer::RunSource run;
  trainer::MemoryRequest request;
  bool changes = true, all = false, json = false;
};

/// The plan of the request or of one change of it; null: an error, reported on stderr.
json plan_of(MemoryOptions& options, int& exit_code) {
  static_cast<trainer::RunSource&>(options.request) = options.run;
  std::string report;
  exit_code = call_trainer(&trainer::TrainerLibrary::memory, options.request, report);
  return exit_code == 0 ? json::parse(report) : json();
}

bool fits(const json& row, const char* key) {
  return row.at(key) == "fits" || row.at(key) == "tight";
}

/// The last error message of a child, with "error: ".
std::string error_line(const std::string& text) {
  const std::size_t begin = text.rfind("error: ");
  return begin == std::string::npos ? text.substr(0, text.find('\n'))
                                    : text.substr(begin, text.find('\n', begin) - begin);
}

/// Runs changes, each in a separate process, and keeps what came out.
class ChangeSearch {
 public:
  explicit ChangeSearch(const MemoryOptions& options) : options_(options) {}

  /// All single changes; where none on the same hardware fits, combinations too: of each layout the
  /// thriftiest variant, and where that fits the cheapest that does.
  json search(const json& plan) {
    run(analysis::single_changes(options_.run, plan));
    if (!fits_on_same_hardware()) combine(analysis::combined_changes(options_.run, plan));
    // They ended in any order.
    std::ranges::sort(rows_, {}, [](const Row& row) {
      return std::pair(row.cost, row.result.at("arguments").get<std::string>());
    });
    json all = json::array();
    for (Row& row : rows_) {
      if (options_.all || row.result.at("status") != "illegal")
        all.push_back(std::move(row.result));
    }
    return all;
  }

 private:
  struct Row {
    int cost;
    bool more_hardware;
    json result;
  };

  [[nodiscard]] bool fits_on_same_hardware() const {
    return std::ranges::any_of(
        rows_, [](const Row& row) { return fits(row.result, "status") && !row.more_hardware; });
  }

  [[nodiscard]] static std::size_t at_once() { return host_cores(); }

  void combine(const std::vector<std::vector<analysis::MemoryChange>>& layouts) {
    constexpr std::size_t kMostLayouts = 16, kMostVariants = 6;
    std::vector<const std::vector<analysis::MemoryChange>*> batch;
    std::vector<analysis::MemoryChange> thriftiest;
    std::size_t tried = 0;
    for (std::size_t i = 0; i < layouts.size() && tried < kMostLayouts; ++i) {
      const auto legal =
          std::find_if(layouts[i].rbegin(), layouts[i].rend(),
                       [&](const analysis::MemoryChange& change) { return is_new(change); });
      if (legal != layouts[i].rend()) {
        batch.push_back(&layouts[i]);
        thriftiest.push_back(*legal);
        ++tried;
      }
      if (batch.size() < at_once() && i + 1 < layouts.size() && tried < kMostLayouts) continue;
      const std::size_t before = rows_.size();
      run(thriftiest);
      bool found = false;
      for (std::size_t k = 0; k < batch.size(); ++k) {
        if (!fits_now(thriftiest[k].arguments, before)) continue;
        found = true;
        cheaper(*batch[k], thriftiest[k].cost, kMostVariants);
      }
      if (found) return;
      batch.clear();
      thriftiest.clear();
    }
  }

  /// Variants of a layout that change less than one that fits, until one of them does.
  void cheaper(const std::vector<analysis::MemoryChange>& variants, int cost, std::size_t most) {
    std::vector<analysis::MemoryChange> batch;
    for (const analysis::MemoryChange& change : variants) {
      if (change.cost >= cost || most == 0) break;
      if (!is_new(change)) continue;
      batch.push_back(change);
      --most;
      if (batch.size() < at_once()) continue;
      const std::size_t before = found_;
      run(batch);
      if (found_ > before) return;
      batch.clear();
    }
    run(batch);
  }

  [[nodiscard]] bool is_new(const analysis::MemoryChange& change) const {
    return !tried_.contains(change.arguments) && analysis::why_illegal(change.run).empty();
  }

  [[nodiscard]] bool fits_now(const std::string& arguments, std::size_t from) const {
    return std::any_of(
        rows_.begin() + static_cast<std::ptrdiff_t>(from), rows_.end(), [&](const Row& row) {
          return row.result.at("arguments") == arguments && fits(row.result, "status");
        });
  }

  [[nodiscard]] static json row_of(const analysis::MemoryChange& change) {
    return {{"arguments", change.arguments},
            {"overrides", change.run.overrides},
            {"instance", change.run.instance},
            {"nodes", change.run.nodes},
            {"more_hardware", change.more_hardware}};
  }

  void keep(const analysis::MemoryChange& change, json row) {
    found_ += fits(row, "status") ? 1 : 0;
    rows_.push_back({change.cost, change.more_hardware, std::move(row)});
  }

  void run(const std::vector<analysis::MemoryChange>& changes) {
    std::vector<const analysis::MemoryChange*> runs;
    std::vector<std::vector<std::string>> children;
    for (const analysis::MemoryChange& change : changes) {
      tried_.insert(change.arguments);
      json row = row_of(change);
      if (const std::string why = analysis::why_illegal(change.run); !why.empty()) {
        row.update({{"status", "illegal"}, {"reason", why}});
        keep(change, std::move(row));
      } else if (change.lower_bound > static_cast<double>(change.capacity)) {
        row.update({{"status", "too_large"},
                    {"reason", "weights, gradients and optimizer states take at least " +
                                   human_bytes(static_cast<std::int64_t>(change.lower_bound))}});
        keep(change, std::move(row));
      } else {
        runs.push_back(&change);
        children.push_back(arguments(change.run));
      }
    }
    run_selves(children, at_once(), [&](std::size_t child, const ChildResult& result) {
      keep(*runs[child], result_of(*runs[child], result));
    });
  }

  [[nodiscard]] std::vector<std::string> arguments(const trainer::RunSource& run) const {
    std::vector<std::string> words = {"memory", run.config_file};
    words.insert(words.end(), run.overrides.begin(), run.overrides.end());
    words.insert(words.end(), {"--instance", run.instance, "--nodes", std::to_string(run.nodes),
                               "--steps", std::to_string(options_.request.steps), "--no-changes",
                               "--json", "--threads", "1"});
    if (options_.request.functionalization) words.emplace_back("--functionalization");
    return words;
  }

  json result_of(const analysis::MemoryChange& change, const ChildResult& result) {
    json row = row_of(change);
    const json plan = json::parse(result.out, nullptr, false);
    if (plan.is_object()) {
      row["status"] = plan.at("verdict");
      for (const char* key :
           {"needed_bytes", "capacity_bytes", "headroom_bytes", "worst_rank", "worst_phase"})
        row[key] = plan.at(key);
    } else {
      row.update(
          {{"status", "failed"},
           {"reason", fmt::format("exit code {}: {}", result.exit_code, error_line(result.err))}});
    }
    std::cerr << fmt::format("checked {}: {}\n", change.arguments,
                             row.at("status").get<std::string>());
    note_written();
    activity_.count(++checked_);
    return row;
  }

  const MemoryOptions& options_;
  std::vector<Row> rows_;
  std::set<std::string> tried_;
  std::size_t found_ = 0;
  Activity activity_{"it does not fit: checking changes, each by a separate run"};
  std::int64_t checked_ = 0;
};

int memory(MemoryOptions& options) {
  int exit_code = 0;
  choose_machine(options.run);
  json plan = plan_of(options, exit_code);
  if (exit_code != 0) return exit_code;
  const bool fit = fits(plan, "verdict");
  if (!fit && options.changes) plan["changes"] = ChangeSearch(options).search(plan);
  std::cout << (options.json ? plan.dump(1) + "\n" : analysis::memory_plan_text(plan, options.all))
            << std::flush;
  return static_cast<int>(fit && plan.at("host").at("verdict") != "does_not_fit"
                              ? ExitCode::kOk
                              : ExitCode::kDoesNotFit);
}

}  // namespace

void add_memory(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("memory",
                                      "does a run fit, what takes the room in each phase, and "
                                      "which changes would make it fit; nothing is timed");
  auto options = std::make_shared<MemoryOptions>();
  options->run.nodes = 0;
  options->run.instance.clear();
  verb->add_option("config", options->run.config_file, "NxDT YAML")
      ->required()
      ->check(not_empty("a file"));
  verb->add_option("overrides", options->run.overrides,
                   "key.path=value, e.g. data.micro_batch_size=2 model.num_layers=16");
  verb->add_option("--instance", options->run.instance,
                   "machine to emulate (see `trellis describe`); none: the configuration's "
                   "`instance`, else trn1.32xlarge");
  verb->add_option("--nodes", options->run.nodes, "how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_option("--steps", options->request.steps, "steps to run; all take the same memory")
      ->capture_default_str()
      ->check(between(1, kMostSimulatedSteps, "all take the same memory"));
  verb->add_option("--threads", options->request.host_threads,
                   "ranks that run at the same time on the host; 0: one per host core. Results do "
                   "not depend on it")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a thread"));
  verb->add_option(
          "--timeout", options->request.timeout_s,
          "seconds after which a rank that is missing at a communication is named (exit code 4)")
      ->capture_default_str()
      ->check(above_zero());
  verb->add_flag("--functionalization", options->request.functionalization,
                 "software nxd or optimum-neuron on PyTorch/XLA 2.1 to 2.4 with "
                 "XLA_DISABLE_FUNCTIONALIZATION=0: gradients that accumulate are there twice "
                 "(pytorch/xla#7174)");
  verb->add_flag("!--no-changes", options->changes,
                 "when it does not fit, say so and search for no changes");
  verb->add_flag("--all", options->all,
                 "also list the changes that are illegal for this configuration or machine, or not "
                 "enough, with why");
  verb->add_flag("--json", options->json,
                 "one JSON document on stdout (schema trellis.memory_plan/1)");
  verb->footer(
      "Examples:\n  trellis memory examples/llama3_8b_trn1.yaml\n"
      "  trellis memory examples/llama3_8b_trn1.yaml "
      "distributed_strategy.tensor_model_parallel_size=4 data.micro_batch_size=2\n"
      "  trellis memory examples/nxdt/hf_llama3_70B_config.yaml trainer.num_nodes=32 --json\n"
      "The trainer runs one step without data on cores that never refuse memory, one rank of each "
      "class of equal ranks. What neuronx-cc and the runtime\n"
      "take in addition is reported as an estimate. It counts where the configuration says "
      "software: nxd "
      "or optimum-neuron: then the verdict is of that\n"
      "software on a device, estimated from a published breakdown (trellis accuracy memory judges "
      "it). Exit code 0: it fits; 3: it does not, and the changes that would are listed, each one "
      "run.");
  verb->callback([options, &exit_code] { exit_code = memory(*options); });
}

}  // namespace trellis::cli
