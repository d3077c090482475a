#include <algorithm>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/files/data/build_dataset.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/requests/data_request.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

std::vector<std::int32_t> row_of(const at::Tensor& tensor, std::int64_t row) {
  const auto* first = tensor.const_data_ptr<std::int64_t>() + row * tensor.size(1);
  return {first, first + tensor.size(1)};
}

/// Labels with a loss.
std::int64_t counted(const MicroBatch& batch, std::int64_t row) {
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>() + row * batch.labels.size(1);
  const float* mask = batch.loss_mask.defined()
                          ? batch.loss_mask.const_data_ptr<float>() + row * batch.labels.size(1)
                          : nullptr;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < batch.labels.size(1); ++i)
    count += labels[i] != -100 && (mask == nullptr || mask[i] != 0) ? 1 : 0;
  return count;
}

/// Consecutive tokens that are all learned, or all only read. A token is learned when it is the
/// label of the one before it.
json parts_of(const std::vector<std::int32_t>& ids, const MicroBatch& batch, std::int64_t row,
              const Tokenizer& tokenizer) {
  const std::int64_t length = batch.labels.size(1);
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>() + row * length;
  const auto is_learned = [&](std::int64_t token) {
    return token > 0 && labels[token - 1] != -100;
  };
  json parts = json::array();
  for (std::int64_t begin = 0, end = 0; begin < length; begin = end) {
    for (end = begin + 1; end < length && is_learned(end) == is_learned(begin);) ++end;
    const std::span part(ids.data() + begin, static_cast<std::size_t>(end - begin));
    parts.push_back({{"learned", is_learned(begin)},
                     {"first", begin},
                     {"tokens", end - begin},
                     {"text", terminal_line(tokenizer.decode(part))}});
  }
  return parts;
}

json row_of(const MicroBatch& batch, std::int64_t row, const Tokenizer& tokenizer) {
  const std::int64_t samples = std::ssize(batch.places);
  const auto ids = row_of(batch.input_ids, row);
  json result = {{"place", batch.places.at(static_cast<std::size_t>(row % samples))},
                 {"labels_with_loss", counted(batch, row)},
                 {"input_ids", ids},
                 {"labels", row_of(batch.labels, row)},
                 {"parts", parts_of(ids, batch, row, tokenizer)},
                 {"text", terminal_line(tokenizer.decode(ids))}};
  if (batch.input_ids.size(0) > samples) result["answer"] = row < samples ? "chosen" : "rejected";
  if (batch.position_ids.defined()) result["position_ids"] = row_of(batch.position_ids, row);
  if (batch.attention_mask.defined()) result["documents"] = row_of(batch.attention_mask, row);
  return result;
}

json rows_of(const DataModule& data, const DataInspectRequest& request,
             const Tokenizer& tokenizer) {
  json rows = json::array();
  std::int64_t number = 0;
  for (const MicroBatch& batch : data.micro_batches(request.step, request.data_parallel_rank)) {
    for (std::int64_t row = 0; row < batch.input_ids.size(0); ++row) {
      if (static_cast<std::int64_t>(rows.size()) == request.rows) return rows;
      rows.push_back(row_of(batch, row, tokenizer));
      rows.back()["micro_batch"] = number;
    }
    ++number;
  }
  return rows;
}

/// Where not every token is learned, or documents share a row.
void print_parts(const json& row) {
  if (row.contains("documents")) {
    const auto documents = row["documents"].get<std::vector<std::int64_t>>();
    std::cout << "  " << *std::ranges::max_element(documents) << " documents, "
              << std::ranges::count(documents, 0) << " tokens of padding\n";
  }
  for (const json& part : row["parts"]) {
    std::cout << "  " << (part["learned"].get<bool>() ? "learns " : "reads ") << part["tokens"]
              << " tokens from " << part["first"] << ": \"" << part["text"].get<std::string>()
              << "\"\n";
  }
}

void print(const json& document) {
  std::cout << document["description"].get<std::string>() << "\nstep " << document["step"]
            << ", data-parallel rank " << document["data_parallel_rank"] << " of "
            << document["data_parallel_size"] << ": " << document["micro_batches"]
            << " micro-batches of " << document["micro_batch_size"] << " × "
            << document["sequence_length"] << " tokens\n";
  for (const json& row : document["rows"]) {
    std::cout << "micro-batch " << row["micro_batch"] << ", place " << row["place"]
              << " of the global batch, "
              << (row.contains("answer") ? row["answer"].get<std::string>() + " answer, " : "")
              << row["labels_with_loss"] << " labels with loss:\n";
    if (row["parts"].size() > 2 || row["parts"][0]["tokens"] > 1) {
      print_parts(row);
    } else {
      std::cout << "  \"" << row["text"].get<std::string>() << "\"\n";
    }
  }
}

int inspect(const DataInspectRequest& request) {
  const RunConfig config = load_run_config(request.config_file, request.overrides);
  if (request.data_parallel_rank >= config.dp()) {
    throw ConfigError("--rank: expected 0 … " + std::to_string(config.dp() - 1) +
                      ", the data-parallel ranks of the configuration, got " +
                      std::to_string(request.data_parallel_rank));
  }
  const auto data = make_data_module(
      config, request.consumed_samples ? ResumePoint{request.step, *request.consumed_samples}
                                       : ResumePoint{});
  const auto tokenizer = make_tokenizer(config.data.tokenizer);
  const json document = {{"schema", "trellis.data_batch/1"},
                         {"description", data->description()},
                         {"step", request.step},
                         {"data_parallel_rank", request.data_parallel_rank},
                         {"data_parallel_size", config.dp()},
                         {"micro_batches", config.num_microbatches()},
                         {"micro_batch_size", config.data.micro_batch_size},
                         {"sequence_length", config.model.encoder_seq_length},
                         {"validation_batches", data->num_evaluation_batches(Split::kValidation)},
                         {"test_batches", data->num_evaluation_batches(Split::kTest)},
                         {"rows", rows_of(*data, request, *tokenizer)}};
  if (request.json) {
    std::cout << document.dump(1) << "\n";
  } else {
    print(document);
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_inspect_data(const DataInspectRequest& request) {
  return guarded([&] { return inspect(request); });
}

}  // namespace trellis::trainer
