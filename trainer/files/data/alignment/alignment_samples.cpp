#include "trainer/files/data/alignment/alignment_samples.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/activity.h"
#include "trainer/files/data/alignment/each_record.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kNoLoss = -100;

std::int64_t used_records(const RecordTokens& records, const AlignmentSampleOptions& options) {
  const std::int64_t all = records.texts().num_records();
  return options.most_records > 0 ? std::min(all, options.most_records) : all;
}

/// Fills a row up to the sequence: no label, positions that go on, no document.
void pad(Sample& sample, std::int64_t sequence, std::int32_t pad_id) {
  const auto length = static_cast<std::size_t>(sequence);
  sample.labels.resize(length, kNoLoss);
  if (!sample.position_ids.empty()) {
    for (std::int64_t i = 0; std::ssize(sample.position_ids) < sequence; ++i)
      sample.position_ids.push_back(i);
    sample.documents.resize(length, 0);
  }
  sample.tokens.resize(length, pad_id);
}

/// Tokens, and as labels the next ones that are learned.
void append_tokens(const AnsweredTokens& tokens, Sample& sample) {
  const std::size_t length = tokens.ids.size();
  sample.tokens.insert(sample.tokens.end(), tokens.ids.begin(), tokens.ids.end());
  for (std::size_t i = 0; i < length; ++i) {
    const bool learned = i + 1 < length && tokens.answer[i + 1];
    sample.labels.push_back(learned ? tokens.ids[i + 1] : kNoLoss);
  }
}

/// Lengths of records, counted on all cores. The first record that is wrong is thrown.
std::vector<std::int32_t> count_tokens(const RecordTokens& records, std::int64_t num_records,
                                       const AlignmentSampleOptions& options) {
  const Activity activity("counting the tokens of " + std::to_string(num_records) +
                          " records, to pack them");
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(num_records));
  const unsigned workers = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
  for_each_record(0, num_records, workers, [&](std::int64_t i) {
    lengths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        records.answered(i, options.sequence, options.truncation).ids.size());
  });
  return lengths;
}

}  // namespace

AnsweredSamples::AnsweredSamples(std::shared_ptr<const RecordTokens> records,
                                 const AlignmentSampleOptions& options)
    : records_(std::move(records)),
      options_(options),
      num_records_(used_records(*records_, options)) {
  if (options_.packing) pack();
}

void AnsweredSamples::pack() {
  const auto lengths = count_tokens(*records_, num_records_, options_);
  std::int64_t used = options_.sequence;
  for (std::int64_t i = 0; i < num_records_; ++i) {
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    packed_tokens_ += length;
    if (used + length > options_.sequence) {
      packs_.push_back(i);
      used = 0;
    }
    used += length;
  }
  packs_.push_back(num_records_);
}

std::int64_t AnsweredSamples::num_samples() const {
  return options_.packing ? std::ssize(packs_) - 1 : num_records_;
}

std::string AnsweredSamples::description() const {
  std::string text = std::to_string(num_records_) + " records";
  if (!options_.packing) return text + ", each padded to " + std::to_string(options_.sequence);
  const double padding =
      1 - static_cast<double>(packed_tokens_) / static_cast<double>(num_tokens());
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * padding);
  return text + " packed into " + std::to_string(num_samples()) + " sequences of " +
         std::to_string(options_.sequence) + " tokens, " + percent + " of them padding";
}

void AnsweredSamples::append(std::int64_t record, std::int64_t document, Sample& sample) const {
  const AnsweredTokens tokens = records_->answered(record, options_.sequence, options_.truncation);
  append_tokens(tokens, sample);
  if (!options_.packing) return;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    sample.position_ids.push_back(static_cast<std::int64_t>(i));
    sample.documents.push_back(document);
  }
}

std::string AnsweredSamples::where(std::int64_t index) const {
  if (!options_.packing) return records_->texts().where(std::max<std::int64_t>(index, 0));
  return records_->texts().where(
             packs_[static_cast<std::size_t>(std::max<std::int64_t>(index, 0))]) +
         " and those packed after it";
}

Sample AnsweredSamples::item(std::int64_t index) const {
  const std::int64_t place = index < 0 ? num_samples() - 1 : index;
  Sample sample;
  if (options_.packing) {
    const std::int64_t first = packs_[static_cast<std::size_t>(place)],
                       end = packs_[static_cast<std::size_t>(place) + 1];
    for (std::int64_t record = first; record < end; ++record)
      append(record, record - first + 1, sample);
  } else {
    append(place, 0, sample);
  }
  pad(sample, options_.sequence, records_->pad_id());
  if (index < 0) sample.loss_mask.assign(sample.tokens.size(), 0.0F);
  return sample;
}

PreferenceSamples::PreferenceSamples(std::shared_ptr<const RecordTokens> records,
                                     const AlignmentSampleOptions& options)
    : records_(std::move(records)),
      options_(options),
      num_records_(used_records(*records_, options)) {}

Sample PreferenceSamples::sequence(const AnsweredTokens& tokens) const {
  Sample sample;
  append_tokens(tokens, sample);
  if (options_.next_tokens) {
    sample.next_tokens.assign(sample.tokens.begin() + 1, sample.tokens.end());
    sample.next_tokens.resize(static_cast<std::size_t>(options_.sequence), kNoLoss);
  }
  pad(sample, options_.sequence, records_->pad_id());
  return sample;
}

Sample PreferenceSamples::item(std::int64_t index) const {
  const std::int64_t record = index < 0 ? num_records_ - 1 : index;
  const PreferenceTokens tokens = records_->preference(
      record, options_.sequence, options_.max_prompt_length, options_.truncation);
  Sample sample = sequence(tokens.chosen);
  sample.rejected.push_back(sequence(tokens.rejected));
  if (index >= 0) return sample;
  sample.loss_mask.assign(sample.tokens.size(), 0.0F);
  sample.rejected[0].loss_mask = sample.loss_mask;
  return sample;
}

}  // namespace trellis::trainer
