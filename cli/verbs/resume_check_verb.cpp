#include <cstdlib>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/launch/interrupt_watch.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/options/one_process.h"
#include "cli/options/rank_options.h"
#include "cli/verbs/verbs.h"
#include "trainer/requests/resume_check_request.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;
using trainer::ResumeCheckRequest;

/// For checkpoints that no one asked to keep; removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "trellis_resume_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ExitCode::kOutput, name +
                                         ": no folder can be made there for the checkpoints; "
                                         "name another one with --folder");
    path_ = name;
  }
  ~ScratchFolder() { remove(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  static bool remove(const std::string& path) {
    std::error_code ignored;
    const auto removed = fs::remove_all(path, ignored);
    return removed > 0 && removed != static_cast<std::uintmax_t>(-1);
  }

 private:
  std::string path_;
};

int check(ResumeCheckRequest& request) {
  InterruptWatch watch;
  std::unique_ptr<ScratchFolder> scratch;
  if (request.folder.empty()) {
    scratch = std::make_unique<ScratchFolder>();
    request.folder = scratch->path();
    watch.owns([folder = request.folder] { return ScratchFolder::remove(folder); });
  }
  return call_trainer(&trainer::TrainerLibrary::resume_check, request);
}

void add_options(CLI::App& verb, ResumeCheckRequest& request) {
  verb.add_option("config", request.config_file, "NxDT YAML; make the model small with overrides")
      ->required();
  verb.add_option("overrides", request.overrides,
                  "key.path=value, e.g. model.num_layers=4 data.num_workers=4");
  verb.add_option("--steps", request.steps, "of the run")
      ->capture_default_str()
      ->check(between(2, 1'000'000, "each is executed twice"));
  verb.add_option("--cut", request.cuts,
                  "steps after which the run is stopped, saved, and resumed: 13,27")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  verb.add_option("--after-cut", request.after_cut,
                  "key.path=value of the runs that go on, e.g. another layout: then the samples of "
                  "each global batch are compared, and how near losses, weights and states are")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb.add_option("--tolerance", request.tolerance,
                  "largest relative difference in another layout; none: 1e-10 in fp64, 1e-4 in "
                  "fp32, else 0.05")
      ->check(above_zero());
  verb.add_option("--folder", request.folder,
                  "keep the checkpoints there (a new folder, or s3://bucket/prefix); none: they "
                  "are removed")
      ->check(not_empty("a folder"));
  add_rank_options(verb, request);
  verb.add_option("--seed-bug", request.seed_bug,
                  "put a known mistake in after each cut: the command must then fail (an unknown "
                  "name lists all)");
  verb.add_flag("--json", request.json,
                "print the result as one JSON document on stdout (schema trellis.resume_check/1)");
}

}  // namespace

void add_resume_check(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "resume-check", "does a run that is cut and resumed compute what it computes without a cut");
  auto request = std::make_shared<ResumeCheckRequest>();
  request->instance.clear();
  add_options(*verb, *request);
  verb->footer(
      "Examples:\n  trellis resume-check examples/quickstart.yaml --steps 40 --cut 13,27\n"
      "  trellis resume-check examples/quickstart.yaml --after-cut trainer.devices=4 "
      "precision.type=fp64\n"
      "  trellis resume-check examples/quickstart.yaml --seed-bug moments-restart\n"
      "Runs once without interruption and once with the cuts. After every step and at every cut "
      "it compares hashes of weights,\nmasters, optimizer states and moving averages, and step, "
      "schedule, random state, samples, callbacks, losses and norms.\n"
      "Exit code 0: all equal; 5: the first difference is named with its step, item, rank and "
      "tensor.");
  verb->callback([request, &exit_code] {
    refuse_several_processes("resume-check");
    request->instance =
        machine_of(request->config_file, request->overrides, {request->instance, 1}).instance;
    exit_code = check(*request);
  });
}

}  // namespace trellis::cli
