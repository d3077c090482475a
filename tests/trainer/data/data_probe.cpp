#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/files/data/alignment/alignment_samples.h"
#include "trainer/files/data/chat/chat_template.h"
#include "trainer/files/data/hf_dataset.h"
#include "trainer/files/data/megatron/blend.h"
#include "trainer/files/data/samples/samplers.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

/// Answers questions about the data library with one JSON document on stdout, for oracles in
/// Python. The request on stdin is a JSON object with the member "ask".
namespace trellis::trainer {
namespace {

using nlohmann::json;

IndexMapRequest map_request(const json& ask) {
  IndexMapRequest request;
  request.sequences = {ask.at("first"), ask.at("end")};
  request.split_name = ask.value("split", "train");
  request.num_samples = ask.at("num_samples");
  request.sequence_length = ask.at("sequence_length");
  request.seed = ask.value("seed", 1234);
  request.extra_token = ask.value("extra_token", true);
  request.drop_last = ask.value("drop_last", true);
  return request;
}

json read_all(const json& ask) {
  const IndexedDataset data(ask.at("prefix"));
  json sequences = json::array(), documents = json::array();
  for (std::int64_t i = 0; i < data.num_sequences(); ++i) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(data.size(i)));
    data.read(i, 0, data.size(i), tokens.data());
    sequences.push_back(tokens);
  }
  for (std::int64_t i = 0; i <= data.num_documents(); ++i)
    documents.push_back(data.document_start(i));
  return {{"type", name_of(data.type())}, {"sequences", sequences}, {"documents", documents}};
}

json index_maps(const json& ask) {
  const IndexedDataset data(ask.at("prefix"));
  const IndexMapRequest request = map_request(ask);
  const std::string directory = ask.value("directory", "");
  const SampleIndex index = SampleIndex::open(data, request, directory);
  return {{"files", index_map_prefix(data, request, directory)},
          {"num_samples", index.num_samples()}};
}

json items(const json& ask) {
  const IndexMapRequest request = map_request(ask);
  GptSampleOptions options;
  options.sequence_length = request.sequence_length;
  options.extra_token = request.extra_token;
  options.eod_id = ask.value("eod_id", 0);
  options.eod_mask_loss = ask.value("eod_mask_loss", false);
  options.reset_position_ids = ask.value("reset_position_ids", false);
  const GptDataset data(std::make_shared<IndexedDataset>(ask.at("prefix").get<std::string>()),
                        request, options, "");
  json result = json::array();
  for (const std::int64_t index : ask.at("indices").get<std::vector<std::int64_t>>()) {
    const Sample item = data.item(index);
    result.push_back({{"tokens", item.tokens},
                      {"labels", item.labels},
                      {"position_ids", item.position_ids},
                      {"loss_mask", item.loss_mask}});
  }
  return result;
}

json sampler(const json& ask) {
  SamplerShape shape;
  shape.total_samples = ask.at("total_samples");
  shape.micro_batch_size = ask.at("micro_batch_size");
  shape.global_batch_size = ask.at("global_batch_size");
  shape.data_parallel_size = ask.at("data_parallel_size");
  shape.drop_last = ask.value("drop_last", true);
  shape.pad_samples_to_global_batch_size = ask.value("pad", false);
  const std::int64_t consumed = ask.at("consumed_samples");
  json batches = json::array();
  if (ask.at("type") == "single") {
    const SequentialSampler sequential(shape);
    for (std::int64_t batch = 0; batch < sequential.num_batches(consumed); ++batch)
      batches.push_back(sequential.indices(batch, ask.at("rank"), consumed));
  } else if (ask.at("type") == "shuffled") {
    const ShuffledSampler shuffled(shape);
    for (std::int64_t batch = 0; batch < ask.at("batches"); ++batch)
      batches.push_back(
          shuffled.indices(consumed + batch * shape.global_batch_size, ask.at("rank")));
  } else {
    const RandomSampler random(shape, ask.value("seed", 0));
    for (std::int64_t batch = 0; batch < ask.at("batches"); ++batch)
      batches.push_back(random.indices(consumed + batch * shape.global_batch_size, ask.at("rank")));
  }
  return batches;
}

json blend(const json& ask) {
  const BlendPlan plan = plan_blend(ask.at("weights"), ask.at("num_samples"));
  return {{"requests", blend_requests(ask.at("weights"), ask.at("num_samples"))},
          {"dataset", plan.dataset},
          {"sample", plan.sample}};
}

json split(const json& ask) {
  json ranges = json::array();
  for (const SequenceRange& range : split_ranges(ask.at("weights"), ask.at("num_sequences")))
    ranges.push_back({range.first, range.end});
  return ranges;
}

TokenizerSection tokenizer_section(const json& ask) {
  TokenizerSection section;
  section.library = ask.at("library");
  section.type = ask.value("type", "");
  section.model = ask.value("model", "");
  section.vocab_file = ask.value("vocab_file", "");
  section.merge_file = ask.value("merge_file", "");
  section.special_tokens = ask.value("special_tokens", "nxdt");
  return section;
}

