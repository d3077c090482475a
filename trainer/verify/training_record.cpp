#include "trainer/verify/training_record.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/loop/early_stopping.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel_layers/fully_sharded.h"

namespace trellis::trainer {
namespace {

using checkpoint::LiveState;
using checkpoint::LiveTensor;
using checkpoint::Shape;
using checkpoint::ShardedPart;

std::string item_of(const std::string& state) {
  if (state.empty()) return "weight";
  if (state == "fp32_param") return "master";
  return state == "ema" ? "moving average" : "state " + state;
}

ContentHash hash_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  ContentHasher hasher;
  hasher.bytes(host.const_data_ptr(), host.nbytes());
  return hasher.finish();
}

/// Rank 0 alone watches the monitored number.
std::string callbacks_text(const TrainingState& state) {
  if (state.early_stopping == nullptr || state.rank.rank() != 0) return "none";
  const EarlyStopping::State stopping = state.early_stopping->state();
  return fmt::format("EarlyStopping best {}, waited {}",
                     stopping.best ? fmt::format("{}", *stopping.best) : "none", stopping.waited);
}

/// In the order in which a step depends on them.
std::vector<RecordedNumber> numbers_of(const TrainingState& state, const StepResult* result) {
  const LrScheduler::State schedule = state.scheduler.state();
  std::vector<RecordedNumber> numbers = {
      {"step", fmt::format("{} of the optimizer", state.optimizer.steps())},
      {"random state", fmt::format("seed {}, step {}", state.config.seed, state.position.step)},
      {"schedule",
       fmt::format("best {}, {} epochs, {} bad ones, cooldown {}, rate {}", schedule.best,
                   schedule.epochs, schedule.bad_epochs, schedule.cooldown, schedule.lr)},
      {"callbacks", callbacks_text(state)}};
  if (result == nullptr) return numbers;
  const auto number = [&](const char* item, auto value) {
    numbers.push_back({item, fmt::format("{}", value)});
  };
  number("consumed samples", result->consumed_samples);
  number("learning rate", result->lr);
  number("loss", result->loss);
  number("gradient norm", result->grad_norm);
  if (result->val_loss) number("validation loss", *result->val_loss);
  return numbers;
}

at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape) {
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
  return tensor;
}

/// Content of one row of a micro-batch, with all that goes into the model.
void hash_row(const MicroBatch& batch, std::int64_t row, ContentHasher& hasher) {
  for (const at::Tensor* tensor :
       {&batch.input_ids, &batch.labels, &batch.loss_mask, &batch.position_ids,
        &batch.attention_mask, &batch.token_type_ids, &batch.next_sentence_labels,
        &batch.pixel_values}) {
    hasher.value(tensor->defined());
    if (!tensor->defined()) continue;
    const at::Tensor values = tensor->select(0, row).contiguous();
    hasher.bytes(values.const_data_ptr(), values.nbytes());
  }
}

std::int64_t rows_of(const MicroBatch& batch) {
  return (batch.input_ids.defined() ? batch.input_ids : batch.pixel_values).size(0);
}

using Found = std::optional<RecordDifference>;

Found samples_differ(const RecordedStep& got, const RecordedStep& expected) {
  for (const auto& [place, hash] : expected.samples) {
    const auto found = got.samples.find(place);
    const std::string read = found == got.samples.end() ? "none" : found->second.to_string();
    if (read == hash.to_string()) continue;
    RecordDifference difference{.item = "samples", .expected = hash.to_string(), .got = read};
    difference.tensor = fmt::format("place {} of the global batch", place);
    return difference;
  }
  if (got.samples.size() == expected.samples.size()) return std::nullopt;
  return RecordDifference{.item = "samples",
                          .expected = std::to_string(expected.samples.size()),
                          .got = std::to_string(got.samples.size())};
}

