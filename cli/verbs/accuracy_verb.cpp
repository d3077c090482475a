#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/evaluate.h"
#include "analysis/accuracy/memory_rows.h"
#include "analysis/accuracy/replay_report.h"
#include "analysis/accuracy/score.h"
#include "analysis/accuracy/training_report.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/process/parallel_for.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "traces/report/validated_record.h"

namespace trellis::cli {

namespace {

struct AccuracyOptions {
  std::string subject, folder, transfers = "traced", use = "all";
  std::vector<std::string> rows, overrides;
  bool published_only = false, json = false;
  int jobs = 0;
  std::string results = "trellis_accuracy/training", write_validated;
};

bool wanted(const AccuracyOptions& options, const analysis::PublishedRow& row) {
  if (options.use != "all" && options.use != analysis::name(row.use)) return false;
  const auto matches = [&](const std::string& glob) {
    return fnmatch(glob.c_str(), row.id.c_str(), 0) == 0;
  };
  return options.rows.empty() || std::any_of(options.rows.begin(), options.rows.end(), matches);
}

[[noreturn]] void refuse_empty(const std::string& subject) {
  throw ConfigError("no row of " + subject + " is asked for: the ids are in benchmarks/published/" +
                    subject + ".yaml");
}

int run_training(const AccuracyOptions& options) {
  OutputFiles files({{"--write-validated", options.write_validated}});
  std::vector<analysis::TrainingRun> runs = analysis::read_training_runs();
  std::erase_if(runs, [&](const analysis::TrainingRun& run) { return !wanted(options, run.row); });
  if (runs.empty()) refuse_empty(options.subject);
  analysis::TrainingRequest request;
  request.program = std::filesystem::canonical("/proc/self/exe");
  request.results = std::filesystem::absolute(options.results);
  request.jobs = options.jobs > 0 ? options.jobs : static_cast<int>(host_cores());
  request.hardware = options.overrides;
  request.calibrated = !options.published_only;
  std::size_t finished = 0;
  Activity activity("simulating published training steps");
  const auto predictions = analysis::predict(
      runs, request, [&](const analysis::TrainingRun& run, const analysis::Prediction& p) {
        activity.count(static_cast<std::int64_t>(finished) + 1,
                       static_cast<std::int64_t>(runs.size()));
        std::cerr << "[" << ++finished << "/" << runs.size() << "] " << run.row.id << ": ";
        if (!p.error.empty()) {
          std::cerr << "exit code " << p.exit_code << ": " << p.error.substr(0, p.error.find('\n'))
                    << "\n";
        } else {
          std::cerr << p.step_s << " s predicted, " << run.row.time_us * 1e-6 << " s published"
                    << (p.kept ? ", kept" : "") << " (" << p.host_s << " s of this host)\n";
        }
      });
  files.write("--write-validated",
              [&] { return analysis::to_yaml(analysis::validated_record(runs, predictions)); });
  std::cout << (options.json ? analysis::training_json(runs, predictions).dump(1) + "\n"
                             : analysis::training_text(runs, predictions))
            << std::flush;
  files.finish();
  return analysis::exit_code_of(predictions);
}

int run_memory(const AccuracyOptions& options) {
  std::vector<analysis::MemoryRow> rows = analysis::read_memory_rows();
  const auto matches = [](const analysis::MemoryRow& row, const std::string& glob) {
    return fnmatch(glob.c_str(), row.id.c_str(), 0) == 0;
  };
  std::erase_if(rows, [&](const analysis::MemoryRow& row) {
    return !options.rows.empty() &&
           std::none_of(options.rows.begin(), options.rows.end(),
                        [&](const std::string& glob) { return matches(row, glob); });
  });
  if (rows.empty())
    throw ConfigError(
        "no row of memory is asked for: the ids are in benchmarks/published/memory.yaml");
  if (options.use != "all" || !options.overrides.empty() || options.published_only)
    throw ConfigError("memory: nothing is fitted: leave out --use, --set and --published-only");
  Activity activity("estimating the memory of published runs");
  std::int64_t finished = 0;
  const std::vector<analysis::MemoryAnswer> answers = analysis::answer_memory_rows(
      rows, [&](const analysis::MemoryRow& row, const analysis::MemoryAnswer& answer) {
        std::cerr << row.id << ": " << (answer.error.empty() ? answer.verdict : answer.error)
                  << "\n";
        activity.count(++finished, static_cast<std::int64_t>(rows.size()));
      });
  std::cout << (options.json ? analysis::memory_accuracy_json(rows, answers).dump(1) + "\n"
                             : analysis::memory_accuracy_text(rows, answers));
  return 0;
}

/// Profiles of a folder, by name.
std::vector<std::filesystem::path> profiles_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder))
    throw ConfigError(folder.string() + ": expected a folder of profiles (*.json, *.json.xz)");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".json") || name.ends_with(".json.xz")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) throw ConfigError(folder.string() + ": holds no profile (*.json, *.json.xz)");
  return files;
}

