#include "trainer/files/data/megatron/index_maps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "trainer/files/data/megatron/numpy_random.h"

namespace trellis::trainer {
namespace {

std::int64_t samples_of(std::int64_t tokens, const IndexMapRequest& request) {
  return (tokens - (request.extra_token ? 1 : 0)) / request.sequence_length;
}

void append_shuffled(std::vector<std::int32_t>& order, SequenceRange sequences, std::int64_t epochs,
                     NumpyRandomState& random) {
  const std::size_t first = order.size();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t i = sequences.first; i < sequences.end; ++i)
      order.push_back(static_cast<std::int32_t>(i));
  }
  random.shuffle(std::span(order).subspan(first));
}

std::vector<std::int32_t> build_doc_idx(const IndexMapRequest& request, const EpochPlan& plan,
                                        NumpyRandomState& random) {
  std::vector<std::int32_t> order;
  order.reserve(static_cast<std::size_t>(plan.num_epochs * request.sequences.count()));
  const std::int64_t separate = plan.separate_last_epoch ? 1 : 0;
  append_shuffled(order, request.sequences, plan.num_epochs - separate, random);
  if (separate != 0) append_shuffled(order, request.sequences, separate, random);
  return order;
}

/// Walks through the documents in their order, s tokens at a time (s + 1 are read, the last one
/// again by the next sample).
std::vector<std::int32_t> build_sample_idx(const IndexedDataset& data,
                                           const IndexMapRequest& request, const EpochPlan& plan,
                                           const std::vector<std::int32_t>& doc_idx) {
  const std::int64_t extra = request.extra_token ? 1 : 0;
  std::vector<std::int32_t> borders{0, 0};
  borders.reserve(static_cast<std::size_t>(plan.total_samples + 1) * 2);
  std::size_t position = 0;
  std::int64_t offset = 0;
  for (std::int64_t sample = 0; sample < plan.total_samples; ++sample) {
    std::int64_t remaining = request.sequence_length + extra;
    while (true) {
      const std::int64_t left_in_document = data.size(doc_idx[position]) - offset;
      if (left_in_document >= remaining) {
        offset += remaining - extra;
        break;
      }
      if (position + 1 == doc_idx.size()) {  // a short last sample
        TRELLIS_CHECK(sample + 1 == plan.total_samples, "the documents end before the last sample");
        offset = data.size(doc_idx[position]) - extra;
        break;
      }
      remaining -= left_in_document;
      ++position;
      offset = 0;
    }
    borders.push_back(static_cast<std::int32_t>(position));
    borders.push_back(static_cast<std::int32_t>(offset));
  }
  return borders;
}

template <typename T>
std::vector<T> build_shuffle_idx(std::int64_t together, std::int64_t total,
                                 NumpyRandomState& random) {
  std::vector<T> order(static_cast<std::size_t>(total));
  std::iota(order.begin(), order.end(), T{0});
  const auto first = static_cast<std::size_t>(together);
  random.shuffle(std::span(order).first(first));
  if (together < total) random.shuffle(std::span(order).subspan(first));
  return order;
}

}  // namespace

std::vector<SequenceRange> split_ranges(const std::vector<double>& weights,
                                        std::int64_t num_sequences) {
  TRELLIS_CHECK(weights.size() == 3, "three weights");
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  TRELLIS_CHECK(sum > 0, "a weight above 0");
  std::vector<std::int64_t> borders{0};
  // nearbyint rounds halves to even, as Python's round does.
  for (const double weight : weights)
    borders.push_back(borders.back() + static_cast<std::int64_t>(std::nearbyint(
                                           weight / sum * static_cast<double>(num_sequences))));
  const std::int64_t excess = borders.back() - num_sequences;
  std::vector<SequenceRange> ranges;
  // The shift can lead below 0 (three sequences over 0, 1, 1), where Megatron would count from the
  // end.
  const auto border = [&](std::size_t i) {
    return i == 0 ? 0 : std::max<std::int64_t>(0, borders[i] - excess);
  };
  for (std::size_t i = 0; i < 3; ++i) ranges.push_back({border(i), border(i + 1)});
  return ranges;
}

