#include <cmath>
#include <utility>

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/data/sampled_data_module.h"
#include "trainer/files/data/megatron/blend.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {
namespace {

/// Samples that the index maps of a split must give. They are part of the maps' file names.
struct SampleCounts {
  std::int64_t train = 0, validation = 0, test = 0;
};

/// Samples of held-out data: `passes` times a limit in batches. A limit that is a fraction asks for
/// one epoch.
std::int64_t held_out_samples(const std::optional<BatchCount>& limit, std::int64_t passes,
                              std::int64_t global_batch) {
  return limit && limit->count ? passes * *limit->count * global_batch : 1;
}

SampleCounts sample_counts(const RunConfig& config) {
  const std::int64_t global_batch = config.data.global_batch_size;
  const BatchCount interval =
      config.trainer.val_check_interval.value_or(BatchCount{std::nullopt, 1.0});
  const auto steps = static_cast<double>(config.trainer.max_steps);
  const double every =
      interval.count ? static_cast<double>(*interval.count) : interval.fraction.value_or(1.0);
  const std::int64_t passes =
      every > 0 ? static_cast<std::int64_t>(std::floor(steps / every)) + 1 : 1;
  return {config.trainer.max_steps * global_batch,
          held_out_samples(config.trainer.limit_val_batches, passes, global_batch),
          held_out_samples(config.trainer.limit_test_batches, 1, global_batch)};
}

/// Opens data sets once, whatever number of splits uses them.
class Sources {
 public:
  explicit Sources(const RunConfig& config) : config_(config) {
    options_.sequence_length = config.model.encoder_seq_length;
    options_.eod_mask_loss = config.data.eod_mask_loss;
    options_.reset_position_ids = config.data.reset_position_ids;
    options_.extra_token = !config.data.no_seqlen_plus_one_input_tokens;
    if (options_.eod_mask_loss || options_.reset_position_ids) options_.eod_id = end_of_document();
  }

  /// One split of one list of prefixes. `part`: 0 … 2 of `data.splits`; −1: whole data sets.
  std::shared_ptr<const SampleSource> open(const std::vector<DataPrefix>& prefixes, int part,
                                           const char* name, std::int64_t num_samples) {
    if (prefixes.empty() || num_samples == 0) return nullptr;
    if (prefixes.size() == 1) return open_one(prefixes[0].path, part, name, num_samples);
    if (prefixes.size() > kMostBlendedDatasets) {
      throw ConfigError(c10::str("data.data_prefix: expected at most ", kMostBlendedDatasets,
                                 " data sets in a blend, got ", prefixes.size()));
    }
    return open_blend(prefixes, part, name, num_samples);
  }

 private:
  std::int64_t end_of_document() const {
    if (const auto id = make_tokenizer(config_.data.tokenizer)->eos_id()) return *id;
    throw ConfigError(
        "data.tokenizer: has no end-of-sequence token, which data.eod_mask_loss and "
        "data.reset_position_ids need: use a tokenizer that names one "
        "(eos_token in tokenizer_config.json)");
  }

  std::shared_ptr<const IndexedDataset> data_of(const std::string& prefix) {
    auto& data = opened_[prefix];
    if (!data) data = std::make_shared<const IndexedDataset>(prefix);
    return data;
  }

  std::shared_ptr<const SampleSource> open_one(const std::string& prefix, int part,
                                               const char* name, std::int64_t num_samples) {
    const auto data = data_of(prefix);
    IndexMapRequest request;
    request.sequences = part < 0
                            ? SequenceRange{0, data->num_sequences()}
                            : split_ranges(config_.data.splits,
                                           data->num_sequences())[static_cast<std::size_t>(part)];
    if (request.sequences.count() <= 0) return nullptr;  // a part of weight 0
    request.split_name = name;
    request.num_samples = num_samples;
    request.sequence_length = options_.sequence_length;
    request.seed = config_.seed;
    request.extra_token = options_.extra_token;
    request.drop_last = request.split_name != "valid" || config_.data.validation_drop_last;
    return std::make_shared<const GptDataset>(data, request, options_,
                                              config_.data.index_mapping_dir);
  }

  std::shared_ptr<const SampleSource> open_blend(const std::vector<DataPrefix>& prefixes, int part,
                                                 const char* name, std::int64_t num_samples) {
    std::vector<double> weights;
    for (const DataPrefix& prefix : prefixes) weights.push_back(prefix.weight);
    const auto requests = blend_requests(weights, num_samples);
    std::vector<std::shared_ptr<const SampleSource>> datasets;
    std::vector<double> used_weights;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
      if (requests[i] == 0) continue;  // weight 0
      auto source = open_one(prefixes[i].path, part, name, requests[i]);
      if (!source) continue;
      datasets.push_back(std::move(source));
      used_weights.push_back(weights[i]);
      total += requests[i];
    }
    if (datasets.empty()) return nullptr;
    return std::make_shared<const BlendedDataset>(std::move(datasets), used_weights, total);
  }

  const RunConfig& config_;
  GptSampleOptions options_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
};

std::string describe(const SplitSources& sources, std::size_t datasets) {
  std::string text =
      c10::str("Megatron data, ", datasets, datasets == 1 ? " data set" : " data sets", ", ",
               sources.train->num_tokens(), " tokens for training, ", sources.train->num_samples(),
               " samples");
  if (sources.validation)
    text += c10::str("; ", sources.validation->num_samples(), " for validation");
  if (sources.test) text += c10::str("; ", sources.test->num_samples(), " for test");
  return text;
}

}  // namespace

SplitSources open_megatron_sources(const RunConfig& config) {
  const DataSection& data = config.data;
  const SampleCounts counts = sample_counts(config);
  Sources open(config);
  SplitSources sources;
  std::size_t datasets = data.data_prefix.size();
  if (!data.data_prefix_by_split.empty()) {
    const auto prefixes = [&](const char* split) -> const std::vector<DataPrefix>& {
      const auto found = data.data_prefix_by_split.find(split);
      if (found == data.data_prefix_by_split.end())
        throw ConfigError(c10::str("data.data_prefix.", split,
                                   ": missing: expected all of train, validation and test"));
      return found->second;
    };
    sources.train = open.open(prefixes("train"), -1, "train", counts.train);
    sources.validation = open.open(prefixes("validation"), -1, "valid", counts.validation);
    sources.test = open.open(prefixes("test"), -1, "test", counts.test);
    datasets = prefixes("train").size();
  } else {
    if (data.splits.size() != 3)
      throw ConfigError(
          c10::str("data.splits_string: expected three numbers, such as 980,10,10, got ",
                   data.splits.size()));
    sources.train = open.open(data.data_prefix, 0, "train", counts.train);
    sources.validation = open.open(data.data_prefix, 1, "valid", counts.validation);
    sources.test = open.open(data.data_prefix, 2, "test", counts.test);
  }
  if (!sources.train)
    throw ConfigError(
        "data.data_prefix: no training samples: expected a data set, and a first number above 0 in "
        "data.splits_string");
  sources.description = describe(sources, datasets);
  return sources;
}

}  // namespace trellis::trainer
