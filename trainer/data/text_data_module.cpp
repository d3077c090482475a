#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "base/log.h"
#include "trainer/data/batch_shape.h"
#include "trainer/data/text_data_module.h"
#include "trainer/files/data/samples/sample_order.h"
#include "trainer/files/data/text_files.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {
namespace {

/// Tokens of whole documents, each ended by the tokenizer's end-of-sequence token, cut into samples
/// of s + 1 without overlap; the rest is dropped. Samples are s + 1 tokens long: the inputs, and
/// the last label.
struct TokenStream {
  std::vector<std::int32_t> tokens;
  std::int64_t sample_length = 0;

  [[nodiscard]] std::int64_t num_samples() const {
    return static_cast<std::int64_t>(tokens.size()) / sample_length;
  }
  void copy_sample(std::int64_t sample, std::int64_t* inputs, std::int64_t* labels) const {
    const auto begin = tokens.begin() + sample * sample_length;
    std::copy_n(begin, sample_length - 1, inputs);
    std::copy_n(begin + 1, sample_length - 1, labels);
  }
};

/// How many tokens `bytes` of text have, as the first document has them, and an eighth more: a
/// vector that grows takes up to three times its size. Few texts have more tokens than bytes.
std::size_t expected_tokens(std::size_t first_tokens, std::size_t first_bytes, std::size_t bytes) {
  const std::size_t expected = bytes * first_tokens / first_bytes;
  return std::min(bytes, expected + expected / 8);
}

TokenStream tokenize(const TextFiles& files, const RunConfig& config) {
  const auto tokenizer = make_tokenizer(config.data.tokenizer);
  if (!tokenizer->eos_id())
    throw ConfigError(
        "data.tokenizer: has no end-of-sequence token, which ends every document: name one "
        "(eos_token in tokenizer_config.json)");
  if (config.model.vocab_size != 0 && tokenizer->vocab_size() > config.model.vocab_size) {
    throw ConfigError(c10::str("model.vocab_size: expected ", tokenizer->vocab_size(),
                               " or more, the ids of data.tokenizer, got ",
                               config.model.vocab_size));
  }
  for (const std::string& note : tokenizer->notes()) log_warning(note);
  TokenStream stream;
  stream.sample_length = config.model.encoder_seq_length + 1;
  std::size_t bytes = 0;  // with an end for each document
  for (const std::string& document : files.documents) bytes += document.size() + 1;
  for (const std::string& document : files.documents) {
    tokenizer->encode(document, stream.tokens);
    stream.tokens.push_back(*tokenizer->eos_id());
    if (&document == &files.documents.front())
      stream.tokens.reserve(expected_tokens(stream.tokens.size(), document.size() + 1, bytes));
  }
  return stream;
}

class TextDataModule : public DataModule {
 public:
  TextDataModule(const RunConfig& config, const TextFiles& files, const ResumePoint& resume)
      : shape_(BatchShape::of(config)),
        resume_(resume),
        seed_(static_cast<std::uint64_t>(config.seed)),
        train_(tokenize(files, config)) {
    num_samples_ = train_.num_samples();
    if (num_samples_ < shape_.global_batch) {
      throw ConfigError(c10::str(
          "data.train_dir: ", files.source, " is too short for one global batch: it has ",
          num_tokens(), " tokens, one step needs ", shape_.global_batch * train_.sample_length,
          " (global_batch_size ", shape_.global_batch, " × (encoder_seq_length ", shape_.sequence,
          " + 1)); give a longer text, or lower data.global_batch_size or "
          "model.encoder_seq_length"));
    }
    description_ = describe(files, config.data.tokenizer.library);
    open_held_out(config, config.data.val_dir, config.data.validation_drop_last,
                  config.trainer.limit_val_batches, "val", validation_);
    open_held_out(config, config.data.test_dir, true, config.trainer.limit_test_batches, "test",
                  test_);
  }

  std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override {
    shape_.check(step, dp_rank);
    const std::int64_t first = shape_.consumed_before(step, resume_) + dp_rank * shape_.per_rank();
    return cut(
        train_, dp_rank, [&](std::int64_t row) { return place_of(first + row); },
        /*loss_mask=*/false);
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
    const std::int64_t first = batch * shape_.global_batch + dp_rank * shape_.per_rank();
    const std::int64_t num_samples = data.stream.num_samples();
    return cut(
        data.stream, dp_rank,
        [&](std::int64_t row) { return first + row < num_samples ? first + row : -1; },
        data.masked);
  }

  std::int64_t num_tokens() const override {
    return static_cast<std::int64_t>(train_.tokens.size());
  }
  std::string description() const override { return description_; }

 private:
  struct HeldOut {
    TokenStream stream;
    std::int64_t num_batches = 0;
    bool masked = false;
  };

