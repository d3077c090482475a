#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/verbs.h"
#include "trainer/report/run_report.h"

namespace trellis::cli {

namespace {

nlohmann::json read_report(std::filesystem::path path) {
  if (std::filesystem::is_directory(path)) path /= "report.json";
  std::ifstream file(path);
  if (!file) throw ConfigError(path.string() + ": no such report; expected a run's folder or its report.json");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(path.string() + ": not JSON: " + error.what());
  }
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  struct Options {
    std::string run;
    bool json = false;
  };
  CLI::App* verb = app.add_subcommand("report", "what a finished run said: breakdown that adds up, memory, coverage");
  auto options = std::make_shared<Options>();
  verb->add_option("run", options->run, "a run's folder or its report.json")->required();
  verb->add_flag("--json", options->json, "the document itself (schema trellis.run_report/1)");
  verb->footer("Example:\n  trellis report nemo_experiments/quickstart/2026-01-01_12-00-00");
  verb->callback([options, &exit_code] {
    const nlohmann::json report = read_report(options->run);
    const std::string text = trainer::print_run_report(report);
    std::cout << (options->json ? report.dump(1) + "\n" : text);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
