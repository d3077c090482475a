#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/kept_runs/kept_runs.h"
#include "analysis/sweep/bound_report.h"
#include "analysis/sweep/measured_rate.h"
#include "base/error.h"
#include "base/files/cache_directory.h"
#include "base/log.h"
#include "base/yaml/yaml.h"
#include "cli/launch/interrupt_watch.h"
#include "cli/launch/load_trainer.h"
#include "cli/launch/supervised_train.h"
#include "cli/options/accept_option.h"
#include "cli/options/fault_texts.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/options/one_process.h"
#include "cli/options/rank_options.h"
#include "cli/output/output_files.h"
#include "cli/output/run_page.h"
#include "cli/verbs/verbs.h"
#include "sim/config/storage_config.h"
#include "traces/report/report_file.h"
#include "traces/report/run_report.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/config/routing_trace.h"
#include "trainer/config/run_config.h"
#include "trainer/files/run/exp_manager.h"
#include "trainer/requests/answer_request.h"
#include "trainer/requests/run_request.h"

namespace trellis::cli {

namespace {

using trainer::AnswerRequest;
using trainer::RunRequest;

int run(const RunRequest& request) { return call_trainer(&trainer::TrainerLibrary::run, request); }

/// The key of a run; none: it is not to be kept.
std::optional<ContentHash> key_of(const CLI::App& verb, const RunRequest& request) {
  // The first ones are in the sources themselves; the others change nothing that a run says.
  static const std::set<std::string> kNeutral = {
      "config",    "overrides", "--instance", "--nodes", "--set",      "--published-only",
      "--threads", "--timeout", "--json",     "--html",  "--no-cache", "--calibration"};
  analysis::RunSources sources{request, {}, {}, analysis::program_binaries()};
  if (!request.calibration.empty()) sources.files.emplace_back(request.calibration);
  if (request.checkpoint_storage.ends_with(".yaml"))
    sources.files.emplace_back(request.checkpoint_storage);
  if (const auto trace = trainer::file_of_routing_trace(request.routing))
    sources.files.push_back(*trace);
  if (request.memory_timeline) sources.options.emplace_back("with memory_timeline.json");
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || kNeutral.contains(option->get_name())) continue;
    sources.options.push_back(option->get_name());
    for (const std::string& word : option->results()) sources.options.push_back(word);
  }
  return analysis::run_key(sources);
}

/// The outputs of a finished run in its folder, which is locked meanwhile.
class Results {
 public:
  Results(const RunRequest& request, const std::string& html)
      : request_(request), files_({{"--html", html}}) {}

  void write_files(const std::filesystem::path& run) {
    files_.write("--html", [&] { return run_page(analysis::read_report_file(run)); });
  }
  /// Last, since a reader of standard output that went away ends the process.
  void print(const std::string& text) const {
    std::cout << text << std::flush;
    files_.finish();
  }
  [[nodiscard]] std::string text_of(const std::string& report) const {
    return request_.json ? report : analysis::print_run_report(nlohmann::json::parse(report));
  }

 private:
  const RunRequest& request_;
  OutputFiles files_;
};

/// Writes the files of an equal run that was kept into this run's folder.
void restore(const analysis::KeptRun& kept, const RunRequest& request, Results& results) {
  const trainer::RunConfig config = trainer::load_run_config(request, {.steps = request.steps});
  const trainer::RunDirectory directory =
      trainer::prepare_run_directory(config, request.command_line);
  kept.write_to(directory.path);
  log_info("run directory: " + directory.path.string());
  log_info("an equal run was kept, nothing is simulated again: --no-cache does that");
  results.write_files(directory.path);
}

int simulate(const CLI::App& verb, RunRequest& request, const std::string& html, bool cached) {
  request.memory_timeline = !html.empty();
  Results results(request, html);
  const analysis::KeptRuns runs(cached ? cache_directory() : std::nullopt);
  const std::optional<ContentHash> key = cached ? key_of(verb, request) : std::nullopt;
  if (const std::optional<analysis::KeptRun> kept = key ? runs.find(*key) : std::nullopt) {
    restore(*kept, request, results);
    results.print(results.text_of(std::string(kept->files().at("report.json"))));
    return 0;
  }
  std::string directory, printed;
  {
    InterruptWatch watch;
    request.began = [&](const std::string& run) {
      directory = run;
      watch.owns([run] { return trainer::remove_run_outputs(run); });
    };
    request.ended = [&](const std::string& text) {
      printed = text;
      if (key) runs.store(*key, directory);
      results.write_files(directory);
    };
    if (const int exit_code = run(request); exit_code != 0) return exit_code;
  }
  results.print(printed);
  return 0;
}

