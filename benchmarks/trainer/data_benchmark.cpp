#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/files/data/alignment/alignment_samples.h"
#include "trainer/files/data/megatron/indexed_dataset_builder.h"
#include "trainer/files/data/text_files.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"
#include "trainer/files/data/tokenizers/word_scanner.h"

/// How fast data become micro-batches, on one core. Bars: BPE ≥ 50 MB/s of text, .bin ≥ 2 M
/// tokens/s, JSON lines ≥ 20,000 records/s of 512 tokens, their first record within 2 s of 1 GB.
namespace trellis::benchmarks {
namespace {

namespace fs = std::filesystem;

/// Whole files of the Python standard library, some 20 MB. The tokenizer is trained on every fourth
/// of them.
const trainer::TextFiles& corpus() {
  static const trainer::TextFiles files = [] {
    trainer::TextFiles all = trainer::read_python_library(std::getenv("PATH"));
    std::size_t bytes = 0, count = 0;
    while (count < all.documents.size() && bytes < 20'000'000)
      bytes += all.documents[count++].size();
    all.documents.resize(count);
    return all;
  }();
  return files;
}

/// The folder of a Hugging Face tokenizer of 32,000 tokens, trained once for each build folder by
/// the `tokenizers` package.
std::string trained_tokenizer(const std::string& name, const std::string& pattern) {
  const fs::path folder = fs::path(TRELLIS_BUILD_DIR) / ("tokenizer_" + name);
  if (fs::exists(folder / "tokenizer_config.json")) return folder.string();
  fs::create_directories(folder);
  const fs::path pattern_file = folder / "pattern.txt";
  std::ofstream(pattern_file) << pattern;
  const std::string command = TRELLIS_SOURCE_DIR "/.venv/bin/python " TRELLIS_SOURCE_DIR
                                                 "/benchmarks/trainer/train_tokenizer.py " +
                              pattern_file.string() + " " + folder.string();
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return folder.string();
}

void encode(benchmark::State& state, const trainer::TokenizerSection& section) {
  std::int64_t bytes = 0, tokens = 0;
  std::vector<std::int32_t> ids;
  for (auto _ : state) {
    state.PauseTiming();
    const auto tokenizer = trainer::make_tokenizer(section);  // has seen no word yet
    state.ResumeTiming();
    for (const std::string& document : corpus().documents) {
      ids.clear();
      tokenizer->encode(document, ids);
      bytes += static_cast<std::int64_t>(document.size());
      tokens += static_cast<std::int64_t>(ids.size());
    }
  }
  state.SetBytesProcessed(bytes);
  state.counters["bytes_per_token"] = static_cast<double>(bytes) / static_cast<double>(tokens);
}

void encode_bpe(benchmark::State& state, const char* name, const char* pattern) {
  encode(state, {"huggingface", trained_tokenizer(name, pattern), "", "", ""});
}

void read_bin(benchmark::State& state, int workers) {
  const fs::path prefix = fs::temp_directory_path() / "trellis_data_benchmark";
  trainer::IndexedDatasetBuilder builder(prefix.string(), trainer::TokenType::kUint16);
  std::vector<std::int32_t> document(1000);
  for (int i = 0; i < 20000; ++i) {
    for (auto& token : document)
      token = (i * 31 + static_cast<int>(&token - document.data())) % 32000;
    builder.add_item(document);
    builder.end_document();
  }
  builder.finalize();
  trainer::RunConfig config;
  config.trainer.devices = 1;
  config.trainer.max_steps = 300;
  config.data.kind = trainer::DataKind::kMegatron;
  config.data.data_prefix = {{1.0, prefix.string()}};
  config.data.splits = {1, 0, 0};
  config.data.global_batch_size = 16;
  config.data.num_workers = workers;
  config.model.encoder_seq_length = 4096;
  config.model.vocab_size = 32000;
  const auto data = trainer::make_data_module(config);
  std::int64_t step = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(data->micro_batches(step++ % config.trainer.max_steps, 0));
  state.SetItemsProcessed(state.iterations() * 16 * 4096);
}

constexpr std::int64_t kRecordTokens = 512;

nlohmann::json answered(const std::string& text) {
  const std::size_t prompt = text.size() / 4;
  return {{"prompt", text.substr(0, prompt)}, {"completion", text.substr(prompt)}};
}

/// Questions and answers, one after the other.
template <std::size_t questions>
nlohmann::json chat(const std::string& text) {
  const std::size_t part = text.size() / (4 * questions);
  nlohmann::json messages;
  for (std::size_t i = 0; i < questions; ++i) {
    messages.push_back({{"role", "user"}, {"content", text.substr(4 * i * part, part)}});
    messages.push_back(
        {{"role", "assistant"}, {"content", text.substr((4 * i + 1) * part, 3 * part)}});
  }
  return {{"messages", messages}};
}

/// JSON lines of `count` records, each of `characters` of the corpus.
fs::path write_records(std::int64_t count, std::size_t characters,
                       nlohmann::json (*record)(const std::string&) = answered) {
  const fs::path file = fs::temp_directory_path() / "trellis_records_benchmark.jsonl";
  std::ofstream out(file, std::ios::binary);
  const std::vector<std::string>& texts = corpus().documents;
  std::size_t document = 0, place = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    while (texts[document].size() < place + characters)
      document = (document + 1) % texts.size(), place = 0;
    const std::string text = texts[document].substr(place, characters);
    place += characters;
    out << record(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  return file;
}

std::shared_ptr<const trainer::RecordTokens> open_tokens(
    const fs::path& file, const trainer::TokenizerSection& tokenizer) {
  return std::make_shared<const trainer::RecordTokens>(
      std::make_shared<const trainer::RecordTexts>(trainer::open_records(file.string(), "records"),
                                                   tokenizer.type),
      tokenizer);
}

/// CPU time of this process and of its children that ended.
double cpu_seconds() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

/// `characters`: of a record; a little more than 512 tokens, which are all that a sample has.
/// "per_core": by the CPU time of all processes, the start of a template's Python included.
void read_records(benchmark::State& state, const trainer::TokenizerSection& tokenizer,
                  std::size_t characters, nlohmann::json (*record)(const std::string&) = answered) {
  constexpr std::int64_t kRecords = 4000;
  std::optional<trainer::AnsweredSamples> samples;
  samples.emplace(open_tokens(write_records(kRecords, characters, record), tokenizer),
                  trainer::AlignmentSampleOptions{.sequence = kRecordTokens});
  std::int64_t next = 0;
  const double before = cpu_seconds();
  for (auto _ : state) benchmark::DoNotOptimize(samples->item(next++ % kRecords));
  samples.reset();  // ends its children
  state.SetItemsProcessed(state.iterations());
  state.counters["per_core"] = static_cast<double>(state.iterations()) / (cpu_seconds() - before);
}

void read_byte_records(benchmark::State& state) {
  read_records(state, {"byte-level", "", "", "", ""}, kRecordTokens);
}
void read_bpe_records(benchmark::State& state) {
  read_records(state,
               {"huggingface", trained_tokenizer("llama3", trainer::kLlama3Pattern), "", "", ""},
               4 * kRecordTokens);
}

/// Llama 3's, as its tokenizer has it.
constexpr const char* kChatTemplate =
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>"
    "\n\n' }}{% endif %}";

/// A separate process renders, one record at a time, while this one waits.
template <std::size_t questions>
void read_bpe_chats(benchmark::State& state) {
  const std::string tokenizer = trained_tokenizer("llama3", trainer::kLlama3Pattern);
  std::ofstream(fs::path(tokenizer) / "chat_template.jinja") << kChatTemplate;
  read_records(state, {"huggingface", tokenizer, "", "", ""}, 4 * kRecordTokens, chat<questions>);
}

/// Opens a file of 1 GB and reads one record.
void first_record(benchmark::State& state) {
  const fs::path file = write_records(500'000, 2000);
  for (auto _ : state) {
    const trainer::AnsweredSamples samples(open_tokens(file, {"byte-level", "", "", "", ""}),
                                           {.sequence = kRecordTokens});
    benchmark::DoNotOptimize(samples.item(samples.num_samples() - 1));
  }
  state.counters["bytes"] = static_cast<double>(fs::file_size(file));
  fs::remove(file);
}

BENCHMARK(read_byte_records);
BENCHMARK(read_bpe_records);
BENCHMARK(read_bpe_chats<1>)->UseRealTime();
BENCHMARK(read_bpe_chats<2>)->UseRealTime();
BENCHMARK(first_record)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_bpe, llama3_pattern, "llama3", trainer::kLlama3Pattern)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_bpe, gpt2_pattern, "gpt2", trainer::kGpt2Pattern)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_bin, no_workers, 0)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