int run_instructions(const AccuracyOptions& options) {
  if (options.use != "all" || !options.rows.empty() || options.published_only)
    throw ConfigError("instructions: leave out --use, --rows and --published-only: name a folder");
  const auto files =
      profiles_of(options.folder.empty() ? analysis::published_directory() / "profiles"
                                         : std::filesystem::path(options.folder));
  Activity activity("replaying instruction traces");
  std::vector<analysis::Replay> replays;
  for (const auto& file : files) {
    activity.count(static_cast<std::int64_t>(replays.size()),
                   static_cast<std::int64_t>(files.size()));
    replays.push_back(analysis::replay(
        sim::read_profile(file),
        {.transfers = options.transfers == "traced" ? analysis::Transfers::kTraced
                                                    : analysis::Transfers::kModelled,
         .overrides = options.overrides}));
  }
  std::cout << (options.json ? analysis::replays_json(replays).dump(1) + "\n"
                             : analysis::replays_text(replays));
  return 0;
}

/// The record that every verb's range comes from is of all rows and of the machine as it is.
void refuse_part(const AccuracyOptions& options) {
  if (options.write_validated.empty()) return;
  const bool whole = options.rows.empty() && options.use == "all" && options.overrides.empty() &&
                     !options.published_only;
  if (options.subject != "training" || !whole)
    throw ConfigError(
        "--write-validated: the record is of all training rows on the machine as it is: leave out "
        "--rows, --use, --set and --published-only");
}

int run(const AccuracyOptions& options) {
  refuse_part(options);
  if (options.subject == "training") return run_training(options);
  if (options.subject == "memory") return run_memory(options);
  if (options.subject == "instructions") return run_instructions(options);
  if (!options.folder.empty())
    throw ConfigError(options.folder + ": only `accuracy instructions` reads a folder");
  const analysis::PublishedRows published = analysis::read_published_rows(options.subject);
  analysis::Evaluator evaluator(options.overrides, !options.published_only);
  std::vector<analysis::ScoredRow> scored;
  std::vector<analysis::PublishedRow> excluded;
  Activity activity("timing published rows of " + options.subject);
  for (const analysis::PublishedRow& row : published.rows) {
    activity.count(&row - published.rows.data(), static_cast<std::int64_t>(published.rows.size()));
    if (!wanted(options, row)) continue;
    if (row.use == analysis::RowUse::kExcluded) {
      excluded.push_back(row);
    } else {
      scored.push_back({row, evaluator.time_us(options.subject, row)});
    }
  }
  published.document.problems().throw_if_any();
  if (scored.empty() && excluded.empty()) refuse_empty(options.subject);
  std::cout << (options.json
                    ? analysis::accuracy_json(options.subject, scored, excluded).dump(1) + "\n"
                    : analysis::accuracy_text(options.subject, scored, excluded));
  return 0;
}

}  // namespace

void add_accuracy(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "accuracy", "how far the model is from published measurements, row by row, worst first");
  auto options = std::make_shared<AccuracyOptions>();
  verb->add_option("subject", options->subject,
                   "kernels, dma, collectives, training, memory, instructions or intervals")
      ->required()
      ->check(CLI::IsMember(
          {"kernels", "dma", "collectives", "training", "memory", "instructions", "intervals"}));
  verb->add_option("folder", options->folder,
                   "instructions: a folder of neuron-profile's JSON (*.json, *.json.xz); default: "
                   "benchmarks/published/profiles")
      ->type_name("DIR");
  verb->add_option("--transfers", options->transfers,
                   "instructions: traced: DMA transfers take what they took; modelled: simulated")
      ->capture_default_str()
      ->check(CLI::IsMember({"traced", "modelled"}));
  verb->add_option("--rows", options->rows, "only rows whose id matches, e.g. 'T14-*'")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--use", options->use,
                   "fit: rows that parameters were fitted on; test: rows held out; excluded; all")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "fit", "test", "excluded"}));
  verb->add_option("--set", options->overrides,
                   "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("--published-only", options->published_only,
                 "leave the fitted parameters out: what documents alone give");
  verb->add_option("--jobs", options->jobs, "training: runs at the same time; 0: one per host core")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a process"));
  verb->add_option("--results", options->results,
                   "training: folder of the runs. Results there are kept while configuration, "
                   "machine and program are the same: an "
                   "interrupted call goes on where it was")
      ->type_name("DIR")
      ->capture_default_str();
  verb->add_option("--write-validated", options->write_validated,
                   "training: also the record that ranges of step times come from "
                   "(benchmarks/published/validated.yaml)")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.accuracy/1)");
  verb->footer(
      "The published rows, with their sources, are in benchmarks/published/.\n"
      "Training: each row is a run of `trellis simulate`; one that cannot be run is listed with "
      "its error, and the exit code is that of the first of them.\n"
      "Examples:\n  trellis accuracy kernels\n  trellis accuracy training --rows 'D0*' --jobs 2\n  "
      "trellis accuracy collectives --use test\n"
      "  trellis accuracy memory: published runs that fitted or were out of memory, each run by "
      "`trellis memory`\n"
      "  trellis accuracy instructions profiles/: instruction traces, replayed as `trellis isa "
      "replay` does\n"
      "  trellis accuracy intervals: from one instruction to the next of its kind");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace trellis::cli
