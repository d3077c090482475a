#include "trainer/files/data/megatron/gpt_dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kPadding = -1;
constexpr std::int64_t kWholeDocument = -1;

std::vector<std::int64_t> positions(const std::vector<std::int64_t>& tokens,
                                    const GptSampleOptions& options) {
  std::vector<std::int64_t> ids(tokens.size());
  std::int64_t start = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i) - start;
    if (options.reset_position_ids && tokens[i] == options.eod_id)
      start = static_cast<std::int64_t>(i) + 1;
  }
  return ids;
}

}  // namespace

Sample make_gpt_sample(std::vector<std::int64_t> text, const GptSampleOptions& options) {
  Sample item;
  item.labels.assign(text.begin() + 1, text.end());
  if (options.extra_token) {
    text.pop_back();
  } else {
    item.labels.push_back(kPadding);
  }
  item.tokens = std::move(text);
  item.position_ids = positions(item.tokens, options);
  item.loss_mask.assign(item.tokens.size(), 1.0F);
  for (std::size_t i = 0; i < item.tokens.size(); ++i) {
    if (item.labels[i] == kPadding || (options.eod_mask_loss && item.tokens[i] == options.eod_id))
      item.loss_mask[i] = 0;
  }
  std::ranges::replace(item.tokens, kPadding, std::int64_t{0});
  std::ranges::replace(item.labels, kPadding, std::int64_t{0});
  return item;
}

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> data, const IndexMapRequest& request,
                       const GptSampleOptions& options, const std::string& index_directory)
    : data_(std::move(data)),
      index_(SampleIndex::open(*data_, request, index_directory)),
      options_(options),
      index_prefix_(index_map_prefix(*data_, request, index_directory)) {
  for (std::int64_t i = request.sequences.first; i < request.sequences.end; ++i)
    num_tokens_ += data_->size(i);
}

void GptDataset::append(std::vector<std::int64_t>& text, std::int64_t position, std::int64_t begin,
                        std::int64_t end) const {
  const std::int64_t sequence = index_.document(position);
  const std::int64_t size = data_->size(sequence);
  if (end == kWholeDocument) end = size;
  if (begin < 0 || begin > end || end > size) {
    throw ConfigError(index_prefix_ + "_sample_idx.npy: tokens " + std::to_string(begin) + " … " +
                      std::to_string(end) + " of sequence " + std::to_string(sequence) +
                      ", which has " + std::to_string(size) + ": the index maps are not those of " +
                      data_->prefix() + "; remove them, they are made again");
  }
  text.resize(text.size() + static_cast<std::size_t>(end - begin));
  data_->read(sequence, begin, end - begin, text.data() + text.size() - (end - begin));
}

std::vector<std::int64_t> GptDataset::text(std::int64_t index) const {
  const std::int64_t extra = options_.extra_token ? 1 : 0;
  const std::int64_t sample = index_.shuffled(index);
  const std::int64_t num_samples = index_.num_samples();
  const auto first =
      sample < num_samples ? index_.border(sample) : std::pair<std::int64_t, std::int64_t>{-1, 0};
  const auto last = sample < num_samples ? index_.border(sample + 1) : first;
  const std::size_t length = static_cast<std::size_t>(options_.sequence_length + extra);
  if (first.first < 0 || last.first < first.first || last.first >= index_.num_documents()) {
    throw ConfigError(index_prefix_ + "_shuffle_idx.npy or _sample_idx.npy: sample " +
                      std::to_string(sample) + " of " + std::to_string(num_samples) +
                      " has no place: the files are corrupt; remove them, they are made again");
  }
  std::vector<std::int64_t> tokens;
  tokens.reserve(length);
  for (std::int64_t position = first.first; position <= last.first && tokens.size() <= length;
       ++position) {
    append(tokens, position, position == first.first ? first.second : 0,
           position == last.first ? last.second + extra : kWholeDocument);
  }
  tokens.resize(length, kPadding);
  return tokens;
}

Sample GptDataset::item(std::int64_t index) const {
  // Python counts −1 from the end; only the shape of such a row matters.
  Sample item = make_gpt_sample(text(index < 0 ? num_samples() - 1 : index), options_);
  if (index < 0) std::ranges::fill(item.loss_mask, 0.0F);
  return item;
}

}  // namespace trellis::trainer
