#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/launch/interrupt_watch.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/number_range.h"
#include "cli/verbs/verbs.h"
#include "trainer/files/data/build_dataset.h"
#include "trainer/requests/data_request.h"

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

/// Removes the files that `data build` has not finished. Returns true if there was one.
bool remove_partial_files(const std::string& output) {
  std::error_code ignored;
  bool removed = false;
  for (const char* rest : {".bin.partial", ".idx.partial", "/data-00000-of-00001.arrow.partial"})
    removed = std::filesystem::remove(output + rest, ignored) || removed;
  return removed;
}

struct BuildForm {
  std::string format = "megatron", truncation = "keep_start";
};

void arrow_options(CLI::App& verb, BuildRequest& request, BuildForm& form) {
  verb.add_option("--format", form.format,
                  "megatron: PREFIX.bin and PREFIX.idx; arrow: a folder of pre-tokenised rows, as "
                  "datasets' save_to_disk writes it, with input_ids, attention_mask and labels")
      ->capture_default_str()
      ->check(CLI::IsMember({"megatron", "arrow"}));
  verb.add_option("--sequence-length", request.sequence_length,
                  "arrow: tokens of a row, as model.encoder_seq_length")
      ->check(between(2, 1 << 24, "each is a token"));
  verb.add_flag("--records", request.records,
                "arrow: the input holds records of supervised fine-tuning (.jsonl, .json, .arrow, "
                ".parquet); each is a row whose labels are its answers' tokens");
  verb.add_option("--truncation-mode", form.truncation,
                  "arrow, of records longer than a row: keep_start or keep_end")
      ->capture_default_str()
      ->check(CLI::IsMember({"keep_start", "keep_end"}))
      ->needs("--records");
}

void check_form(const BuildRequest& request, const BuildForm& form) {
  const bool arrow = form.format == "arrow";
  if (arrow && request.sequence_length == 0)
    throw ConfigError(
        "--sequence-length: missing: expected the tokens of a row, which are those of "
        "model.encoder_seq_length, such as 4096");
  for (const auto& [given, option] : {std::pair(request.sequence_length > 0, "--sequence-length"),
                                      std::pair(request.records, "--records")}) {
    if (!arrow && given)
      throw ConfigError(std::string(option) +
                        ": is for rows of one length, which a Megatron data set does not have: "
                        "leave it out, or add --format arrow");
  }
}

void add_build(CLI::App& data, int& exit_code) {
  CLI::App* verb = data.add_subcommand("build",
                                       "text or JSONL → a Megatron data set PREFIX.bin + "
                                       "PREFIX.idx, or a pre-tokenised folder of Hugging Face");
  auto request = std::make_shared<BuildRequest>();
  auto form = std::make_shared<BuildForm>();
  verb->add_option("input", request->inputs,
                   "files, or directories of text files; a .jsonl file is one document per line")
      ->required();
  verb->add_option("--output", request->output, "PREFIX, or the folder of --format arrow")
      ->required();
  arrow_options(*verb, *request, *form);
  tokenizer_options(*verb, request->tokenizer);
  verb->add_option("--json-key", request->json_key, "member of a JSONL line that holds the text")
      ->capture_default_str()
      ->excludes("--records");
  verb->add_flag("!--no-append-eod", request->append_eod,
                 "do not end each document with the tokenizer's end-of-sequence token")
      ->excludes("--records");
  verb->add_option("--workers", request->workers,
                   "threads that tokenise; the result does not depend on it")
      ->capture_default_str()
      ->check(between(1, 256, "each is a thread"));
  verb->footer(
      "Example:\n  trellis data build corpus.jsonl --output data/corpus --tokenizer huggingface "
      "--type llama3/tokenizer.json --workers 8\n"
      "  trellis data build answers.jsonl --format arrow --records --sequence-length 4096 --output "
      "data/answers --tokenizer huggingface --type llama3");
  verb->callback([request, form, &exit_code] {
    check_form(*request, *form);
    request->keep_end = form->truncation == "keep_end";
    InterruptWatch watch;
    watch.owns([output = request->output] { return remove_partial_files(output); });
    if (form->format == "arrow") {
      exit_code = call_trainer(&trainer::TrainerLibrary::build_data, *request);
      return;
    }
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
      exit_code = call_trainer(&trainer::TrainerLibrary::inspect_data, *request);
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
