#include "trainer/data/make_data_module.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "trainer/data/batch_shape.h"
#include "trainer/data/prefetch.h"
#include "trainer/data/sampled_data_module.h"
#include "trainer/data/text_data_module.h"
#include "trainer/files/data/hf_dataset.h"

namespace trellis::trainer {
namespace {

class EmptyDataModule : public DataModule {
 public:
  explicit EmptyDataModule(const RunConfig& config)
      : shape_(BatchShape::of(config)),
        sample_(empty_sample(config.model, BatchParts::of(config))) {}

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    shape_.check(step, dp_rank);
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < shape_.micro_batches; ++i) {
      batches.push_back(sample_);
      for (std::int64_t row = 0; row < shape_.micro_batch; ++row)
        batches.back().places.push_back(dp_rank * shape_.per_rank() + i * shape_.micro_batch + row);
    }
    return batches;
  }
  std::int64_t num_tokens() const override { return 0; }
  std::string description() const override { return "no data: zeros of the right shape"; }

 private:
  [[nodiscard]] MicroBatch empty_sample(const ModelSection& model, const BatchParts& parts) const {
    const std::int64_t rows = shape_.micro_batch * parts.sequences;
    const at::Tensor tokens = at::zeros({rows, shape_.sequence}, at::kLong);
    MicroBatch batch{tokens, tokens};
    if (parts.loss_mask) batch.loss_mask = at::zeros({rows, shape_.sequence});
    if (parts.position_ids) batch.position_ids = tokens;
    if (parts.documents) batch.attention_mask = tokens;
    if (parts.next_tokens) batch.next_tokens = tokens;
    if (model.dpo) batch.reference_log_probs = at::zeros({rows}, at::kDouble);
    if (model.architecture == "bert") {
      batch.attention_mask = at::ones_like(tokens);
      batch.token_type_ids = tokens;
      batch.next_sentence_labels = at::zeros({rows}, at::kLong);
    }
    if (model.image) {
      batch.input_ids.reset();
      batch.labels = at::zeros({rows, 1}, at::kLong);
      batch.pixel_values =
          at::zeros({rows, model.image->channels, model.image->size, model.image->size});
    }
    return batch;
  }

  BatchShape shape_;
  MicroBatch sample_;  ///< the tensors of all batches
};

SplitSources open_hf_sources(const RunConfig& config) {
  const auto open = [&](const std::string& directory,
                        const char* key) -> std::shared_ptr<const SampleSource> {
    return directory.empty() ? nullptr
                             : open_hf_dataset(directory, config.model.encoder_seq_length, key);
  };
  if (config.data.train_dir.empty())
    throw ConfigError(
        "data.train_dir: missing: expected a directory that datasets' save_to_disk has written");
  SplitSources sources{open(config.data.train_dir, "data.train_dir"),
                       open(config.data.val_dir, "data.val_dir"),
                       open(config.data.test_dir, "data.test_dir"), ""};
  sources.description = config.data.train_dir + ": Hugging Face data set, " +
                        std::to_string(sources.train->num_samples()) + " samples of " +
                        std::to_string(config.model.encoder_seq_length) + " tokens";
  return sources;
}

std::shared_ptr<const DataModule> open_data(const RunConfig& config, const ResumePoint& resume) {
  if (is_encoder(config.model)) {
    throw ConfigError("data: the training data of a " + config.model.architecture +
                      " model are not read by this version; `trellis simulate` needs none");
  }
  switch (config.data.kind) {
    case DataKind::kText: return make_text_data_module(config, resume);
    case DataKind::kHfDataset:
      return make_sampled_data_module(config, open_hf_sources(config), resume);
    case DataKind::kMegatron:
      return make_sampled_data_module(config, open_megatron_sources(config), resume);
    case DataKind::kAlignment: break;
  }
  return make_sampled_data_module(config, open_alignment_sources(config), resume);
}

}  // namespace

std::shared_ptr<const DataModule> make_data_module(const RunConfig& config,
                                                   const ResumePoint& resume) {
  auto data = open_data(config, resume);
  return config.data.num_workers > 0
             ? make_prefetching_data_module(std::move(data), config.data.num_workers)
             : data;
}

std::shared_ptr<const DataModule> make_empty_data_module(const RunConfig& config) {
  return std::make_shared<const EmptyDataModule>(config);
}

}  // namespace trellis::trainer
