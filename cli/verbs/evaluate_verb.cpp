#include <memory>

#include <CLI/CLI.hpp>

#include "cli/launch/interrupt_watch.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/accept_option.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/options/one_process.h"
#include "cli/options/rank_options.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "trainer/requests/evaluate_request.h"

namespace trellis::cli {
namespace {

using trainer::EvaluateRequest;

void add_answers(CLI::App& verb, EvaluateRequest& request) {
  verb.add_option("--answers", request.answers,
                  "JSON file for prompt, prediction and label of each record")
      ->check(not_empty("a file"));
  verb.add_option("--max-new-tokens", request.max_new_tokens, "of an answer")
      ->capture_default_str()
      ->check(between(1, 1'000'000, "each is a pass over the model"));
  verb.add_option("--temperature", request.temperature, "0: greedy; above: sampled")
      ->capture_default_str()
      ->check(real_between(0, 100, "from 0 to 100"));
  verb.add_option("--top-k", request.top_k, "sample among the K likeliest tokens; 0: all")
      ->capture_default_str()
      ->check(between(0, 10'000'000, "tokens of a vocabulary"));
  verb.add_option("--top-p", request.top_p,
                  "sample among the fewest tokens that have this share of probability")
      ->capture_default_str()
      ->check(real_between(1e-9, 1, "above 0, up to 1"));
  verb.add_option("--seed", request.seed, "of sampling; the layout does not change the answers")
      ->capture_default_str();
}

void add_options(CLI::App& verb, EvaluateRequest& request) {
  verb.add_option("config", request.config_file, "NxDT YAML of the model")->required();
  verb.add_option("overrides", request.overrides,
                  "key.path=value, e.g. distributed_strategy.tensor_model_parallel_size=2");
  verb.add_option("--data", request.data,
                  "records: .jsonl, .json, .arrow, .parquet or a folder of them, with the columns "
                  "of supervised fine-tuning")
      ->required()
      ->check(not_empty("a file"));
  verb.add_option("--checkpoint", request.checkpoint,
                  "a checkpoint, a folder of which the newest one is taken, or a Hugging Face "
                  "folder; none: exp_manager.resume_from_checkpoint");
  verb.add_option("--metrics", request.metrics,
                  "loss (and perplexity, of the answers' tokens), exact_match, rouge: all that are "
                  "asked for")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"loss", "exact_match", "rouge"}));
  add_answers(verb, request);
  verb.add_option("--limit", request.limit, "the first N records only; 0: all")
      ->capture_default_str()
      ->check(between(0, 1'000'000'000, "records"));
  verb.add_option("--batch", request.batch,
                  "records that a rank reads together; 0: data.micro_batch_size")
      ->capture_default_str()
      ->check(between(0, 100'000, "all are in memory at once"));
  add_rank_options(verb, request);
  verb.add_flag("--json", request.json,
                "print the result as one JSON document on stdout (schema trellis.evaluate/1)");
}

}  // namespace

void add_evaluate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "evaluate", "how good a model is on a file: loss and perplexity, exact match, ROUGE");
  auto request = std::make_shared<EvaluateRequest>();
  request->instance.clear();
  add_options(*verb, *request);
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->footer(
      "Examples:\n  trellis evaluate sft.yaml --data held_out.jsonl --checkpoint "
      "runs/sft/checkpoints\n"
      "  trellis evaluate sft.yaml --data held_out.jsonl --checkpoint models/Llama-3.2-1B "
      "--metrics exact_match,rouge --answers answers.json\n"
      "A record's last answer is compared with what the model says after its prompt. Answers are "
      "decoded with keys and values\nkept (TP, PP and DP; the layout does not change them), and "
      "end with the tokenizer's end-of-sequence token, with those of\ngeneration_config.json and "
      "with the one that ends the answers of chats.\nExit code 0: evaluated, whatever the numbers "
      "are; 2: configuration, checkpoint or records are wrong.");
  verb->callback([request, accepted, &exit_code] {
    add_accepted(accepted, request->overrides);
    refuse_several_processes("evaluate");
    request->instance =
        machine_of(request->config_file, request->overrides, {request->instance, 1}).instance;
    const InterruptWatch watch;
    OutputFiles files({{"--answers", request->answers}});
    request->answered = [&files](const std::string& text) {
      files.write("--answers", [&] { return text; });
    };
    exit_code = call_trainer(&trainer::TrainerLibrary::evaluate, *request);
    files.finish();
  });
}

}  // namespace trellis::cli
