#include "trainer/files/data/samples/samplers.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {

void SamplerShape::check() const {
  const auto require = [](bool good, const std::string& name, std::int64_t got,
                          const std::string& to_do) {
    if (!good)
      throw ConfigError(name + ": expected a number above 0, got " + std::to_string(got) + to_do);
  };
  require(total_samples > 0, "samples of the data", total_samples,
          ": there is no sample to consume; give data, or another data.splits_string");
  require(micro_batch_size > 0, "data.micro_batch_size", micro_batch_size, "");
  require(data_parallel_size > 0, "data-parallel size", data_parallel_size, "");
  if (global_batch_size <= 0 || global_batch_size % (micro_batch_size * data_parallel_size) != 0) {
    throw ConfigError(
        "data.global_batch_size: expected a multiple of micro_batch_size × data-parallel size = " +
        std::to_string(micro_batch_size) + " × " + std::to_string(data_parallel_size) +
        (pad_samples_to_global_batch_size ? ", which pad_samples_to_global_batch_size fills" : "") +
        ", got " + std::to_string(global_batch_size));
  }
}

void SamplerShape::check_rank(int data_parallel_rank) const {
  if (data_parallel_rank < 0 || data_parallel_rank >= data_parallel_size) {
    throw ConfigError("data-parallel rank: expected 0 … " + std::to_string(data_parallel_size - 1) +
                      ", got " + std::to_string(data_parallel_rank));
  }
}

SequentialSampler::SequentialSampler(const SamplerShape& shape) : shape_(shape) { shape_.check(); }

std::int64_t SequentialSampler::num_batches(std::int64_t consumed_samples) const {
  const std::int64_t left = shape_.total_samples - consumed_samples % shape_.total_samples;
  return shape_.drop_last ? left / shape_.global_batch_size
                          : (left + shape_.global_batch_size - 1) / shape_.global_batch_size;
}

std::vector<std::int64_t> SequentialSampler::indices(std::int64_t batch, int data_parallel_rank,
                                                     std::int64_t consumed_samples) const {
  shape_.check_rank(data_parallel_rank);
  std::vector<std::int64_t> indices;
  if (batch >= num_batches(consumed_samples)) return indices;
  const std::int64_t first =
      consumed_samples % shape_.total_samples + batch * shape_.global_batch_size;
  const std::int64_t length = std::min(shape_.global_batch_size, shape_.total_samples - first);
  for (std::int64_t place = data_parallel_rank; place < length; place += shape_.data_parallel_size)
    indices.push_back(first + place);
  if (shape_.pad_samples_to_global_batch_size)
    indices.resize(static_cast<std::size_t>(shape_.per_rank()), -1);
  return indices;
}

RandomSampler::RandomSampler(const SamplerShape& shape, std::uint64_t seed)
    : shape_(shape), bucket_(0), orders_(seed) {
  shape_.check();
  bucket_ = shape_.total_samples / (shape_.micro_batch_size * shape_.data_parallel_size) *
            shape_.micro_batch_size;
  if (shape_.pad_samples_to_global_batch_size)
    throw ConfigError(
        "data.pad_samples_to_global_batch_size: expected false with dataloader_type cyclic, got "
        "true");
  if (!shape_.drop_last && shape_.micro_batch_size * shape_.data_parallel_size > 1) {
    throw ConfigError(
        "data.drop_last: expected true with dataloader_type cyclic and micro_batch_size × "
        "data-parallel size = " +
        std::to_string(shape_.micro_batch_size * shape_.data_parallel_size) + " > 1, got false");
  }
  if (shape_.total_samples < shape_.global_batch_size) {
    throw ConfigError("samples of the data: expected at least one global batch of " +
                      std::to_string(shape_.global_batch_size) + ", got " +
                      std::to_string(shape_.total_samples));
  }
}

std::vector<std::int64_t> RandomSampler::indices(std::int64_t consumed_samples,
                                                 int data_parallel_rank) const {
  shape_.check_rank(data_parallel_rank);
  const std::int64_t dp = shape_.data_parallel_size;
  const std::int64_t active =
      shape_.total_samples - shape_.total_samples % shape_.global_batch_size;
  const std::int64_t consumed_in_epoch = consumed_samples % active;
  if (consumed_in_epoch % (shape_.micro_batch_size * dp) != 0) {
    throw ConfigError(
        "consumed samples of the epoch: expected a multiple of micro_batch_size × data-parallel "
        "size = " +
        std::to_string(shape_.micro_batch_size * dp) + ", got " +
        std::to_string(consumed_in_epoch) + ": resume with a layout that divides them");
  }
  const EpochOrders::Order order = orders_.of(consumed_samples / active, bucket_);
  const std::int64_t first = consumed_in_epoch / dp;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = first; i < std::min(first + shape_.per_rank(), bucket_); ++i)
    indices.push_back(data_parallel_rank * bucket_ + (*order)[static_cast<std::size_t>(i)]);
  return indices;
}

ShuffledSampler::ShuffledSampler(const SamplerShape& shape, std::uint64_t seed)
    : shape_(shape), orders_(seed) {
  shape_.check();
  if (shape_.total_samples < shape_.global_batch_size) {
    throw ConfigError("samples of the data: expected at least one global batch of " +
                      std::to_string(shape_.global_batch_size) + ", got " +
                      std::to_string(shape_.total_samples));
  }
}

std::vector<std::int64_t> ShuffledSampler::indices(std::int64_t consumed_samples,
                                                   int data_parallel_rank) const {
  shape_.check_rank(data_parallel_rank);
  const std::int64_t batch = shape_.global_batch_size,
                     active = shape_.total_samples - shape_.total_samples % batch;
  std::int64_t epoch = consumed_samples / active, first = consumed_samples % active;
  if (first + batch > shape_.total_samples) {
    ++epoch;
    first = 0;
  }
  const EpochOrders::Order order = orders_.of(epoch, shape_.total_samples);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = data_parallel_rank; i < batch; i += shape_.data_parallel_size)
    indices.push_back((*order)[static_cast<std::size_t>(first + i)]);
  return indices;
}

EpochOrders::Order EpochOrders::of(std::int64_t epoch, std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  if (kept_epoch_ != epoch) {
    kept_ = std::make_shared<const std::vector<std::int64_t>>(
        torch_randperm(count, seed_ + static_cast<std::uint64_t>(epoch)));
    kept_epoch_ = epoch;
  }
  return kept_;
}

std::vector<std::int64_t> torch_randperm(std::int64_t count, std::uint64_t seed) {
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  // Large counts take 64 bits per draw, the first 32 being the higher ones, so that the modulus
  // stays even.
  const bool wide = count >= std::int64_t{0xFFFFFFFF} / 20;
  for (std::int64_t i = 0; i < count - 1; ++i) {
    std::uint64_t draw = generator();
    if (wide) draw = draw << 32 | generator();
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(i) + draw % static_cast<std::uint64_t>(count - i)]);
  }
  return order;
}

}  // namespace trellis::trainer
