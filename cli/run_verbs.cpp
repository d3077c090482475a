#include <memory>

#include <CLI/CLI.hpp>

#include "cli/load_trainer.h"
#include "cli/not_empty.h"
#include "cli/run_page.h"
#include "cli/verbs.h"
#include "trainer/app/run_request.h"

namespace trellis::cli {

namespace {

using trainer::RunRequest;

int run(const RunRequest& request) { return load_trainer<trellis_trainer_run_fn>("trellis_trainer_run")(&request); }

int run_with_page(RunRequest& request, const std::string& html) {
  std::string directory;
  request.run_directory = &directory;
  const int exit_code = run(request);
  if (exit_code == 0) write_run_page(trainer::read_report_file(directory), html);
  return exit_code;
}

void common_options(CLI::App& verb, RunRequest& request) {
  verb.add_option("config", request.config_file, "NxDT YAML with the sections trainer, exp_manager, distributed_strategy, data, model, precision")->required();
  verb.add_option("overrides", request.overrides, "key.path=value, e.g. trainer.max_steps=10 model.num_layers=2");
  verb.add_option("--instance", request.instance, "machine to emulate (see `trellis describe`)")->capture_default_str();
  verb.add_option("--nodes", request.nodes, "how many of them")->capture_default_str()->check(CLI::PositiveNumber);
  verb.add_option("--threads", request.host_threads, "ranks that run at the same time on the host; 0: one per host core. Results do not depend on it")
      ->capture_default_str()->check(CLI::NonNegativeNumber);
  verb.add_option("--trace-format", request.trace_format, "perfetto (trace.pftrace) or text (trace.txt)")
      ->capture_default_str()->check(CLI::IsMember({"perfetto", "text"}));
  verb.add_option("--timeout", request.timeout_s, "seconds after which a rank that is missing at a communication is named (exit code 4)")
      ->capture_default_str()->check(CLI::PositiveNumber);
  verb.add_flag("--json", request.json, "print the report as one JSON document on stdout (schema trellis.run_report/1)");
}

}  // namespace

void add_train(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* verb = app.add_subcommand("train", "train a model: real losses beside simulated time");
  auto request = std::make_shared<RunRequest>();
  request->command_line = command_line;
  common_options(*verb, *request);
  verb->add_option("--device", request->device, "neuron (emulated) or cpu")->capture_default_str()->check(CLI::IsMember({"neuron", "cpu"}));
  verb->add_flag("--test", request->test, "after training, one pass over the test data (trainer.limit_test_batches of it): test_loss");
  verb->footer("Examples:\n  trellis train examples/quickstart.yaml\n"
               "  trellis train examples/quickstart.yaml data.train_dir=/path/to/text trainer.max_steps=10\n"
               "  trellis train examples/quickstart.yaml --device cpu\n"
               "Files in the run's folder: hparams.yaml, metrics.jsonl, TensorBoard events, trace.pftrace, report.json,\n"
               "nemo_log_globalrank-G_localrank-L.txt (what each rank says), nemo_error_log.txt, lightning_logs.txt (steps).");
  verb->callback([request, &exit_code] { exit_code = run(*request); });
}

void add_simulate(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* verb = app.add_subcommand("simulate", "one step of the same trainer in shape-only mode: time, breakdown, memory, trace; any size");
  auto request = std::make_shared<RunRequest>();
  request->command_line = command_line;
  request->shape_only = true;
  request->steps = 1;
  common_options(*verb, *request);
  const auto html = std::make_shared<std::string>();
  verb->add_option("--html", *html, "also one page of the run, which needs no network (see `trellis report`)")->type_name("FILE")->check(not_empty("a file name"));
  verb->add_option("--steps", request->steps, "steps to run; the last one is reported")->capture_default_str()->check(CLI::PositiveNumber);
  verb->add_option("--set", request->hardware, "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")->type_name("KEY=VALUE")->allow_extra_args(false);
  verb->add_flag("--published-only{false}", request->calibrated, "leave the machine's fitted numbers out: what documents alone give");
  verb->add_option("--slow", request->slow, "a part that is slower than its kind: core:RANK=FACTOR (what the rank computes takes FACTOR times as long) or link:NAME=FACTOR "
                   "(a link, named as in the report's list, has 1/FACTOR of its bandwidth)")
      ->type_name("PART=FACTOR")->allow_extra_args(false);
  verb->add_flag("!--no-fold", request->fold, "run every rank (at most 127), where one of those that do the same would stand for all; same figures, later");
  verb->add_flag("!--no-replay", request->replay, "execute every micro-batch, where those that only repeat others would be replayed; same figures, later");
  verb->footer("Examples:\n  trellis simulate examples/llama3_8b_trn1.yaml\n"
               "  trellis simulate examples/llama3_8b_trn1.yaml --nodes 16 trainer.num_nodes=16 data.global_batch_size=512\n"
               "  trellis simulate examples/llama3_8b_trn1.yaml --slow core:3=1.5 --slow link:node0.chip0.neuron_link_east=4\n"
               "No weights are allocated and no data is read. Ranks of one pipeline stage are equal: one of them runs, whatever the size of the cluster.");
  verb->callback([request, html, &exit_code] { exit_code = html->empty() ? run(*request) : run_with_page(*request, *html); });
}

}  // namespace trellis::cli
