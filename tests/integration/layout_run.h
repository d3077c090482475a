#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "runtime/ranks/world.h"
#include "trainer/data/data_module.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer::testing_support {

/// How a small Llama is spread over ranks.
struct Layout {
  int tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;
  bool zero1 = true;
  int vpp = 1;
  [[nodiscard]] int world_size() const { return tp * pp * dp; }
};

/// Grouped-query attention, five layers (uneven over two and four stages), a vocabulary of which
/// the last rows are padding.
inline RunConfig small_llama(const Layout& layout, const std::string& precision,
                             std::int64_t steps) {
  RunConfig config;
  config.name = "small_llama";
  config.seed = 11;
  config.trainer.devices = layout.world_size();
  config.trainer.max_steps = steps;
  config.trainer.gradient_clip_val = 0.5;
  config.distributed_strategy = {.tensor_model_parallel_size = layout.tp,
                                 .pipeline_model_parallel_size = layout.pp,
                                 .virtual_pipeline_model_parallel_size = layout.vpp,
                                 .zero1 = layout.zero1,
                                 .sequence_parallel = layout.sequence_parallel};
  config.data.global_batch_size = 8;
  ModelSection& model = config.model;
  model.num_layers = 5;
  model.hidden_size = 32;
  model.ffn_hidden_size = 48;
  model.num_attention_heads = 8;
  model.num_kv_heads = 4;
  model.encoder_seq_length = 16;
  model.max_position_embeddings = 16;
  model.vocab_size = 64;
  model.init_method_std = 0.1;
  model.optim.lr = 3e-3;
  model.optim.weight_decay = 0.1;
  model.optim.beta2 = 0.95;
  model.optim.sched = SchedSection{.name = "CosineAnnealing", .warmup_steps = 4, .min_lr = 1e-4};
  config.precision.type = precision;
  return config;
}

/// Random tokens of an odd vocabulary; sample i of a step belongs to data-parallel rank i mod DP.
class RandomTokens final : public DataModule {
 public:
  explicit RandomTokens(const RunConfig& config) : config_(config) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    const std::int64_t b = config_.data.micro_batch_size, s = config_.model.encoder_seq_length;
    std::vector<MicroBatch> result;
    for (int m = 0; m < config_.num_microbatches(); ++m) {
      const std::int64_t sample =
          step * config_.data.global_batch_size + m * config_.dp() + dp_rank;
      at::Generator generator =
          at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + sample));
      const at::Tensor tokens = at::randint(0, kTokens, {b, s + 1}, generator, at::kLong);
      MicroBatch batch;
      batch.input_ids = tokens.narrow(1, 0, s).contiguous();
      batch.labels = tokens.narrow(1, 1, s).contiguous();
      result.push_back(std::move(batch));
    }
    return result;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return 1 << 20; }
  [[nodiscard]] std::string description() const override { return "random tokens"; }

 private:
  static constexpr std::int64_t kTokens = 51;
  RunConfig config_;
};

struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> weights;  ///< un-sharded
  bool replicas_equal =
      true;  ///< over DP, over TP for replicated weights, over stages for tied ones, bit for bit
};

using LocalWeights = std::map<std::string, Trainer::LocalWeight>;

inline Outcome gather(const std::vector<LocalWeights>& ranks, const Layout& layout) {
  Outcome outcome;
  const RankMesh mesh{layout.tp, layout.pp, layout.dp};
  for (int pp = 0; pp < layout.pp; ++pp) {
    const LocalWeights& first = ranks[static_cast<std::size_t>(mesh.rank(pp, 0, 0))];
    for (const auto& [name, weight] : first) {
      std::vector<at::Tensor> shards;
      for (int tp = 0; tp < layout.tp; ++tp) {
        shards.push_back(ranks[static_cast<std::size_t>(mesh.rank(pp, 0, tp))].at(name).tensor);
        for (int dp = 1; dp < layout.dp; ++dp) {
          outcome.replicas_equal &= shards.back().equal(
              ranks[static_cast<std::size_t>(mesh.rank(pp, dp, tp))].at(name).tensor);
        }
      }
      const auto other_stage = outcome.weights.find(name);  // of a tied weight
      const at::Tensor whole = join_shards(shards, weight.partition);
      if (other_stage != outcome.weights.end())
        outcome.replicas_equal &= whole.equal(other_stage->second);
      outcome.weights[name] = whole;
      for (int tp = 0; tp < layout.tp; ++tp) {
        const at::Tensor expected =
            shard_of(outcome.weights[name], weight.partition, tp, layout.tp);
        outcome.replicas_equal &= shards[static_cast<std::size_t>(tp)].equal(expected);
      }
    }
  }
  return outcome;
}

/// Lets a test put its own groups in the place of a rank's.
using ChangeGroups = std::function<ParallelState(const ParallelState&)>;

/// Trains on `world` (whose world_size is set here) and gathers the weights. `data`: none for
/// RandomTokens.
inline Outcome train(const RunConfig& config, const Layout& layout,
                     runtime::WorldOptions world = {}, const ChangeGroups& change = {},
                     std::shared_ptr<const DataModule> data = {}) {
  world.world_size = layout.world_size();
  if (!data) data = std::make_shared<RandomTokens>(config);
  std::vector<LocalWeights> weights(static_cast<std::size_t>(layout.world_size()));
  std::vector<StepResult> steps;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState groups = ParallelState::initialize_model_parallel(
        rank, {.tensor_model_parallel_size = layout.tp,
               .pipeline_model_parallel_size = layout.pp,
               .kv_size_multiplier = config.distributed_strategy.kv_replicator});
    Trainer trainer(config, rank, data, change ? change(groups) : groups);
    trainer.fit([&](const StepResult& step) { steps.push_back(step); });
    weights[static_cast<std::size_t>(rank.rank())] = trainer.local_weights();
  });
  Outcome outcome = gather(weights, layout);
  outcome.steps = std::move(steps);
  return outcome;
}

/// Not a number is infinitely wrong.
inline double relative_error(double got, double expected) {
  const double error = std::abs(got - expected) / std::abs(expected);
  return std::isnan(error) ? INFINITY : error;
}

/// Largest relative difference of any loss, gradient norm or weight (by norm).
inline double worst_error(const Outcome& got, const Outcome& expected) {
  double worst =
      got.steps.size() == expected.steps.size() && got.weights.size() == expected.weights.size()
          ? 0
          : INFINITY;
  for (std::size_t i = 0; i < expected.steps.size() && worst < INFINITY; ++i) {
    worst = std::max(worst, relative_error(got.steps[i].loss, expected.steps[i].loss));
    worst = std::max(worst, relative_error(got.steps[i].grad_norm, expected.steps[i].grad_norm));
  }
  for (const auto& [name, weight] : expected.weights) {
    const auto found = got.weights.find(name);
    if (found == got.weights.end() || found->second.sizes() != weight.sizes()) return INFINITY;
    const at::Tensor reference = weight.to(at::kDouble);
    const double error =
        ((found->second.to(at::kDouble) - reference).norm() / reference.norm()).item<double>();
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace trellis::trainer::testing_support
