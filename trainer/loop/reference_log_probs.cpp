#include "trainer/loop/reference_log_probs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "runtime/ranks/world.h"
#include "trainer/loop/rank_model.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/pipeline/model.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "trellis.reference_log_probs/1";
constexpr Split kSplits[] = {Split::kTrain, Split::kValidation, Split::kTest};
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
/// Relative tolerance of a log-probability that another layout or type gives.
constexpr double kSameWeights = 2e-2;

/// Tokens and labels of both sequences of pair `row`.
std::string hash_of(const MicroBatch& batch, std::int64_t row) {
  const std::int64_t pairs = batch.input_ids.size(0) / 2, length = batch.input_ids.size(1);
  ContentHasher hasher;
  for (const std::int64_t at : {row, pairs + row}) {
    for (const at::Tensor* tensor : {&batch.input_ids, &batch.labels})
      hasher.bytes(tensor->const_data_ptr<std::int64_t>() + at * length,
                   static_cast<std::size_t>(length) * sizeof(std::int64_t));
  }
  return hasher.finish().to_string();
}

/// The adapters are left out while this lives, unless they belong to the reference.
class WithoutAdapters {
 public:
  WithoutAdapters(const ModuleContext& context, bool with) : position_(*context.position) {
    position_.adapters = with;
  }
  ~WithoutAdapters() { position_.adapters = true; }
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  StepPosition& position_;
};

/// Places of the global batch [gbs, 2] from each rank's own pairs, on every rank.
at::Tensor gather(const std::vector<MicroBatch>& micro_batches, const at::Tensor& log_probs,
                  const ModuleContext& context, std::int64_t global_batch) {
  const at::Tensor host = log_probs.cpu().to(at::kDouble);
  at::Tensor places = at::zeros({global_batch, 2}, at::kDouble);
  std::int64_t first = 0;
  for (const MicroBatch& batch : micro_batches) {
    const std::int64_t pairs = batch.input_ids.size(0) / 2;
    for (std::int64_t row = 0; row < pairs; ++row) {
      const std::int64_t place = batch.places[static_cast<std::size_t>(row)];
      places[place][0] = host[first + row];
      places[place][1] = host[first + pairs + row];
    }
    first += 2 * pairs;
  }
  return all_reduce(places.to(log_probs.options()), context.parallel->get_data_parallel_group())
      .cpu()
      .to(at::kDouble);
}

}  // namespace

ReferenceLogProbs::ReferenceLogProbs(const Run& run, std::filesystem::path file,
                                     std::int64_t steps_done)
    : file_(std::move(file)) {
  const bool is_first = run.rank.rank() == 0;
  const bool is_there = run.rank.agree(!file_.empty() && why_no_input_file(file_).empty());
  if (is_there) {
    read();
    if (is_first) check_data(run);
    run.rank.host_barrier();
    if (steps_done == 0 || run.lora) check_weights(run);
    return;
  }
  if (steps_done > 0 && !run.lora)
    throw ConfigError(
        file_.string() + ": there is no such file: the run goes on after step " +
        std::to_string(steps_done) +
        ", and its weights are no longer those of the reference model: expected the reference "
        "log-probabilities that it wrote before its first step; copy them there, or name them in "
        "model_alignment_strategy.dpo.ref_log_probs_cache");
  const Activity activity(is_first ? "reference log-probabilities" : "");
  pairs_ = compute(run, kAll);
  if (!is_first || file_.empty()) return;
  for (auto& [split, pairs] : pairs_) {
    const auto contents = hashes(run, split);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i].hash = contents[i];
  }
  write();
}

ReferenceLogProbs::Pairs ReferenceLogProbs::compute(const Run& run, std::int64_t most_batches) {
  const Scope scope("phase=reference");
  const WithoutAdapters without(run.context, run.adapters);
  const int dp_rank = run.context.parallel->get_data_parallel_rank();
  Pairs result;
  for (const Split split : kSplits) {
    const std::int64_t count = run.data.num_pairs(split);
    if (count == 0) continue;
    std::vector<Pair>& pairs = result[split];
    for (std::int64_t first = 0, batch = 0; first < count && batch < most_batches;
         first += run.global_batch, ++batch) {
      auto micro_batches = run.data.pairs_in_order(split, first, dp_rank);
      take_sequence_parts(micro_batches, run.context);
      const at::Tensor values = gather(micro_batches, run.model.run_log_probs(micro_batches),
                                       run.context, run.global_batch);
      for (std::int64_t i = 0; i < std::min(run.global_batch, count - first); ++i)
        pairs.push_back({"", values[i][0].item<double>(), values[i][1].item<double>()});
    }
  }
  return result;
}

