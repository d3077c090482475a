#include "analysis/accuracy/training_run.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/files/cache_file.h"
#include "base/process/child_process.h"
#include "base/process/parallel_for.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "traces/report/step_view.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/step_place.h"
#include "trainer/files/run/exp_manager.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSchema = "trellis.accuracy_result/3";

std::string read_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// A rebuilt program predicts again.
void add_program(ContentHasher& hasher, const fs::path& program) {
  const fs::path libraries = program.parent_path().parent_path() / "lib";
  for (const fs::path& file :
       {program, libraries / "libtrellis_trainer.so", libraries / "libtrellis_neuron.so"}) {
    std::error_code absent;
    const auto size = fs::file_size(file, absent);
    if (absent) continue;
    hasher.value(size);
    hasher.value(fs::last_write_time(file).time_since_epoch().count());
  }
}

sim::SystemConfig machine_of(const TrainingRun& run, const TrainingRequest& request,
                             const trainer::RunCheck& check) {
  sim::LoadOptions load;
  load.nodes = run.nodes;
  load.overrides = request.hardware;
  load.calibrated = request.calibrated;
  if (check.problems.empty()) {
    load.logical_core_size = check.config.trainer.lnc;
    load.software = check.config.software;
  }
  return sim::load_system(run.row.instance, load);
}

/// Everything that a simulated step depends on.
ContentHash key_of(const TrainingRun& run, const TrainingRequest& request,
                   const trainer::RunCheck& check, const sim::SystemConfig& machine) {
  ContentHasher hasher;
  hasher.text(check.problems.empty() ? check.config.resolved_yaml : read_file(run.config));
  for (const std::string& text : run.overrides) hasher.text(text);
  hasher.text(run.row.instance);
  hasher.value(run.nodes);
  for (const sim::Parameter& parameter : machine.parameters) {
    hasher.text(parameter.key);
    hasher.text(parameter.value);
  }
  add_program(hasher, request.program);
  return hasher.finish();
}

std::vector<std::string> command_of(const TrainingRun& run, const TrainingRequest& request,
                                    const fs::path& folder) {
  const auto cores = static_cast<unsigned>(host_cores());
  std::vector<std::string> command = {"simulate", run.config.string()};
  command.insert(command.end(), run.overrides.begin(), run.overrides.end());
  command.push_back("exp_manager.explicit_log_dir=" + (folder / "run").string());
  for (const std::string& word :
       {std::string("--instance"), run.row.instance, std::string("--nodes"),
        std::to_string(run.nodes), std::string("--threads"),
        std::to_string(std::max(1U, cores / static_cast<unsigned>(request.jobs))),
        std::string("--json"), std::string("--no-cache")}) {
    command.push_back(word);
  }
  for (const std::string& number : request.hardware)
    command.insert(command.end(), {"--set", number});
  if (!request.calibrated) command.emplace_back("--published-only");
  return command;
}

/// The text after the last "error: ", or else the last lines.
std::string error_text(const std::string& err, int exit_code) {
  constexpr std::size_t kMost = 700;
  const std::size_t at = err.rfind("error: ");
  std::string text = at == std::string::npos ? err : err.substr(at + 7);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kMost)
    text = at == std::string::npos ? "…" + text.substr(text.size() - kMost)
                                   : text.substr(0, kMost) + "…";
  return text.empty() ? fmt::format("ended with {} and said nothing", exit_code) : text;
}

/// Without the optimizer.
MicroBatchTime micro_batch_of(const json& report) {
  const json breakdown = report.value("simulated", json::object()).value("breakdown", json());
  if (!breakdown.is_array() || breakdown.empty()) return {};
  const auto seconds = [&](const char* part) {
    return busiest_rank(breakdown).value(part, std::int64_t{0}) * 1e-12 /
           report.at("num_microbatches").get<double>();
  };
  return {.device = seconds("total_ps") - seconds("optimizer_ps") - seconds("host_ps") -
                    seconds("launch_ps") - seconds("bubble_ps"),
          .idle = seconds("host_ps") + seconds("launch_ps")};
}

Prediction read_report(const std::string& text) {
  Prediction prediction;
  try {
    const json report = json::parse(text);
    prediction.micro_batch = micro_batch_of(report);
    prediction.simulated.seconds = report.at("step_time_ms").get<double>() * 1e-3;
    prediction.parameters = report.at("parameters").get<std::int64_t>();
    prediction.mfu = report.at("mfu").get<double>();
    if (report.contains("simulated"))
      prediction.parts = parts_of(view_step(report.at("simulated")));
  } catch (const json::exception& error) {
    prediction.exit_code = static_cast<int>(ExitCode::kInternal);
    prediction.error = std::string("its report is not trellis.run_report/1: ") + error.what();
  }
  return prediction;
}