/// A run that goes on has no loss or rate yet: only what both have is compared.
Found numbers_differ(const RecordedStep& got, const RecordedStep& expected) {
  const RecordedNumber none{"", "none"};
  for (std::size_t rank = 0; rank < got.numbers.size(); ++rank) {
    const auto &values = got.numbers[rank], &wanted = expected.numbers.at(rank);
    const std::size_t count = got.resumed ? values.size() : std::max(values.size(), wanted.size());
    for (std::size_t i = 0; i < count; ++i) {
      const RecordedNumber& value = i < values.size() ? values[i] : none;
      const RecordedNumber& number = i < wanted.size() ? wanted[i] : none;
      if (value == number) continue;
      return RecordDifference{.item = number.item.empty() ? value.item : number.item,
                              .rank = static_cast<int>(rank),
                              .expected = number.value,
                              .got = value.value};
    }
  }
  return std::nullopt;
}

Found tensors_differ(const TrainingRecord& record, const RecordedStep& got,
                     const RecordedStep& expected) {
  for (std::size_t rank = 0; rank < got.tensors.size(); ++rank) {
    for (std::size_t i = 0; i < got.tensors[rank].size(); ++i) {
      const ContentHash &hash = got.tensors[rank][i], &wanted = expected.tensors.at(rank).at(i);
      if (hash == wanted) continue;
      const RecordedTensor& tensor = record.tensors[rank][i];
      return RecordDifference{.item = tensor.item,
                              .rank = static_cast<int>(rank),
                              .tensor = tensor.parameter,
                              .expected = wanted.to_string(),
                              .got = hash.to_string()};
    }
  }
  return std::nullopt;
}

}  // namespace

ContentHash RecordedStep::hash() const {
  ContentHasher hasher;
  const auto add = [&hasher](const ContentHash& part) {
    hasher.value(part.high);
    hasher.value(part.low);
  };
  for (const auto& rank : numbers) {
    for (const RecordedNumber& number : rank) {
      hasher.text(number.item);
      hasher.text(number.value);
    }
  }
  for (const auto& rank : tensors) {
    for (const ContentHash& tensor : rank) add(tensor);
  }
  for (const auto& [place, sample] : samples) add(sample);
  return hasher.finish();
}

std::string RecordDifference::text() const {
  return fmt::format("after step {}{}: {}{}{}: expected {}, got {}", step,
                     resumed ? ", as resumed" : "", item, tensor.empty() ? "" : " of " + tensor,
                     rank < 0 ? "" : " on rank " + std::to_string(rank), expected, got);
}

Found first_difference(const TrainingRecord& got, const TrainingRecord& expected,
                       bool samples_only) {
  for (const auto& [number, step] : got.steps) {
    const auto found = expected.steps.find(number);
    Found difference;
    if (found == expected.steps.end()) {
      difference = {.item = "end of the run", .expected = "no such step", .got = "a step"};
    } else {
      const RecordedStep& wanted = found->second;
      if (!step.resumed) difference = samples_differ(step, wanted);
      if (!difference && !samples_only) difference = numbers_differ(step, wanted);
      if (!difference && !samples_only && got.tensors != expected.tensors)
        difference = {.item = "tensors", .expected = "the same on each rank", .got = "others"};
      if (!difference && !samples_only) difference = tensors_differ(got, step, wanted);
    }
    if (!difference) continue;
    difference->step = number;
    difference->resumed = step.resumed;
    return difference;
  }
  return std::nullopt;
}

class TrainingRecorder::WatchedData final : public DataModule {
 public:
  WatchedData(std::shared_ptr<const DataModule> data, TrainingRecorder& recorder)
      : data_(std::move(data)), recorder_(recorder) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    std::vector<MicroBatch> batches = data_->micro_batches(step, dp_rank);
    recorder_.note(step + 1, dp_rank, batches);
    return batches;
  }
  [[nodiscard]] std::int64_t num_evaluation_batches(Split split) const override {
    return data_->num_evaluation_batches(split);
  }
  [[nodiscard]] std::vector<MicroBatch> evaluation_batches(Split split, std::int64_t batch,
                                                           int dp_rank) const override {
    return data_->evaluation_batches(split, batch, dp_rank);
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return data_->num_tokens(); }
  [[nodiscard]] std::string description() const override { return data_->description(); }

 private:
  std::shared_ptr<const DataModule> data_;
  TrainingRecorder& recorder_;
};