/// `flag` takes the verb's place. Throws ConfigError for an option that neither it nor what names
/// the configuration and the machine has.
void refuse_other_options(const CLI::App& verb, const std::string& flag, const std::string& why,
                          std::set<std::string> known = {}) {
  known.insert({"config", "overrides", "--instance", "--nodes", "--set", "--published-only",
                "--json", flag});
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || known.contains(option->get_name())) continue;
    throw ConfigError(flag + ": " + why + ", so it does not know " + option->get_name() +
                      ": leave one of them out");
  }
}

void print_bounds(const CLI::App& verb, const RunRequest& request) {
  refuse_other_options(verb, "--fast", "simulates nothing");
  const analysis::BoundReport bounds =
      analysis::bound_report(request.config_file, request.overrides, request.instance,
                             request.nodes, request.hardware, request.calibrated);
  std::cout << (request.json ? analysis::bound_json(bounds).dump(1) + "\n"
                             : analysis::bound_text(bounds))
            << std::flush;
}

/// MFU of a throughput that was measured.
void print_measured_rate(const CLI::App& verb, const RunRequest& request, double sequences_per_s) {
  refuse_other_options(verb, "--throughput", "simulates nothing");
  const trainer::RunConfig config = trainer::load_run_config(request, {.steps = request.steps});
  sim::LoadOptions load;
  load.nodes = request.nodes;
  load.overrides = request.hardware;
  load.calibrated = request.calibrated;
  const sim::SystemConfig system = trainer::load_machine(config, request.instance, load);
  trainer::check_fits_machine(config, system);
  const analysis::MeasuredRate rate = analysis::measured_rate(config, system, sequences_per_s);
  std::cout << (request.json ? analysis::measured_rate_json(rate).dump(1) + "\n"
                             : analysis::measured_rate_text(rate))
            << std::flush;
}

/// The option of `simulate --throughput`; 0: it is not given.
std::shared_ptr<double> rate_option(CLI::App& verb) {
  const auto rate = std::make_shared<double>(0);
  verb.add_option("--throughput", *rate,
                  "sequences per second of the whole run that you measured: their MFU, and what "
                  "NxDT's llama_perf_estimate.py says of them, by arithmetic alone. With --json "
                  "schema trellis.measured_rate/1")
      ->check(above_zero());
  return rate;
}