std::vector<std::string> ReferenceLogProbs::hashes(const Run& run, Split split) {
  const std::int64_t count = run.data.num_pairs(split);
  std::vector<std::string> result(static_cast<std::size_t>(count));
  for (std::int64_t first = 0; first < count; first += run.global_batch) {
    for (int rank = 0; rank < run.context.parallel->get_data_parallel_size(); ++rank) {
      for (const MicroBatch& batch : run.data.pairs_in_order(split, first, rank)) {
        for (std::size_t row = 0; row < batch.samples.size(); ++row) {
          if (batch.samples[row] >= 0)
            result[static_cast<std::size_t>(batch.samples[row])] =
                hash_of(batch, static_cast<std::int64_t>(row));
        }
      }
    }
  }
  return result;
}

void ReferenceLogProbs::write() const {
  json document = {{"schema", kSchema}};
  for (const auto& [split, pairs] : pairs_) {
    json& list = document[name_of(split)] = json::array();
    for (const Pair& pair : pairs) list.push_back({pair.hash, pair.chosen, pair.rejected});
  }
  write_file_atomically(file_, document.dump() + "\n");
}

void ReferenceLogProbs::read() {
  const std::string where = file_.string();
  const json document = parse_json(read_input_file(file_), where, "reference log-probabilities");
  const auto corrupt = [&](const std::string& what) {
    throw ConfigError(where + ": " + what +
                      "; remove the file: the next run writes it again, from its start weights");
  };
  if (!document.is_object() || document.value("schema", json()) != kSchema)
    corrupt(std::string("expected the schema ") + kSchema);
  for (const Split split : kSplits) {
    const json list = document.value(name_of(split), json::array());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const json& pair = list[i];
      if (!pair.is_array() || pair.size() != 3 || !pair[0].is_string() || !pair[1].is_number() ||
          !pair[2].is_number())
        corrupt(std::string(name_of(split)) + " pair " + std::to_string(i + 1) +
                ": expected [hash, chosen, rejected]");
      pairs_[split].push_back({pair[0], pair[1], pair[2]});
    }
  }
}

void ReferenceLogProbs::check_data(const Run& run) const {
  for (const Split split : kSplits) {
    const auto contents = hashes(run, split);
    if (contents.empty()) continue;
    const auto found = pairs_.find(split);
    const std::size_t kept = found == pairs_.end() ? 0 : found->second.size();
    for (std::size_t i = 0; i < std::min(kept, contents.size()); ++i) {
      if (found->second[i].hash == contents[i]) continue;
      throw ConfigError(file_.string() + ": these reference log-probabilities are of other data: " +
                        run.data.place_of_pair(split, static_cast<std::int64_t>(i)) +
                        " differs in its tokens; take the data, tokenizer and lengths of before, "
                        "or remove the file before a new run");
    }
    if (kept != contents.size())
      throw ConfigError(file_.string() +
                        ": these reference log-probabilities are of other data: "
                        "expected those of " +
                        std::to_string(contents.size()) + " pairs (" + name_of(split) + "), got " +
                        std::to_string(kept) + "; remove the file before a new run");
  }
}

/// The first global batch again: another layout or type rounds differently, other weights differ.
void ReferenceLogProbs::check_weights(const Run& run) const {
  for (const auto& [split, pairs] : compute(run, 1)) {
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Pair& kept = pairs_.at(split)[i];
      for (const auto& [now, before] :
           {std::pair{pairs[i].chosen, kept.chosen}, std::pair{pairs[i].rejected, kept.rejected}}) {
        if (std::abs(now - before) <= kSameWeights * std::max(1.0, std::abs(before))) continue;
        throw ConfigError(
            file_.string() + ": these reference log-probabilities are of other weights: " +
            run.data.place_of_pair(split, static_cast<std::int64_t>(i)) + ": expected " +
            std::to_string(now) + ", which this run's start weights give, got " +
            std::to_string(before) + "; remove the file before a new run");
      }
    }
  }
}

void ReferenceLogProbs::add_to(std::vector<MicroBatch>& micro_batches, Split split) const {
  const auto found = pairs_.find(split);
  if (found == pairs_.end()) return;
  for (MicroBatch& batch : micro_batches) {
    std::vector<double> chosen, rejected;
    for (const std::int64_t sample : batch.samples) {
      const Pair pair = sample < 0 ? Pair{} : found->second.at(static_cast<std::size_t>(sample));
      chosen.push_back(pair.chosen);
      rejected.push_back(pair.rejected);
    }
    chosen.insert(chosen.end(), rejected.begin(), rejected.end());
    batch.reference_log_probs = at::tensor(chosen, at::kDouble);
  }
}

}  // namespace trellis::trainer
