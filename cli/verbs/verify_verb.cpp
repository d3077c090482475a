#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/machine.h"
#include "cli/options/number_range.h"
#include "cli/options/rank_options.h"
#include "cli/options/shard_of_launch.h"
#include "cli/verbs/verbs.h"
#include "trainer/requests/verify_request.h"

namespace trellis::cli {

using trainer::VerifyRequest;

namespace {

constexpr const char* kJson =
    "print the result as one JSON document on stdout (schema trellis.verify/1)";

void add_verify_merge(CLI::App& verb, int& exit_code) {
  CLI::App* merge = verb.add_subcommand("merge", "one result from the journals of all shards");
  auto request = std::make_shared<VerifyRequest>();
  merge
      ->add_option("folders", request->merge,
                   "folders that `trellis verify --shard i/n --out` wrote")
      ->required();
  merge->add_flag("--json", request->json, kJson);
  merge->callback([request, &exit_code] {
    exit_code = call_trainer(&trainer::TrainerLibrary::verify, *request);
  });
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "verify",
      "does every layout compute what one rank computes: losses, each gradient, norms, weights");
  auto request = std::make_shared<VerifyRequest>();
  request->instance.clear();
  verb->add_option("config", request->config_file,
                   "NxDT YAML; make the model small with overrides, its layers stay what they are");
  verb->add_option("overrides", request->overrides,
                   "key.path=value, e.g. model.num_layers=4 model.hidden_size=64");
  verb->add_option("--layouts", request->layouts,
                   "all, or a list: TP2.PP2.SP,DP8 chooses the layouts that have TP 2, PP 2 and "
                   "sequence parallelism, and those with DP 8")
      ->capture_default_str();
  verb->add_option("--ranks", request->ranks, "ranks of each layout: TP × PP × DP")
      ->capture_default_str()
      ->check(between(1, kMostThreads, "each is a thread"));
  verb->add_option("--steps", request->steps, "training steps to compare")
      ->capture_default_str()
      ->check(between(1, 100'000, "each is executed by every layout"));
  verb->add_option("--tolerance", request->tolerance, "largest relative difference in fp64")
      ->capture_default_str()
      ->check(above_zero());
  add_rank_options(*verb, *request,
                   "of the ranks of a layout; the one rank that they are compared with is on the "
                   "CPU: ");
  verb->add_option("--seed-bug", request->seed_bug,
                   "put a known mistake into each layout that can show it: the command must then "
                   "fail (an unknown name lists all)");
  add_part_options(*verb, request->shard, request->out);
  verb->add_flag("--json", request->json, kJson);
  verb->require_subcommand(0, 1);
  add_verify_merge(*verb, exit_code);
  verb->footer(
      "Examples:\n  trellis verify examples/quickstart.yaml --ranks 4\n  trellis verify "
      "examples/quickstart.yaml --layouts TP2.PP2 --ranks 8\n"
      "  trellis verify examples/quickstart.yaml --ranks 2 --seed-bug samples-overlap\n"
      "  trellis verify examples/quickstart.yaml --ranks 4 --device neuron\n"
      "  trellis verify CONFIG --shard $SLURM_ARRAY_TASK_ID/8 --out part$SLURM_ARRAY_TASK_ID; "
      "trellis verify merge part*\n"
      "Runs in fp64 and then in the configured precision with a tolerance derived from one rank's "
      "own rounding.\n"
      "Exit code 0: all equal; 5: one differs, and the first wrong tensor and its layer are "
      "named.");
  verb->callback([verb, request, &exit_code] {
    if (!verb->get_subcommands().empty()) return;
    if (request->config_file.empty())
      throw ConfigError(
          "which configuration? Expected `trellis verify CONFIG`, or `trellis verify merge DIR…`");
    take_shard_of_launch("verify", request->shard, request->out);
    request->instance =
        machine_of(request->config_file, request->overrides, {request->instance, 1}).instance;
    exit_code = call_trainer(&trainer::TrainerLibrary::verify, *request);
  });
}

}  // namespace trellis::cli
