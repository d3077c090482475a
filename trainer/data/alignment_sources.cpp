#include <utility>

#include "base/error.h"
#include "trainer/data/sampled_data_module.h"
#include "trainer/files/data/alignment/alignment_samples.h"

namespace trellis::trainer {
namespace {

AlignmentSampleOptions options_of(const RunConfig& config) {
  const RecordSection& records = config.data.records;
  AlignmentSampleOptions options;
  options.sequence = config.model.encoder_seq_length;
  options.most_records = records.dev_choose_samples;
  options.truncation =
      records.truncation_mode == "keep_end" ? Truncation::kKeepEnd : Truncation::kKeepStart;
  options.packing = records.packing;
  options.max_prompt_length = records.max_prompt_length;
  options.next_tokens = config.model.orpo && config.model.orpo->trl;
  return options;
}

/// A split of records; what is read of it is added to `description`.
std::shared_ptr<const SampleSource> open(const RunConfig& config, const std::string& path,
                                         const std::string& key, std::string& description) {
  auto texts =
      std::make_shared<const RecordTexts>(open_records(path, key), config.data.tokenizer.type);
  // A file of other columns, or of another kind, is an error before weights are read.
  if (config.alignment == "sft") {
    (void)texts->answered(0);
  } else {
    (void)texts->preference(0);
  }
  auto tokens = std::make_shared<const RecordTokens>(std::move(texts), config.data.tokenizer);
  const AlignmentSampleOptions options = options_of(config);
  description += (description.empty() ? "" : "; ") + path + ": ";
  if (config.alignment == "sft") {
    auto samples = std::make_shared<const AnsweredSamples>(std::move(tokens), options);
    description += samples->description();
    return samples;
  }
  auto samples = std::make_shared<const PreferenceSamples>(std::move(tokens), options);
  description += std::to_string(samples->num_samples()) + " preference pairs of 2 × " +
                 std::to_string(options.sequence) + " tokens; longer ones are cut " +
                 (options.max_prompt_length
                      ? "to " + std::to_string(*options.max_prompt_length) +
                            " tokens of the prompt, then in the answers (max_prompt_length)"
                      : "as one, prompt and answer (without max_prompt_length)");
  return samples;
}

bool is_off(const std::optional<BatchCount>& limit) { return limit && limit->is_zero(); }

}  // namespace

SplitSources open_alignment_sources(const RunConfig& config) {
  const DataSection& data = config.data;
  if (data.train_dir.empty())
    throw ConfigError(
        "data.train_dir: missing: expected a file of records, .jsonl, .json, .arrow or .parquet");
  SplitSources sources;
  sources.train = open(config, data.train_dir, "data.train_dir", sources.description);
  if (!data.val_dir.empty() && !is_off(config.trainer.limit_val_batches))
    sources.validation = open(config, data.val_dir, "data.val_dir", sources.description);
  if (!data.test_dir.empty() && !is_off(config.trainer.limit_test_batches))
    sources.test = open(config, data.test_dir, "data.test_dir", sources.description);
  return sources;
}

}  // namespace trellis::trainer
