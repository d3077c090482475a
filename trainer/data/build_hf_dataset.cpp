#include "trainer/data/build_hf_dataset.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "trainer/files/data/alignment/each_record.h"
#include "trainer/files/data/alignment/record_tokens.h"
#include "trainer/files/data/hf_dataset_builder.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kNoLoss = -100;

HfBuildResult build_text(const BuildRequest& request, HfDatasetBuilder& builder,
                         const std::function<void(const std::string&)>& progress) {
  HfRow row;
  row.attended = request.sequence_length;
  const auto length = static_cast<std::size_t>(request.sequence_length);
  const auto add = [&](const std::vector<std::int32_t>& ids) {
    for (std::size_t begin = 0; begin < ids.size();) {
      const std::size_t count = std::min(ids.size() - begin, length - row.input_ids.size());
      row.input_ids.insert(row.input_ids.end(), ids.data() + begin, ids.data() + begin + count);
      begin += count;
      if (row.input_ids.size() < length) continue;
      row.labels.assign(row.input_ids.begin(), row.input_ids.end());
      builder.add(row);
      row.input_ids.clear();
    }
  };
  const BuildResult text = tokenize_documents(request, add, progress);
  if (builder.num_rows() == 0)
    throw ConfigError("input: " + request.inputs[0] + " has " + std::to_string(text.tokens) +
                      " tokens, which are less than one row of --sequence-length " +
                      std::to_string(request.sequence_length) +
                      ": give more text, or shorten the rows");
  return {builder.num_rows(), 0, text.documents, std::ssize(row.input_ids), text.vocab_size};
}

HfRow row_of(const AnsweredTokens& tokens, std::int64_t length, std::int32_t pad_id) {
  HfRow row;
  row.attended = std::ssize(tokens.ids);
  row.input_ids = tokens.ids;
  row.input_ids.resize(static_cast<std::size_t>(length), pad_id);
  row.labels.assign(static_cast<std::size_t>(length), kNoLoss);
  for (std::size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.answer[i]) row.labels[i] = tokens.ids[i];
  return row;
}

void add_records(const BuildRequest& request, const RecordTokens& records,
                 HfDatasetBuilder& builder, HfBuildResult& result) {
  constexpr std::int64_t kBlock = 4096;
  const std::int64_t count = records.texts().num_records();
  const auto truncation = request.keep_end ? Truncation::kKeepEnd : Truncation::kKeepStart;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, count);
    std::vector<AnsweredTokens> block(static_cast<std::size_t>(end - first));
    for_each_record(first, end, static_cast<unsigned>(request.workers), [&](std::int64_t i) {
      block[static_cast<std::size_t>(i - first)] =
          records.answered(i, request.sequence_length, truncation);
    });
    for (const AnsweredTokens& tokens : block) {
      builder.add(row_of(tokens, request.sequence_length, records.pad_id()));
      result.padding += request.sequence_length - std::ssize(tokens.ids);
    }
  }
  result.sources += count;
}

}  // namespace

HfBuildResult build_hf_dataset(const BuildRequest& request,
                               const std::function<void(const std::string&)>& progress) {
  HfDatasetBuilder builder(request.output);
  HfBuildResult result;
  if (request.records) {
    result.vocab_size = make_tokenizer(request.tokenizer)->vocab_size();
    for (const std::string& input : request.inputs) {
      const RecordTokens records(
          std::make_shared<const RecordTexts>(open_records(input, "input"), request.tokenizer.type),
          request.tokenizer);
      add_records(request, records, builder, result);
    }
    result.rows = builder.num_rows();
  } else {
    result = build_text(request, builder, progress);
  }
  builder.finish();
  return result;
}

}  // namespace trellis::trainer
