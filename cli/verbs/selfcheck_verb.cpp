#include <chrono>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/selfcheck/sanity_check.h"
#include "base/activity.h"
#include "base/error.h"
#include "cli/verbs/verbs.h"

namespace trellis::cli {

namespace {

std::vector<analysis::SanityCheck> all_checks() {
  std::vector<analysis::SanityCheck> all = analysis::collective_checks();
  for (auto checks :
       {analysis::core_checks(), analysis::bandwidth_checks(), analysis::view_checks()})
    all.insert(all.end(), checks.begin(), checks.end());
  return all;
}

/// A check that throws has failed; the others still run.
analysis::Finding run_one(const analysis::SanityCheck& check) {
  try {
    return check.run();
  } catch (const std::exception& error) {
    return {false, std::string("could not be tried: ") + error.what()};
  }
}

int run(bool json_output) {
  nlohmann::json document = {{"schema", "trellis.selfcheck/1"},
                             {"checks", nlohmann::json::array()}};
  int failed = 0;
  for (const analysis::SanityCheck& check : all_checks()) {
    const Activity activity("trying " + check.id);
    const auto start = std::chrono::steady_clock::now();
    const analysis::Finding finding = run_one(check);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    failed += finding.holds ? 0 : 1;
    if (json_output) {
      document["checks"].push_back({{"id", check.id},
                                    {"claim", check.claim},
                                    {"holds", finding.holds},
                                    {"detail", finding.detail}});
    } else {
      std::cout << fmt::format("{:<6} {:<18} {}\n       {} ({:.1f} s)\n",
                               finding.holds ? "holds" : "FAILS", check.id, check.claim,
                               finding.detail, took)
                << std::flush;
    }
  }
  document["failed"] = failed;
  if (json_output) std::cout << document.dump(1) << "\n";
  if (failed == 0) return 0;
  std::cerr << fmt::format(
      "error: {} of the laws do not hold: the model, or the numbers that TRELLIS_CONFIG_DIR names, "
      "are wrong\n",
      failed);
  return static_cast<int>(ExitCode::kInternal);
}

}  // namespace

void add_selfcheck(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "selfcheck", "physical laws that any machine obeys, tried on the model; less than a minute");
  auto json_output = std::make_shared<bool>(false);
  verb->add_flag("--json", *json_output, "one JSON document (schema trellis.selfcheck/1)");
  verb->footer("Exit code 0: all hold; 1: one does not.\nExample:\n  trellis selfcheck");
  verb->callback([json_output, &exit_code] { exit_code = run(*json_output); });
}

}  // namespace trellis::cli
