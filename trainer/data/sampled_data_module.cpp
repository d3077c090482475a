#include "trainer/data/sampled_data_module.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/data/batch_shape.h"
#include "trainer/files/data/samples/samplers.h"

namespace trellis::trainer {
namespace {

SamplerShape sampler_shape(const RunConfig& config, const SampleSource& source) {
  SamplerShape shape;
  shape.total_samples = source.num_samples();
  shape.micro_batch_size = config.data.micro_batch_size;
  shape.global_batch_size = config.data.global_batch_size;
  shape.data_parallel_size = config.dp();
  return shape;
}

enum class Order { kSingle, kCyclic, kShuffled };

/// Which samples a rank's share of a global batch is.
class BatchSampler {
 public:
  BatchSampler(const SamplerShape& shape, Order order) : shape_(shape) {
    switch (order) {
      case Order::kSingle: sequential_.emplace(shape); break;
      case Order::kCyclic: random_.emplace(shape); break;
      case Order::kShuffled: shuffled_.emplace(shape); break;
    }
  }
  /// Batches of one pass.
  [[nodiscard]] std::int64_t num_batches() const {
    return sequential_ ? sequential_->num_batches()
                       : shape_.total_samples / shape_.global_batch_size;
  }
  /// The global batch that begins after `consumed` samples; passes follow one another. A pass of
  /// `single` is the whole batches of the data, so that a resumed run meets the samples that an
  /// uninterrupted one meets.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t consumed, int dp_rank) const {
    if (random_) return random_->indices(consumed, dp_rank);
    if (shuffled_) return shuffled_->indices(consumed, dp_rank);
    const std::int64_t pass = num_batches() * shape_.global_batch_size;
    const std::int64_t first = consumed % pass;
    // After another global batch size a pass may end with less than a batch: the next pass starts
    // instead.
    const bool fits = shape_.total_samples - first >= shape_.global_batch_size || !shape_.drop_last;
    return fits ? sequential_->indices(0, dp_rank, first) : sequential_->indices(0, dp_rank, 0);
  }

 private:
  SamplerShape shape_;
  std::optional<SequentialSampler> sequential_;
  std::optional<RandomSampler> random_;
  std::optional<ShuffledSampler> shuffled_;
};

/// Samples of one split and their order.
struct SplitReader {
  SplitReader(std::shared_ptr<const SampleSource> samples, const SamplerShape& shape, Order order)
      : source(std::move(samples)), sampler(shape, order) {}
  std::shared_ptr<const SampleSource> source;
  BatchSampler sampler;
};

void copy_row(const std::vector<std::int64_t>& from, const at::Tensor& to, std::int64_t row) {
  std::copy(from.begin(), from.end(), to.mutable_data_ptr<std::int64_t>() + row * to.size(1));
}

class SampledDataModule : public DataModule {
 public:
  SampledDataModule(const RunConfig& config, SplitSources sources, const ResumePoint& resume)
      : shape_(BatchShape::of(config)),
        resume_(resume),
        vocab_size_(config.model.vocab_size),
        parts_(BatchParts::of(config)),
        description_(std::move(sources.description)) {
    const bool is_alignment = config.data.kind == DataKind::kAlignment;
    const bool cyclic = config.data.cyclic && !is_alignment;
    const Order held_out = cyclic ? Order::kCyclic : Order::kSingle;
    const bool shuffles = is_alignment && config.data.records.shuffle;
    SamplerShape train = sampler_shape(config, *sources.train);
    train.drop_last = config.data.drop_last || !cyclic;  // NeMo reads drop_last for cyclic only
    if (train.total_samples < shape_.global_batch) {
      throw ConfigError(c10::str(
          "data: ", description_,
          ": the training samples are fewer than one global batch: expected global_batch_size = ",
          shape_.global_batch, " or more, got ", train.total_samples,
          "; give more data, or lower data.global_batch_size"));
    }
    train_.emplace(std::move(sources.train), train, shuffles ? Order::kShuffled : held_out);
    if (!train.drop_last) {  // NeMo allows it where a micro-batch of all ranks is one sample, and
                             // then ends an epoch with a shorter batch
      throw ConfigError(
          "data.drop_last: expected true with dataloader_type cyclic, got false: every step runs a "
          "whole global batch");
    }
    // A last, incomplete batch is filled with rows without loss: every rank runs the same whole
    // micro-batches.
    const auto open = [&](std::shared_ptr<const SampleSource> source, bool drop_last,
                          const std::optional<BatchCount>& limit, const char* key, HeldOut& out) {
      if (source == nullptr || (limit && limit->is_zero())) return;
      SamplerShape shape = sampler_shape(config, *source);
      shape.drop_last = drop_last;
      shape.pad_samples_to_global_batch_size = !drop_last;
      out.reader.emplace(std::move(source), shape, held_out);
      out.masked = !drop_last;
      out.num_batches = limited_batches(limit, out.reader->sampler.num_batches(), key);
    };
    open(std::move(sources.validation), config.data.validation_drop_last,
         config.trainer.limit_val_batches, "trainer.limit_val_batches", validation_);
    open(std::move(sources.test), true, config.trainer.limit_test_batches,
         "trainer.limit_test_batches", test_);
  }

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    shape_.check(step, dp_rank);
    return cut(*train_, shape_.consumed_before(step, resume_), dp_rank, parts_.loss_mask);
  }