TrainingRecorder::TrainingRecorder(int world_size, std::int64_t last_step)
    : world_size_(world_size), last_step_(last_step) {
  record_.tensors.resize(static_cast<std::size_t>(world_size));
}

std::shared_ptr<const DataModule> TrainingRecorder::watched(
    std::shared_ptr<const DataModule> data) {
  return std::make_shared<const WatchedData>(std::move(data), *this);
}

/// References to a map's elements stay good. REQUIRES: mutex_.
RecordedStep& TrainingRecorder::step_of(std::int64_t step) {
  RecordedStep& found = record_.steps[step];
  found.numbers.resize(static_cast<std::size_t>(world_size_));
  found.tensors.resize(static_cast<std::size_t>(world_size_));
  return found;
}

void TrainingRecorder::note(std::int64_t step, int dp_rank,
                            const std::vector<MicroBatch>& batches) {
  std::map<std::int64_t, ContentHash> samples;
  std::int64_t next = 0;
  for (const MicroBatch& batch : batches) {
    const std::int64_t rows = rows_of(batch);
    const auto places = static_cast<std::int64_t>(batch.places.size());
    for (std::int64_t i = 0; i < (places > 0 ? places : rows); ++i) {
      ContentHasher hasher;
      for (std::int64_t row = i; row < rows; row += places > 0 ? places : rows)
        hash_row(batch, row, hasher);
      // Data without places: each data-parallel rank has its own.
      const std::int64_t place = places > 0 ? batch.places[static_cast<std::size_t>(i)]
                                            : (std::int64_t{dp_rank} << 32) + next++;
      samples[place] = hasher.finish();
    }
  }
  const std::scoped_lock lock(mutex_);
  step_of(step).samples.merge(samples);
}

void TrainingRecorder::add(const TrainingState& state, std::int64_t step,
                           const StepResult* result) {
  const at::NoGradGuard no_grad;
  const FullySharding::Whole whole_weights(state.fully_sharded);
  const auto rank = static_cast<std::size_t>(state.rank.rank());
  const LiveState live = checkpoint::live_state(state.parameters, state.optimizer, state.parallel);
  std::vector<RecordedTensor> tensors;
  std::vector<ContentHash> hashes;
  for (const auto* list : {&live.model, &live.optimizer}) {
    for (const LiveTensor& tensor : *list) {
      tensors.push_back({item_of(tensor.state), tensor.parameter});
      hashes.push_back(hash_of(tensor.values));
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    RecordedStep& found = step_of(step);
    found.resumed = result == nullptr;
    found.numbers[rank] = numbers_of(state, result);
    found.tensors[rank] = std::move(hashes);
    if (result != nullptr) found.loss = result->loss;
    record_.tensors[rank] = std::move(tensors);
  }
  if (result != nullptr && step == last_step_) gather(state);
}

void TrainingRecorder::gather(const TrainingState& state) {
  const FullySharding::Whole whole_weights(state.fully_sharded);
  const LiveState live = checkpoint::live_state(state.parameters, state.optimizer, state.parallel);
  for (const auto* list : {&live.model, &live.optimizer}) {
    for (const LiveTensor& tensor : *list) {
      const at::Tensor values = tensor.values.detach().cpu();
      for (const ShardedPart& part : tensor.parts) {
        if (!checkpoint::is_main_replica(part.tensor.replica_id)) continue;
        const std::scoped_lock lock(mutex_);
        at::Tensor& whole = record_.last[part.tensor.key];
        if (!whole.defined()) whole = at::zeros(part.tensor.global_shape, values.options());
        box_of(whole, part.tensor.global_offset, part.tensor.local_shape)
            .copy_(box_of(values, part.local.offset, part.local.shape));
      }
    }
  }
}

}  // namespace trellis::trainer