  std::string describe(const TextFiles& files, const std::string& library) const {
    std::string text =
        c10::str(files.source, ": ", files.documents.size(), " documents, ", num_tokens(), " ",
                 library, " tokens, ", num_samples_, " samples of ", train_.sample_length);
    if (files.num_skipped > 0)
      text += c10::str("; ", files.num_skipped,
                       " files skipped that are empty or no text, such as ", files.first_skipped);
    return text;
  }

  void open_held_out(const RunConfig& config, const std::string& directory, bool drop_last,
                     const std::optional<BatchCount>& limit, const std::string& name,
                     HeldOut& out) {
    if (directory.empty() || (limit && limit->is_zero())) return;
    out.stream = tokenize(read_text_files(directory, "data." + name + "_dir"), config);
    out.masked = !drop_last;
    const std::int64_t samples =
        out.stream.num_samples() + (drop_last ? 0 : shape_.global_batch - 1);
    const std::int64_t available =
        out.stream.num_samples() == 0 ? 0 : samples / shape_.global_batch;
    if (available == 0) {
      throw ConfigError(c10::str("data.", name, "_dir: ", directory, " is too short: it has ",
                                 out.stream.tokens.size(), " tokens, one global batch needs ",
                                 shape_.global_batch * out.stream.sample_length));
    }
    out.num_batches = limited_batches(limit, available, "trainer.limit_" + name + "_batches");
  }

  [[nodiscard]] const HeldOut& held_out(Split split) const {
    TORCH_INTERNAL_ASSERT(split != Split::kTrain, "training data are read by micro_batches");
    return split == Split::kValidation ? validation_ : test_;
  }

  /// A rank's share of a global batch; `sample_of(row)`: −1 for a row that only fills the batch.
  template <typename SampleOf>
  std::vector<MicroBatch> cut(const TokenStream& stream, int dp_rank, SampleOf sample_of,
                              bool loss_mask) const {
    const std::vector<std::int64_t> sizes{shape_.micro_batch, shape_.sequence};
    std::vector<MicroBatch> batches;
    for (std::int64_t first = 0; first < shape_.per_rank(); first += shape_.micro_batch) {
      MicroBatch batch{at::empty(sizes, at::kLong), at::empty(sizes, at::kLong)};
      if (loss_mask) batch.loss_mask = at::empty(sizes, at::kFloat);
      for (std::int64_t row = 0; row < shape_.micro_batch; ++row) {
        const std::int64_t sample = sample_of(first + row);
        const std::int64_t at = row * shape_.sequence;
        stream.copy_sample(std::max<std::int64_t>(sample, 0),
                           batch.input_ids.mutable_data_ptr<std::int64_t>() + at,
                           batch.labels.mutable_data_ptr<std::int64_t>() + at);
        if (loss_mask)
          std::fill_n(batch.loss_mask.mutable_data_ptr<float>() + at, shape_.sequence,
                      sample < 0 ? 0.0F : 1.0F);
        batch.places.push_back(dp_rank * shape_.per_rank() + first + row);
      }
      batches.push_back(std::move(batch));
    }
    return batches;
  }

  /// Samples are numbered without end: sample n is place n mod N of epoch n / N.
  std::int64_t place_of(std::int64_t sample) const {
    const auto order = order_of(sample / num_samples_);
    return (*order)[static_cast<std::size_t>(sample % num_samples_)];
  }

  using Order = std::shared_ptr<const std::vector<std::int64_t>>;

  /// Ranks are threads, and one may be an epoch later than the others: two orders are kept.
  Order order_of(std::int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [kept_epoch, order] : kept_) {
      if (order != nullptr && kept_epoch == epoch) return order;
    }
    auto& oldest = kept_[0].first <= kept_[1].first ? kept_[0] : kept_[1];
    oldest = {epoch, std::make_shared<const std::vector<std::int64_t>>(
                         epoch_order(num_samples_, seed_, epoch))};
    return oldest.second;
  }

  BatchShape shape_;
  ResumePoint resume_;
  std::uint64_t seed_;
  TokenStream train_;
  std::int64_t num_samples_ = 0;
  std::string description_;
  HeldOut validation_, test_;
  mutable std::mutex mutex_;
  mutable std::pair<std::int64_t, Order> kept_[2] = {{-1, nullptr}, {-1, nullptr}};
};

TextFiles read_train_dir(const std::string& train_dir) {
  if (!train_dir.empty()) return read_text_files(train_dir, "data.train_dir");
  const char* path = std::getenv("PATH");
  return read_python_library(path != nullptr ? path : "/usr/bin");
}

}  // namespace

std::shared_ptr<const DataModule> make_text_data_module(const RunConfig& config,
                                                        const ResumePoint& resume) {
  return std::make_shared<const TextDataModule>(config, read_train_dir(config.data.train_dir),
                                                resume);
}

}  // namespace trellis::trainer