  std::int64_t num_evaluation_batches(Split split) const override {
    return split == Split::kTrain ? 0 : held_out(split).num_batches;
  }

  std::vector<MicroBatch> evaluation_batches(Split split, std::int64_t batch,
                                             int dp_rank) const override {
    shape_.check(batch, dp_rank);
    const HeldOut& data = held_out(split);
    TORCH_INTERNAL_ASSERT(batch < data.num_batches, name_of(split), " batch ", batch, " of ",
                          data.num_batches);
    return cut(*data.reader, batch * shape_.global_batch, dp_rank, parts_.loss_mask || data.masked);
  }

  std::int64_t num_tokens() const override { return train_->source->num_tokens(); }
  std::int64_t num_pairs(Split split) const override {
    return parts_.sequences == 2 && has(split) ? source_of(split).num_samples() : 0;
  }
  std::vector<MicroBatch> pairs_in_order(Split split, std::int64_t first,
                                         int dp_rank) const override {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = dp_rank; i < shape_.global_batch; i += shape_.dp)
      indices.push_back(first + i < num_pairs(split) ? first + i : -1);
    return cut(source_of(split), indices, dp_rank, /*loss_mask=*/false);
  }
  std::string place_of_pair(Split split, std::int64_t pair) const override {
    return source_of(split).where(pair);
  }
  std::string description() const override { return description_; }

 private:
  struct HeldOut {
    std::optional<SplitReader> reader;
    std::int64_t num_batches = 0;
    bool masked = false;
  };
  [[nodiscard]] const HeldOut& held_out(Split split) const {
    TORCH_INTERNAL_ASSERT(split != Split::kTrain, "training data are read by micro_batches");
    return split == Split::kValidation ? validation_ : test_;
  }

  [[nodiscard]] bool has(Split split) const {
    return split == Split::kTrain || held_out(split).reader.has_value();
  }
  [[nodiscard]] const SampleSource& source_of(Split split) const {
    return *(split == Split::kTrain ? *train_ : *held_out(split).reader).source;
  }

  [[nodiscard]] std::vector<MicroBatch> cut(const SplitReader& data, std::int64_t consumed,
                                            int dp_rank, bool loss_mask) const {
    return cut(*data.source, data.sampler.indices(consumed, dp_rank), dp_rank, loss_mask);
  }

  [[nodiscard]] std::vector<MicroBatch> cut(const SampleSource& source,
                                            const std::vector<std::int64_t>& indices, int dp_rank,
                                            bool loss_mask) const {
    TORCH_INTERNAL_ASSERT(static_cast<std::int64_t>(indices.size()) == shape_.per_rank(),
                          "a rank's share of a batch");
    std::vector<MicroBatch> batches;
    for (std::int64_t first = 0; first < shape_.per_rank(); first += shape_.micro_batch)
      batches.push_back(micro_batch(source, indices, first, dp_rank, loss_mask));
    return batches;
  }

  [[nodiscard]] MicroBatch micro_batch(const SampleSource& source,
                                       const std::vector<std::int64_t>& indices, std::int64_t first,
                                       int dp_rank, bool loss_mask) const {
    MicroBatch batch = empty_batch(loss_mask);
    for (std::int64_t row = 0; row < shape_.micro_batch; ++row) {
      const std::int64_t index = indices[static_cast<std::size_t>(first + row)];
      const Sample sample = source.item(index);
      check_ids(sample, source, index);
      fill_row(sample, row, batch);
      for (const Sample& rejected : sample.rejected) {
        check_ids(rejected, source, index);
        fill_row(rejected, shape_.micro_batch + row, batch);
      }
      batch.places.push_back(dp_rank + (first + row) * shape_.dp);
      if (parts_.sequences == 2) batch.samples.push_back(index);
    }
    return batch;
  }

  [[nodiscard]] MicroBatch empty_batch(bool loss_mask) const {
    const std::vector<std::int64_t> sizes{shape_.micro_batch * parts_.sequences, shape_.sequence};
    MicroBatch batch{at::empty(sizes, at::kLong), at::empty(sizes, at::kLong)};
    if (loss_mask) batch.loss_mask = at::empty(sizes, at::kFloat);
    if (parts_.position_ids) batch.position_ids = at::empty(sizes, at::kLong);
    if (parts_.documents) batch.attention_mask = at::empty(sizes, at::kLong);
    if (parts_.next_tokens) batch.next_tokens = at::empty(sizes, at::kLong);
    return batch;
  }

  void fill_row(const Sample& sample, std::int64_t row, MicroBatch& batch) const {
    copy_row(sample.tokens, batch.input_ids, row);
    copy_row(sample.labels, batch.labels, row);
    if (parts_.position_ids) copy_row(sample.position_ids, batch.position_ids, row);
    if (parts_.documents) copy_row(sample.documents, batch.attention_mask, row);
    if (parts_.next_tokens) copy_row(sample.next_tokens, batch.next_tokens, row);
    if (!batch.loss_mask.defined()) return;
    float* mask = batch.loss_mask.mutable_data_ptr<float>() + row * shape_.sequence;
    if (sample.loss_mask.empty()) {
      std::fill_n(mask, shape_.sequence, 1.0F);
    } else {
      std::ranges::copy(sample.loss_mask, mask);
    }
  }

  void check_ids(const Sample& sample, const SampleSource& source, std::int64_t index) const {
    TORCH_INTERNAL_ASSERT(static_cast<std::int64_t>(sample.tokens.size()) == shape_.sequence,
                          "a sample of ", sample.tokens.size(), " tokens");
    if (vocab_size_ == 0) return;
    const auto largest = std::ranges::max(sample.tokens);
    const auto smallest = std::ranges::min(sample.tokens);
    if (smallest < 0 || largest >= vocab_size_) {
      const std::string record = source.where(index);
      throw ConfigError(c10::str("data: ", record.empty() ? description_ : record, ": token id ",
                                 smallest < 0 ? smallest : largest, ": expected 0 … ",
                                 vocab_size_ - 1,
                                 ", the model's padded vocabulary: the data were made with another "
                                 "tokenizer; set model.vocab_size or data.tokenizer to theirs"));
    }
  }

  BatchShape shape_;
  ResumePoint resume_;
  std::int64_t vocab_size_;
  BatchParts parts_;
  std::string description_;
  std::optional<SplitReader> train_;
  HeldOut validation_, test_;
};

}  // namespace

std::int64_t limited_batches(const std::optional<BatchCount>& limit, std::int64_t available,
                             const std::string& key) {
  if (!limit) return available;
  if (limit->count) return std::min(*limit->count, available);
  const auto part =
      static_cast<std::int64_t>(std::floor(*limit->fraction * static_cast<double>(available)));
  if (part == 0 && *limit->fraction > 0 && available > 0) {
    throw ConfigError(c10::str(
        key, ": ", *limit->fraction, " of ", available, " batches is less than one: expected ",
        1.0 / static_cast<double>(available), " or more, or a whole number of batches"));
  }
  return part;
}

std::shared_ptr<const DataModule> make_sampled_data_module(const RunConfig& config,
                                                           SplitSources sources,
                                                           const ResumePoint& resume) {
  return std::make_shared<const SampledDataModule>(config, std::move(sources), resume);
}

}  // namespace trellis::trainer