EpochPlan plan_epochs(const IndexedDataset& data, const IndexMapRequest& request) {
  EpochPlan plan;
  for (std::int64_t i = request.sequences.first; i < request.sequences.end; ++i)
    plan.tokens_per_epoch += data.size(i);
  const std::int64_t extra = request.extra_token ? 1 : 0;
  if (plan.tokens_per_epoch < request.sequence_length + extra) {
    throw ConfigError(data.prefix() + ": the " + request.split_name + " part (sequences " +
                      std::to_string(request.sequences.first) + " … " +
                      std::to_string(request.sequences.end) + ", the end not counted) has " +
                      std::to_string(plan.tokens_per_epoch) + " tokens, expected " +
                      std::to_string(request.sequence_length + extra) +
                      " or more for one sample: give more data, another " +
                      "splits_string or a shorter sequence");
  }
  TRELLIS_CHECK(request.num_samples > 0, "samples are asked for");
  const std::int64_t needed = request.num_samples * request.sequence_length + extra;
  plan.num_epochs = (needed + plan.tokens_per_epoch - 1) / plan.tokens_per_epoch;
  const std::int64_t all = plan.num_epochs * plan.tokens_per_epoch;
  plan.total_samples = request.drop_last ? samples_of(all, request)
                                         : samples_of(all + request.sequence_length - 1, request);
  plan.samples_without_last_epoch = samples_of(all - plan.tokens_per_epoch, request);
  const std::int64_t in_last = request.num_samples - plan.samples_without_last_epoch;
  plan.separate_last_epoch =
      plan.num_epochs > 1 &&
      in_last < static_cast<std::int64_t>(
                    0.80 * static_cast<double>(samples_of(plan.tokens_per_epoch, request)));
  const std::int64_t entries = plan.num_epochs * request.sequences.count();
  if (data.num_sequences() > std::numeric_limits<std::int32_t>::max() ||
      entries > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError(data.prefix() + ": " + std::to_string(plan.num_epochs) + " epochs of " +
                      std::to_string(request.sequences.count()) +
                      " sequences: expected at most 2147483647 in all, which is what Megatron's "
                      "index maps can number");
  }
  return plan;
}

IndexMaps build_index_maps(const IndexedDataset& data, const IndexMapRequest& request) {
  const EpochPlan plan = plan_epochs(data, request);
  NumpyRandomState random(static_cast<std::uint32_t>(request.seed));
  IndexMaps maps;
  maps.doc_idx = build_doc_idx(request, plan, random);
  maps.sample_idx = build_sample_idx(data, request, plan, maps.doc_idx);
  const std::int64_t together =
      plan.separate_last_epoch ? plan.samples_without_last_epoch : plan.total_samples;
  if (plan.total_samples >= std::int64_t{0xFFFFFFFF} - 1) {
    maps.shuffle_idx = build_shuffle_idx<std::int64_t>(together, plan.total_samples, random);
  } else {
    maps.shuffle_idx = build_shuffle_idx<std::uint32_t>(together, plan.total_samples, random);
  }
  return maps;
}

std::string index_map_prefix(const IndexedDataset& data, const IndexMapRequest& request,
                             const std::string& directory) {
  const std::filesystem::path place =
      directory.empty()
          ? std::filesystem::path(data.prefix())
          : std::filesystem::path(directory) / std::filesystem::path(data.prefix()).filename();
  return place.string() + "_" + request.split_name + "_indexmap_" +
         std::to_string(request.num_samples) + "ns_" + std::to_string(request.sequence_length) +
         "sl_" + std::to_string(request.seed) + "s";
}

}  // namespace trellis::trainer
