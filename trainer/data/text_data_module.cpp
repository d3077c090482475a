#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/data/byte_tokenizer.h"
#include "trainer/data/data_module.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/text_files.h"

namespace trellis::trainer {
namespace {

/// What the layout and the batch sizes mean for data. Samples are numbered without end: sample n is place n mod N of epoch n / N.
struct BatchShape {
  std::int64_t micro_batch = 0, micro_batches = 0, sequence = 0, global_batch = 0;
  int dp = 1;

  static BatchShape of(const RunConfig& config) {
    return {config.data.micro_batch_size, config.num_microbatches(), config.model.encoder_seq_length, config.data.global_batch_size,
            config.dp()};
  }
  /// Samples are s + 1 tokens long: the inputs, and the last label.
  [[nodiscard]] std::int64_t sample_length() const { return sequence + 1; }
  [[nodiscard]] std::int64_t first_sample(std::int64_t step, int dp_rank) const {
    return step * global_batch + dp_rank * (global_batch / dp);
  }
  void check(std::int64_t step, int dp_rank) const {
    TORCH_INTERNAL_ASSERT(step >= 0 && dp_rank >= 0 && dp_rank < dp, "step ", step, ", data-parallel rank ", dp_rank, " of ", dp);
  }
};

std::vector<std::uint16_t> tokenize(const TextFiles& files) {
  std::size_t size = 0;
  for (const std::string& document : files.documents) size += document.size() + 1;
  std::vector<std::uint16_t> tokens;
  tokens.reserve(size);
  for (const std::string& document : files.documents) {
    for (const char byte : document) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(kEndOfDocument);
  }
  return tokens;
}

/// Byte-level tokens of whole documents, each ended by kEndOfDocument, cut into samples without overlap; the rest is dropped.
class TextDataModule : public DataModule {
 public:
  TextDataModule(const RunConfig& config, const TextFiles& files)
      : shape_(BatchShape::of(config)), seed_(static_cast<std::uint64_t>(config.seed)), tokens_(tokenize(files)) {
    num_samples_ = num_tokens() / shape_.sample_length();
    const std::int64_t needed = shape_.global_batch * shape_.sample_length();
    if (num_samples_ < shape_.global_batch) {
      throw ConfigError(c10::str("data.train_dir: ", files.source, " is too short for one global batch: it has ", num_tokens(),
                                 " tokens, one step needs ", needed, " (global_batch_size ", shape_.global_batch,
                                 " × (encoder_seq_length ", shape_.sequence,
                                 " + 1)); give a longer text, or lower data.global_batch_size or model.encoder_seq_length"));
    }
    description_ = describe(files);
  }

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    shape_.check(step, dp_rank);
    std::vector<MicroBatch> batches;
    std::int64_t sample = shape_.first_sample(step, dp_rank);
    for (std::int64_t i = 0; i < shape_.micro_batches; ++i, sample += shape_.micro_batch) batches.push_back(micro_batch(sample));
    return batches;
  }

  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::string description() const override { return description_; }

 private:
  std::string describe(const TextFiles& files) const {
    std::string text = c10::str(files.source, ": ", files.documents.size(), " documents, ", num_tokens(), " byte-level tokens, ", num_samples_,
                                " samples of ", shape_.sample_length());
    if (files.num_skipped > 0) text += c10::str("; ", files.num_skipped, " files skipped that are empty or no text, such as ", files.first_skipped);
    return text;
  }

  MicroBatch micro_batch(std::int64_t first) const {
    MicroBatch batch{at::empty({shape_.micro_batch, shape_.sequence}, at::kLong), at::empty({shape_.micro_batch, shape_.sequence}, at::kLong)};
    auto* inputs = batch.input_ids.mutable_data_ptr<std::int64_t>();
    auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < shape_.micro_batch; ++row) {
      const auto sample = tokens_.begin() + place_of(first + row) * shape_.sample_length();
      std::copy_n(sample, shape_.sequence, inputs + row * shape_.sequence);
      std::copy_n(sample + 1, shape_.sequence, labels + row * shape_.sequence);
    }
    return batch;
  }

  std::int64_t place_of(std::int64_t sample) const {
    const auto order = order_of(sample / num_samples_);
    return (*order)[static_cast<std::size_t>(sample % num_samples_)];
  }

  using Order = std::shared_ptr<const std::vector<std::int64_t>>;

  /// Ranks are threads, and one may be an epoch behind the others: two orders are kept.
  Order order_of(std::int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [kept_epoch, order] : kept_) {
      if (order != nullptr && kept_epoch == epoch) return order;
    }
    auto& oldest = kept_[0].first <= kept_[1].first ? kept_[0] : kept_[1];
    oldest = {epoch, std::make_shared<const std::vector<std::int64_t>>(epoch_order(num_samples_, seed_, epoch))};
    return oldest.second;
  }

  BatchShape shape_;
  std::uint64_t seed_;
  std::vector<std::uint16_t> tokens_;
  std::int64_t num_samples_ = 0;
  std::string description_;
  mutable std::mutex mutex_;
  mutable std::pair<std::int64_t, Order> kept_[2] = {{-1, nullptr}, {-1, nullptr}};
};

class EmptyDataModule : public DataModule {
 public:
  explicit EmptyDataModule(const RunConfig& config) : shape_(BatchShape::of(config)) {}

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    shape_.check(step, dp_rank);
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < shape_.micro_batches; ++i) {
      batches.push_back({at::zeros({shape_.micro_batch, shape_.sequence}, at::kLong), at::zeros({shape_.micro_batch, shape_.sequence}, at::kLong)});
    }
    return batches;
  }
  std::int64_t num_tokens() const override { return 0; }
  std::string description() const override { return "no data: zeros of the right shape"; }

 private:
  BatchShape shape_;
};

TextFiles read_train_dir(const std::string& train_dir) {
  if (!train_dir.empty()) return read_text_files(train_dir);
  const char* path = std::getenv("PATH");
  return read_python_library(path != nullptr ? path : "/usr/bin");
}

}  // namespace

std::shared_ptr<const DataModule> make_data_module(const RunConfig& config) {
  return std::make_shared<const TextDataModule>(config, read_train_dir(config.data.train_dir));
}

std::shared_ptr<const DataModule> make_empty_data_module(const RunConfig& config) {
  return std::make_shared<const EmptyDataModule>(config);
}

}  // namespace trellis::trainer