json row_of(const Sample& sample) {
  json row = {{"tokens", sample.tokens}, {"labels", sample.labels}};
  if (!sample.position_ids.empty()) row["position_ids"] = sample.position_ids;
  if (!sample.documents.empty()) row["documents"] = sample.documents;
  if (!sample.next_tokens.empty()) row["next_tokens"] = sample.next_tokens;
  for (const Sample& rejected : sample.rejected) row["rejected"] = row_of(rejected);
  return row;
}

/// Samples of records, "preferences" or supervised ones.
json alignment_rows(const json& ask) {
  AlignmentSampleOptions options;
  options.sequence = ask.at("sequence_length");
  options.most_records = ask.value("dev_choose_samples", 0);
  options.packing = ask.value("packing", false);
  if (ask.contains("max_prompt_length")) options.max_prompt_length = ask.at("max_prompt_length");
  options.next_tokens = ask.value("next_tokens", false);
  options.truncation = ask.value("keep_end", false) ? Truncation::kKeepEnd : Truncation::kKeepStart;
  const TokenizerSection tokenizer = tokenizer_section(ask);
  auto tokens = std::make_shared<const RecordTokens>(
      std::make_shared<const RecordTexts>(open_records(ask.at("path"), "data.train_dir"),
                                          tokenizer.type),
      tokenizer);
  std::shared_ptr<const SampleSource> samples;
  std::string description;
  if (ask.value("preferences", false)) {
    samples = std::make_shared<const PreferenceSamples>(tokens, options);
  } else {
    auto answered = std::make_shared<const AnsweredSamples>(tokens, options);
    description = answered->description();
    samples = std::move(answered);
  }
  json rows = json::array();
  for (std::int64_t i = 0; i < samples->num_samples(); ++i)
    rows.push_back(row_of(samples->item(i)));
  return {{"rows", rows}, {"description", description}};
}

json tokenize(const json& ask) {
  const auto tokenizer = make_tokenizer(tokenizer_section(ask));
  const auto id = [](std::optional<std::int32_t> value) { return value ? json(*value) : json(); };
  json ids = json::array(), texts = json::array();
  for (const std::string& text : ask.at("texts").get<std::vector<std::string>>()) {
    std::vector<std::int32_t> encoded;
    tokenizer->encode(text, encoded);
    texts.push_back(tokenizer->decode(encoded));
    ids.push_back(encoded);
  }
  return {{"vocab_size", tokenizer->vocab_size()},
          {"eos", id(tokenizer->eos_id())},
          {"bos", id(tokenizer->bos_id())},
          {"pad", id(tokenizer->pad_id())},
          {"notes", tokenizer->notes()},
          {"ids", ids},
          {"texts", texts}};
}

json hf_rows(const json& ask) {
  const auto data =
      open_hf_dataset(ask.at("directory"), ask.at("sequence_length"), "data.train_dir");
  json rows = json::array();
  for (std::int64_t i = 0; i < data->num_samples(); ++i) {
    const Sample sample = data->item(i);
    rows.push_back({{"tokens", sample.tokens}, {"labels", sample.labels}});
  }
  return rows;
}

/// "chats": a text of JSON, which keeps the order of members.
json chats(const json& ask) {
  const ChatTemplate chat_template(ask.at("tokenizer"),
                                   std::chrono::milliseconds(ask.value("limit_ms", 5000)));
  const auto texts = nlohmann::ordered_json::parse(ask.at("chats").get<std::string>());
  json result = json::array();
  for (const nlohmann::ordered_json& chat : texts) {
    const auto& messages = chat.at("messages");
    for (const RenderedChat& rendered : chat_template.render(
             messages, chat.value("tools", nlohmann::ordered_json()),
             {{{{0, messages.size()}}, chat.value("add_generation_prompt", false)}},
             [] { return "data.jsonl:7"; }))
      result.push_back({{"text", rendered.text}, {"generated", rendered.generated}});
  }
  return result;
}

json answer(const json& ask) {
  const std::string what = ask.at("ask");
  if (what == "chats") return chats(ask);
  if (what == "alignment_rows") return alignment_rows(ask);
  if (what == "read") return read_all(ask);
  if (what == "index_maps") return index_maps(ask);
  if (what == "items") return items(ask);
  if (what == "sampler") return sampler(ask);
  if (what == "blend") return blend(ask);
  if (what == "split") return split(ask);
  if (what == "tokenize") return tokenize(ask);
  if (what == "hf_rows") return hf_rows(ask);
  throw std::runtime_error("data_probe: unknown question " + what);
}

}  // namespace
}  // namespace trellis::trainer

int main() {
  try {
    const std::string request(std::istreambuf_iterator<char>(std::cin), {});
    std::cout << trellis::trainer::answer(nlohmann::json::parse(request)).dump() << "\n";
  } catch (const trellis::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
  return 0;
}