/// The options of `simulate --generate`.
void answer_options(CLI::App& verb, AnswerRequest& request, bool& generates) {
  const auto option = [&](const char* name, std::int64_t& value, const char* what) {
    return verb.add_option(name, value, what)->capture_default_str()->needs("--generate");
  };
  verb.add_flag("--generate", generates,
                "in place of a training step, prefill and one pass of decoding with a cache of "
                "keys and values: time to the first token and per token. With --json schema "
                "trellis.answer_time/1. Exploratory: no published times are compared with it");
  option("--batch", request.batch, "prompts that each data-parallel rank reads together")
      ->check(between(1, 100'000, "all are in memory at once"));
  option("--prompt-tokens", request.prompt_tokens, "of each prompt")
      ->check(between(1, 100'000'000, "more than a sequence has"));
  option("--max-new-tokens", request.max_new_tokens,
         "of each answer; the cache has room for prompt and answer, in steps of 128 tokens")
      ->check(between(2, 100'000'000, "the first one comes with the prompt's pass"));
}

int simulate_answers(const CLI::App& verb, const RunRequest& run, AnswerRequest& request) {
  refuse_other_options(verb, "--generate", "simulates no training step",
                       {"--batch", "--prompt-tokens", "--max-new-tokens", "--threads"});
  static_cast<trainer::RunSource&>(request) = run;
  request.json = run.json;
  return call_trainer(&trainer::TrainerLibrary::answer, request);
}

std::string storages() {
  std::string text;
  for (const std::string& name : sim::storage_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void common_options(CLI::App& verb, RunRequest& request) {
  verb.add_option("config", request.config_file,
                  "NxDT YAML with the sections trainer, exp_manager, distributed_strategy, data, "
                  "model, precision")
      ->required();
  verb.add_option("overrides", request.overrides,
                  "key.path=value, e.g. trainer.max_steps=10 model.num_layers=2");
  request.instance.clear();
  request.nodes = 0;
  verb.add_option("--instance", request.instance,
                  "machine to emulate (see `trellis describe`); none: the configuration's "
                  "`instance`, else trn1.32xlarge");
  verb.add_option("--nodes", request.nodes, "how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb.add_option("--threads", request.host_threads,
                  "ranks that run at the same time on the host; 0: one per host core. Results do "
                  "not depend on it")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a thread"));
  verb.add_option(
          "--trace-format", request.trace_format,
          "perfetto (trace.pftrace), text (trace.txt), kineto (folder trace.kineto: PyTorch's "
          "profiler) or chakra (folder trace.chakra: MLCommons' execution traces)")
      ->capture_default_str()
      ->check(CLI::IsMember({"perfetto", "text", "kineto", "chakra"}));
  verb.add_option(
          "--timeout", request.timeout_s,
          "seconds after which a rank that is missing at a communication is named (exit code 4)")
      ->capture_default_str()
      ->check(above_zero());
  verb.add_flag("--json", request.json,
                "print the report as one JSON document on stdout (schema trellis.run_report/1)");
}

constexpr const char* kMachineFaults =
    "slow:core=RANK@FACTOR (what a rank computes takes FACTOR times as long; without @FACTOR "
    "twice), slow:link=A-B@FACTOR (the links between chips A and B, or one link by its name), "
    "down:link=A-B (they carry nothing: messages go around them)";

/// How many steps, and the machine's numbers.
void model_options(CLI::App& verb, RunRequest& request) {
  verb.add_option("--steps", request.steps, "steps to run; the last one is reported")
      ->capture_default_str()
      ->check(
          between(1, kMostSimulatedSteps, "a step that follows equal ones takes what they take"));
  verb.add_option("--set", request.hardware,
                  "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb.add_flag("--published-only{false}", request.calibrated,
                "leave the machine's fitted numbers out: what documents alone give");
  verb.add_option("--calibration", request.calibration,
                  "also the step time with the factors of this file, which `trellis calibrate` "
                  "fitted to your measurements")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
}

/// How ranks differ, and which of them run.
void rank_options(CLI::App& verb, RunRequest& request) {
  verb.add_option("--slow", request.slow,
                  "a part that is slower than its kind: core:RANK=FACTOR (what the rank computes "
                  "takes FACTOR times as long) or link:NAME=FACTOR "
                  "(a link, named as in the report's list, has 1/FACTOR of its bandwidth)")
      ->type_name("PART=FACTOR")
      ->allow_extra_args(false);
  verb.add_option("--fault", request.faults,
                  std::string("what is wrong with the machine: ") + kMachineFaults)
      ->type_name("FAULT")
      ->allow_extra_args(false);
  verb.add_option("--routing", request.routing,
                  "how the routers of a mixture of experts share the tokens: balanced, zipf:S "
                  "(expert e gets a share in proportion to 1/(e+1)^S), hot:EXPERT=SHARE (of the "
                  "picks) or trace:FILE (layer by layer as in another run: its folder or its "
                  "report.json, as train writes it). Of all ranks alike; expert-parallel ranks "
                  "with other loads are simulated separately")
      ->type_name("ROUTING")
      ->check(not_empty("a routing"));
  verb.add_flag("!--no-fold", request.fold,
                "run every rank (at most 127), where one of those that do the same would be "
                "for all; same figures, later");
  verb.add_flag("!--no-replay", request.replay,
                "execute every micro-batch, where those that only repeat others would be "
                "replayed; same figures, later");
}

/// Where a training begins, and what follows it.
void start_options(CLI::App& verb, RunRequest& request, std::string& init_from) {
  verb.add_flag(
      "--test", request.test,
      "after training, one pass over the test data (trainer.limit_test_batches of it): test_loss");
  verb.add_flag("--resume", request.resume,
                "go on from the newest complete checkpoint of the run's folder "
                "(exp_manager.resume_if_exists), or of the last run of exp_dir/name that saved "
                "one");
  verb.add_option("--init-from", init_from,
                  "start with the weights of this checkpoint, step 0 and a fresh optimizer "
                  "(exp_manager.resume_from_checkpoint with model.weight_init_only)")
      ->type_name("CHECKPOINT")
      ->check(not_empty("a checkpoint"))
      ->excludes("--resume");
}

/// Options of faults and of the restarts after them.
void restart_options(CLI::App& verb, RunRequest& request, RestartOptions& restarts) {
  verb.add_option("--fault", request.faults,
                  "what goes wrong on purpose, once: kill:rank=R@step=S (SIGKILL of the rank's "
                  "process), crash:rank=R@step=S (SIGSEGV), preempt:rank=R@step=S (SIGTERM), "
                  "hang:rank=R@step=S (it never communicates again), oom:rank=R@step=S, "
                  "flip:WEIGHT:rank=R@step=S (a bit of a weight after the update), "
                  "disk:full@step=S (the checkpoint of the step cannot be written); a job that "
                  "torchrun starts again has none. In simulated time, for the whole run: " +
                      std::string(kMachineFaults))
      ->type_name("FAULT")
      ->allow_extra_args(false);
  verb.add_option(
          "--max-restarts", restarts.most,
          "train in a child process, and after a failure (a signal, a rank out of memory, a "
          "hang, an internal error) in another one from the newest complete checkpoint, up "
          "to N times; one that saved nothing new is followed by a pause. Under torchrun "
          "its own option does that")
      ->type_name("N")
      ->check(between(1, kMostRestarts, "a run that fails so often has another problem"));
  verb.add_flag("--elastic", restarts.elastic,
                "each restart has fewer ranks: the largest smaller data-parallel degree that "
                "divides the global batch; the checkpoint is resharded");
  verb.add_option("--attempt", request.attempt)->group("");  // said by --max-restarts to its child
  verb.add_option("--check-replicas", request.check_replicas,
                  "every N steps compare the weights of ranks that hold copies: exit code 5 names "
                  "the weight and the rank whose bits differ")
      ->type_name("N")
      ->check(between(1, kMostSimulatedSteps, "more steps than a run has"));
}

/// Weights that `init_from` names take the place of what the configuration would begin with.
void begin_with(const std::string& init_from, RunRequest& request) {
  if (init_from.empty()) return;
  const YamlDocument document = YamlDocument::load(request.config_file, request.overrides);
  const YamlMap manager = document.root().map("exp_manager");
  const std::string named = manager.raw("resume_from_checkpoint");
  if (!named.empty() && named != "null" && named != init_from)
    log_warning("--init-from " + init_from + ": takes the place of " +
                manager.where("resume_from_checkpoint") + " " + named);
  if (manager.raw("resume_if_exists") == "true")
    log_warning("--init-from " + init_from + ": takes the place of " +
                manager.where("resume_if_exists") + ": no checkpoint of the run's is looked for");
  request.overrides.push_back("exp_manager.resume_from_checkpoint=" + init_from);
  request.overrides.emplace_back("model.weight_init_only=true");
}

void checkpoint_options(CLI::App& verb, RunRequest& request) {
  verb.add_option("--checkpoint-every", request.checkpoint_every,
                  "also what saving a checkpoint every N steps costs, and a restart; none: "
                  "exp_manager.checkpoint_callback_params.every_n_train_steps, with "
                  "--checkpoint-storage")
      ->type_name("N")
      ->check(between(1, kMostSimulatedSteps, "more steps than a run has"));
  verb.add_option("--checkpoint-storage", request.checkpoint_storage,
                  "where they go: " + storages() +
                      " (see `trellis describe storage`), or your own file.yaml; none: nvme. "
                      "--set storage.KEY=VALUE and host.KEY=VALUE change its numbers")
      ->type_name("STORAGE")
      ->check(not_empty("a storage"));
}

}  // namespace

void add_train(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* verb = app.add_subcommand("train", "train a model: real losses and simulated time");
  auto request = std::make_shared<RunRequest>();
  request->command_line = command_line;
  common_options(*verb, *request);
  add_device_options(*verb, *request);
  const auto init_from = std::make_shared<std::string>();
  start_options(*verb, *request, *init_from);
  const AcceptedKeys accepted = add_accept_option(*verb);
  const auto restarts = std::make_shared<RestartOptions>();
  restart_options(*verb, *request, *restarts);
  verb->footer(
      "Examples:\n  trellis train examples/quickstart.yaml\n"
      "  trellis train examples/quickstart.yaml data.train_dir=/path/to/text trainer.max_steps=10\n"
      "  trellis train examples/quickstart.yaml --device cpu\n"
      "  torchrun --nproc-per-node 8 --no-python trellis train examples/quickstart.yaml\n"
      "  trellis train examples/quickstart.yaml exp_manager.create_checkpoint_callback=true "
      "--max-restarts 3\n"
      "Several processes (torchrun, srun, mpirun, an indexed job of Kubernetes) share the ranks "
      "out; "
      "rank 0's writes the files.\n"
      "Files in the run's folder: hparams.yaml, metrics.jsonl, TensorBoard events, trace.pftrace, "
      "report.json, host.json,\n"
      "nemo_log_globalrank-G_localrank-L.txt (what each rank says), nemo_error_log.txt, "
      "lightning_logs.txt (steps).\n"
      "Equal runs write equal bytes, except what knows the host's clock: host.json, the logs, and "
      "the wall times and *_timing scalars of the events.");
  verb->callback([request, init_from, accepted, restarts, &exit_code] {
    std::vector<std::string>& overrides = request->overrides;
    split_faults(request->faults, request->slow);
    if (!request->slow.empty() && request->device != "neuron")
      throw ConfigError("--fault slow and down: they change simulated time, and --device " +
                        request->device + " has none: leave --device at neuron");
    if (request->resume) overrides.emplace_back("exp_manager.resume_if_exists=true");
    begin_with(*init_from, *request);
    add_accepted(accepted, overrides);
    choose_machine(*request);
    if (restarts->elastic && restarts->most == 0)
      throw ConfigError("--elastic: nothing restarts: give --max-restarts N too");
    if (request->attempt > 0) end_with_parent();
    exit_code = restarts->most > 0 ? train_with_restarts(*request, *restarts) : run(*request);
  });
}

void add_simulate(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "simulate",
      "one step of the same trainer in shape-only mode: time, breakdown, memory, trace; any size");
  auto request = std::make_shared<RunRequest>();
  request->command_line = command_line;
  request->shape_only = true;
  request->steps = 1;
  common_options(*verb, *request);
  const auto html = std::make_shared<std::string>();
  verb->add_option("--html", *html,
                   "also one page of the run, which needs no network (see `trellis report`)")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  model_options(*verb, *request);
  const auto cached = std::make_shared<bool>(true);
  verb->add_flag("!--no-cache", *cached,
                 "simulate although an equal run of this program was kept ($TRELLIS_CACHE, the "
                 "last 64), and keep nothing");
  rank_options(*verb, *request);
  checkpoint_options(*verb, *request);
  verb->footer(
      "Examples:\n  trellis simulate examples/llama3_8b_trn1.yaml\n"
      "  trellis simulate examples/llama3_8b_trn1.yaml trainer.num_nodes=16 "
      "data.global_batch_size=512\n"
      "  trellis simulate examples/llama3_8b_trn1.yaml --fast\n"
      "  trellis simulate examples/llama3_8b_trn1.yaml --slow core:3=1.5 --slow "
      "link:node0.chip0.neuron_link_east=4\n"
      "  trellis simulate examples/nxdt/hf_mixtral_8x7b_dropless_config.yaml "
      "distributed_strategy.tensor_model_parallel_size=8 "
      "distributed_strategy.expert_model_parallel_size=8 --routing zipf:1\n"
      "No weights are allocated and no data is read. Ranks of one pipeline stage are equal: one of "
      "them runs, whatever the size of the cluster.");
  const auto fast = std::make_shared<bool>(false);
  verb->add_flag("--fast", *fast,
                 "in milliseconds: what no simulation of the step falls below, time and memory, by "
                 "arithmetic alone (analysis/sweep/bounds.h). With --json schema trellis.bounds/1");
  const auto rate = rate_option(*verb);
  const auto answers = std::make_shared<AnswerRequest>();
  const auto generates = std::make_shared<bool>(false);
  answer_options(*verb, *answers, *generates);
  verb->callback([verb, request, html, cached, fast, rate, answers, generates, &exit_code] {
    refuse_several_processes("simulate");
    split_faults(request->faults, request->slow);
    if (!request->faults.empty())
      throw ConfigError("--fault " + request->faults.front() +
                        ": simulate trains nothing: expected slow:… or down:…; `trellis train` "
                        "has the others");
    choose_machine(*request);
    if (*fast) return print_bounds(*verb, *request);
    if (*rate > 0) return print_measured_rate(*verb, *request, *rate);
    if (*generates) {
      exit_code = simulate_answers(*verb, *request, *answers);
      return;
    }
    exit_code = simulate(*verb, *request, *html, *cached);
  });
}

}  // namespace trellis::cli