std::optional<Prediction> kept_result(const fs::path& file, const ContentHash& key) {
  const std::optional<std::string> text = read_cache_file(file, kSchema, key);
  if (!text) return std::nullopt;
  const json document = json::parse(*text);
  Prediction prediction;
  prediction.simulated.seconds = document.value("step_s", 0.0);
  prediction.micro_batch = {document.value("micro_batch_device_s", 0.0),
                            document.value("micro_batch_idle_s", 0.0)};
  prediction.parameters = document.value("parameters", std::int64_t{0});
  prediction.mfu = document.value("mfu", 0.0);
  prediction.parts = {document.value("compute_s", 0.0), document.value("communication_s", 0.0)};
  prediction.host_s = document.value("host_s", 0.0);
  prediction.kept = true;
  return prediction;
}

Prediction simulate_one(const TrainingRun& run, const TrainingRequest& request,
                        const ContentHash& key) {
  const fs::path folder = request.results / run.row.id,
                 result = folder / (key.to_string() + ".cache");
  if (auto kept = kept_result(result, key)) return *kept;
  fs::create_directories(folder);
  trainer::remove_run_outputs(folder /
                              "run");  // of a simulation that was cut off, or of another key
  const auto start = std::chrono::steady_clock::now();
  int exit_code = 0;
  {
    const OutputFile out(folder / "stdout.json"), err(folder / "stderr.txt");
    exit_code = wait_for(start_child({.program = request.program,
                                      .arguments = command_of(run, request, folder),
                                      .out = out.descriptor(),
                                      .err = err.descriptor()}));
  }
  Prediction prediction;
  if (exit_code == 0) {
    prediction = read_report(read_file(folder / "stdout.json"));
  } else {
    prediction.exit_code = exit_code;
    prediction.error = error_text(read_file(folder / "stderr.txt"), exit_code);
  }
  prediction.host_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!prediction.error.empty()) return prediction;
  const json document = {{"step_s", prediction.simulated.seconds},
                         {"micro_batch_device_s", prediction.micro_batch.device},
                         {"micro_batch_idle_s", prediction.micro_batch.idle},
                         {"parameters", prediction.parameters},
                         {"mfu", prediction.mfu},
                         {"host_s", prediction.host_s},
                         {"compute_s", prediction.parts.compute_s},
                         {"communication_s", prediction.parts.communication_s}};
  write_cache_file(result, kSchema, key, document.dump());
  return prediction;
}

Prediction predict_one(const TrainingRun& run, TrainingRequest request) {
  const trainer::RunCheck check =
      trainer::check_run_config(run.config.string(), run.overrides, run.row.instance);
  if (check.problems.empty() && check.config.software == sim::kNoSoftware) {
    // A request is of all rows, and numbers of a software are of those that have one.
    std::erase_if(request.hardware, [](const std::string& number) {
      return number.starts_with(sim::kSoftwarePrefix);
    });
  }
  const sim::SystemConfig machine = machine_of(run, request, check);
  Prediction prediction = simulate_one(run, request, key_of(run, request, check, machine));
  prediction.simulated.software = machine.software;
  prediction.step_s = prediction.simulated.seconds;
  return prediction;
}

std::optional<MicroBatchTime> read_telemetry(const YamlMap& row) {
  if (row.keys().empty()) return std::nullopt;
  const MicroBatchTime time{row.required<double>("device_s"), row.required<double>("idle_s")};
  row.reject_unknown();
  return time;
}

}  // namespace

std::vector<TrainingRun> read_training_runs() {
  const PublishedRows published = read_published_rows("training");
  std::vector<TrainingRun> runs;
  for (const PublishedRow& row : published.rows) {
    TrainingRun run{row,
                    published_directory() / row.spec.required<std::string>("config"),
                    {},
                    row.spec.required<int>("nodes"),
                    row.spec.required<std::string>("path"),
                    row.spec.required<std::string>("family"),
                    read_telemetry(row.spec.map("telemetry"))};
    run.overrides = row.spec.get<std::vector<std::string>>("overrides", {});
    const auto grade = row.spec.required<std::string>("grade");
    if (grade != "A" && grade != "B")
      row.spec.problem("grade", "expected A or B, got \"" + grade + "\"");
    if (run.nodes < 1 && row.spec.has("nodes")) row.spec.problem("nodes", "must be at least 1");
    row.spec.reject_unknown();
    runs.push_back(std::move(run));
  }
  published.document.problems().throw_if_any();
  return runs;
}

std::vector<Prediction> predict(
    const std::vector<TrainingRun>& runs, const TrainingRequest& request,
    const std::function<void(const TrainingRun&, const Prediction&)>& done) {
  std::vector<Prediction> predictions(runs.size());
  std::mutex telling;
  parallel_for(runs.size(), static_cast<std::size_t>(std::max(1, request.jobs)),
               [&](std::size_t i) {
                 try {
                   predictions[i] = predict_one(runs[i], request);
                 } catch (const Error& error) {
                   predictions[i].exit_code = static_cast<int>(error.code());
                   predictions[i].error = error.what();
                 } catch (const std::exception& error) {
                   predictions[i].exit_code = static_cast<int>(ExitCode::kInternal);
                   predictions[i].error = error.what();
                 }
                 const std::lock_guard lock(telling);
                 done(runs[i], predictions[i]);
               });
  return predictions;
}

}  // namespace trellis::analysis
