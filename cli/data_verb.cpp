#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/interrupt_watch.h"
#include "cli/load_trainer.h"
#include "cli/number_range.h"
#include "cli/verbs.h"
#include "trainer/app/data_request.h"
#include "trainer/data/build_dataset.h"

namespace trellis::cli {
namespace {

using trainer::BuildRequest;
using trainer::DataInspectRequest;

void tokenizer_options(CLI::App& verb, trainer::TokenizerSection& tokenizer) {
  verb.add_option("--tokenizer", tokenizer.library,
                  "byte-level, huggingface, megatron or sentencepiece")
      ->capture_default_str()
      ->check(CLI::IsMember({"byte-level", "huggingface", "megatron", "sentencepiece"}));
  verb.add_option("--type", tokenizer.type,
                  "huggingface: tokenizer.json or its directory; megatron: GPT2BPETokenizer or "
                  "GPTSentencePieceTokenizer");
  verb.add_option("--vocab-file", tokenizer.vocab_file, "GPT2BPETokenizer: vocab.json");
  verb.add_option("--merge-file", tokenizer.merge_file, "GPT2BPETokenizer: merges.txt");
  verb.add_option("--model", tokenizer.model, "SentencePiece: tokenizer.model");
}

/// What `data build` has not finished.
bool remove_partial_files(const std::string& prefix) {
  std::error_code ignored;
  bool removed = false;
  for (const char* extension : {".bin.partial", ".idx.partial"})
    removed = std::filesystem::remove(prefix + extension, ignored) || removed;
  return removed;
}

void add_build(CLI::App& data, int& exit_code) {
  CLI::App* verb = data.add_subcommand("build",
                                       "text or JSONL → a Megatron data set PREFIX.bin + "
                                       "PREFIX.idx; needs no accelerator and no LibTorch");
  auto request = std::make_shared<BuildRequest>();
  verb->add_option("input", request->inputs,
                   "files, or directories of text files; a .jsonl file is one document per line")
      ->required();
  verb->add_option("--output", request->output, "PREFIX")->required();
  tokenizer_options(*verb, request->tokenizer);
  verb->add_option("--json-key", request->json_key, "member of a JSONL line that holds the text")
      ->capture_default_str();
  verb->add_flag("!--no-append-eod", request->append_eod,
                 "do not end each document with the tokenizer's end-of-sequence token");
  verb->add_option("--workers", request->workers,
                   "threads that tokenise; the result does not depend on it")
      ->capture_default_str()
      ->check(between(1, 256, "each is a thread"));
  verb->footer(
      "Example:\n  trellis data build corpus.jsonl --output data/corpus --tokenizer huggingface "
      "--type llama3/tokenizer.json --workers 8");
  verb->callback([request, &exit_code] {
    InterruptWatch watch;
    watch.owns([output = request->output] { return remove_partial_files(output); });
    const trainer::BuildResult result =
        trainer::build_dataset(*request, [](const std::string& line) { log_info(line); });
    std::cout << request->output << ".bin, .idx: " << result.documents << " documents, "
              << result.tokens << " tokens of " << result.type << " from " << result.bytes
              << " bytes; vocabulary " << result.vocab_size;
    if (result.skipped > 0)
      std::cout << "; " << result.skipped
                << " documents left out that are empty or no text, such as "
                << result.first_skipped;
    std::cout << "\n";
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

void add_inspect(CLI::App& data, int& exit_code) {
  CLI::App* verb = data.add_subcommand(
      "inspect",
      "facts of a Megatron data set PREFIX, or what a step of a configuration reads, decoded");
  auto prefix = std::make_shared<std::string>();
  auto json_output = std::make_shared<bool>(false);
  auto request = std::make_shared<DataInspectRequest>();
  auto tokenizer = std::make_shared<trainer::TokenizerSection>();
  verb->add_option("data", *prefix,
                   "PREFIX of PREFIX.bin and PREFIX.idx, or a configuration (.yaml)")
      ->required();
  verb->add_option("overrides", request->overrides, "with a configuration: key.path=value");
  verb->add_option("--step", request->step, "with a configuration: the training step, from 0")
      ->capture_default_str()
      ->check(at_least(0));
  verb->add_option("--consumed-samples", request->consumed_samples,
                   "with a configuration: the run is resumed at --step, and has read that many "
                   "samples; left out: step × global_batch_size")
      ->check(at_least(0));
  verb->add_option("--rank", request->data_parallel_rank,
                   "with a configuration: the data-parallel rank")
      ->capture_default_str()
      ->check(at_least(0));
  verb->add_option("--rows", request->rows, "rows or documents to show")
      ->capture_default_str()
      ->check(at_least(0));
  tokenizer_options(*verb, *tokenizer);
  verb->add_flag("--json", *json_output, "one JSON document on stdout");
  verb->footer(
      "Examples:\n  trellis data inspect data/corpus --tokenizer huggingface --type "
      "llama3/tokenizer.json\n"
      "  trellis data inspect examples/quickstart.yaml --step 10");
  verb->callback([=, &exit_code] {
    if (prefix->ends_with(".yaml") || prefix->ends_with(".yml")) {
      request->config_file = *prefix;
      request->json = *json_output;
      exit_code = call_trainer<trellis_data_inspect_fn>("trellis_data_inspect", request.get());
      return;
    }
    // Without --tokenizer the ids stay ids: a guess would print nonsense.
    const bool decode = verb->count("--tokenizer") > 0;
    const trainer::DatasetFacts facts =
        trainer::inspect_dataset(*prefix, decode ? tokenizer.get() : nullptr, request->rows);
    std::cout << (*json_output ? facts.json().dump(1) : facts.text()) << "\n";
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "make and look at training data");
  data->require_subcommand(1);
  add_build(*data, exit_code);
  add_inspect(*data, exit_code);
}

}  // namespace trellis::cli
