#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/app/data_request.h"
#include "trainer/app/guarded.h"
#include "trainer/config/run_config.h"
#include "trainer/data/build_dataset.h"
#include "trainer/data/data_module.h"

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

json rows_of(const DataModule& data, const DataInspectRequest& request,
             const Tokenizer& tokenizer) {
  json rows = json::array();
  std::int64_t number = 0;
  for (const MicroBatch& batch : data.micro_batches(request.step, request.data_parallel_rank)) {
    for (std::int64_t row = 0; row < batch.input_ids.size(0); ++row) {
      if (static_cast<std::int64_t>(rows.size()) == request.rows) return rows;
      const auto ids = row_of(batch.input_ids, row);
      rows.push_back({{"micro_batch", number},
                      {"place", batch.places.at(static_cast<std::size_t>(row))},
                      {"labels_with_loss", counted(batch, row)},
                      {"input_ids", ids},
                      {"text", terminal_line(tokenizer.decode(ids))}});
    }
    ++number;
  }
  return rows;
}

void print(const json& document) {
  std::cout << document["description"].get<std::string>() << "\nstep " << document["step"]
            << ", data-parallel rank " << document["data_parallel_rank"] << " of "
            << document["data_parallel_size"] << ": " << document["micro_batches"]
            << " micro-batches of " << document["micro_batch_size"] << " × "
            << document["sequence_length"] << " tokens\n";
  for (const json& row : document["rows"]) {
    std::cout << "micro-batch " << row["micro_batch"] << ", place " << row["place"]
              << " of the global batch, " << row["labels_with_loss"] << " labels with loss:\n  \""
              << row["text"].get<std::string>() << "\"\n";
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
}  // namespace trellis::trainer

extern "C" __attribute__((visibility("default"))) int trellis_data_inspect(
    const trellis::trainer::DataInspectRequest* request) {
  return trellis::trainer::guarded([request] { return trellis::trainer::inspect(*request); });
}
