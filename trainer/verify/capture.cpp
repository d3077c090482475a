#include "trainer/verify/capture.h"

#include <algorithm>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "trainer/loop/trainer.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/parallel_layers/rank_mesh.h"

namespace trellis::trainer {
namespace {

/// A rank's rows of a gradient.
struct GradientRows {
  at::Tensor rows;  ///< flat
  std::int64_t first_row = 0;
  std::vector<std::int64_t> sizes;  ///< of the whole local gradient
  Partition partition;
  ExpertRange experts;
};

/// Numbers that one rank recorded.
struct RankNumbers {
  std::vector<std::map<std::string, GradientRows>> gradients;  ///< per step
  std::map<std::string, Trainer::LocalWeight> weights;
  std::vector<std::string> names;
};

class Gatherer {
 public:
  Gatherer(const RunConfig& config, const std::vector<RankNumbers>& ranks)
      : mesh_{config.tp(), config.pp(), config.dp(), config.cp(), config.ep()}, ranks_(ranks) {}

  void gather(RunNumbers& result) const {
    std::set<std::string> unequal;
    for (int pp = 0; pp < mesh_.pp; ++pp) {
      const RankNumbers& first = of(pp, 0, 0);
      for (const std::string& name : first.names) {
        if (std::ranges::find(result.names, name) == result.names.end())
          result.names.push_back(name);
        gather_weight(pp, name, result.weights, unequal);
        for (std::size_t step = 0; step < result.steps.size(); ++step) {
          if (first.gradients[step].contains(name))  // next to adapters most weights have none
            result.steps[step].gradients[name] = gather_gradient(pp, step, name);
        }
      }
    }
    result.unequal_copies.assign(unequal.begin(), unequal.end());
  }

 private:
  /// The ranks that hold the same dense weights: data × context parallel.
  [[nodiscard]] int num_holders() const { return mesh_.dp * mesh_.cp; }
  [[nodiscard]] const RankNumbers& of(int pp, int holder, int tp) const {
    const int rank = mesh_.rank(pp, holder / mesh_.cp, tp, holder % mesh_.cp);
    return ranks_[static_cast<std::size_t>(rank)];
  }

  /// Holders i, i + step, … hold the same values; of those below step each has its own experts.
  [[nodiscard]] int step_of(const ExpertRange& experts) const {
    return experts.is_stacked() ? mesh_.ep : 1;
  }

  void gather_weight(int pp, const std::string& name, NamedTensors& weights,
                     std::set<std::string>& unequal) const {
    const Trainer::LocalWeight& like = of(pp, 0, 0).weights.at(name);
    const int step = step_of(like.experts);
    std::vector<at::Tensor> parts;
    for (int own = 0; own < step; ++own) {
      std::vector<at::Tensor> shards;
      for (int tp = 0; tp < mesh_.tp; ++tp) {
        shards.push_back(of(pp, own, tp).weights.at(name).tensor);
        for (int holder = own + step; holder < num_holders(); holder += step) {
          if (!at::equal(shards.back(), of(pp, holder, tp).weights.at(name).tensor))
            unequal.insert(name);
        }
      }
      parts.push_back(join_shards(shards, like.partition));
      for (int tp = 0; tp < mesh_.tp; ++tp) {
        if (!at::equal(shards[static_cast<std::size_t>(tp)],
                       shard_of(parts.back(), like.partition, tp, mesh_.tp)))
          unequal.insert(name);
      }
    }
    const at::Tensor whole = step == 1 ? parts[0] : at::cat(parts);
    const auto [known, is_new] = weights.emplace(name, whole);
    if (!is_new && !at::equal(known->second, whole))
      unequal.insert(name);  // a tied weight of another stage
  }

  /// With ZeRO-1 each holder has some rows, without it each has all: in both cases
  /// later ranks fill in, or repeat.
  [[nodiscard]] at::Tensor gather_gradient(int pp, std::size_t step,
                                           const std::string& name) const {
    const GradientRows& like = of(pp, 0, 0).gradients[step].at(name);
    const int stride = step_of(like.experts);
    std::vector<at::Tensor> parts;
    for (int own = 0; own < stride; ++own) {
      std::vector<at::Tensor> shards;
      for (int tp = 0; tp < mesh_.tp; ++tp) {
        at::Tensor local =
            at::zeros(of(pp, own, tp).gradients[step].at(name).sizes, like.rows.options());
        for (int holder = own; holder < num_holders(); holder += stride)
          fill_in(local, of(pp, holder, tp), step, name);
        shards.push_back(local);
      }
      parts.push_back(join_shards(shards, like.partition));
    }
    return stride == 1 ? parts[0] : at::cat(parts);
  }

  static void fill_in(const at::Tensor& local, const RankNumbers& rank, std::size_t step,
                      const std::string& name) {
    const GradientRows& part = rank.gradients[step].at(name);
    const std::int64_t row_elements = local.numel() / local.size(0);
    local.view(-1).narrow(0, part.first_row * row_elements, part.rows.numel()).copy_(part.rows);
  }

  RankMesh mesh_;
  const std::vector<RankNumbers>& ranks_;
};

std::map<std::string, GradientRows> gradients_of(const NeuronZero1Optimizer& optimizer) {
  std::map<std::string, GradientRows> gradients;
  optimizer.for_each_reduced_gradient([&](const ShardSlot& slot, const at::Tensor& rows) {
    const Parameter& parameter = *slot.parameter;
    const at::Tensor& scale = optimizer.gradient_scale();
    gradients[parameter.name] = {
        (scale.defined() ? rows * scale : rows)
            .to(at::kCPU, rows.scalar_type(), /*non_blocking=*/false, /*copy=*/true),
        slot.first_row, parameter.tensor.sizes().vec(), parameter.partition, parameter.experts};
  });
  return gradients;
}

}  // namespace

RunNumbers train_and_gather(const RunConfig& given, std::shared_ptr<const DataModule> data,
                            const RunChanges& changes, runtime::WorldOptions world) {
  RunConfig config = given;
  if (changes.config) changes.config(config);
  std::vector<RankNumbers> ranks(static_cast<std::size_t>(config.world_size()));
  RunNumbers result;
  RoutingLedger routing;
  world.world_size = config.world_size();
  if (changes.data) data = changes.data(data);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    RankNumbers& mine = ranks[static_cast<std::size_t>(rank.rank())];
    ParallelState groups = ParallelState::initialize_model_parallel(rank, parallel_sizes(config));
    if (changes.groups) groups = changes.groups(groups);
    TrainerHooks hooks;
    hooks.built = [&](ParameterList& parameters) {
      for (const Parameter& parameter : parameters) mine.names.push_back(parameter.name);
      if (changes.parameters) changes.parameters(parameters, groups);
    };
    hooks.gradients_reduced = [&](const NeuronZero1Optimizer& optimizer) {
      mine.gradients.push_back(gradients_of(optimizer));
    };
    Trainer trainer(config, rank, data, groups, hooks,
                    {.routing = config.model.moe ? &routing : nullptr});
    trainer.fit([&](const StepResult& step) {
      result.steps.push_back({step.loss, step.grad_norm, {}, step.routed_tokens});
    });
    mine.weights = trainer.local_weights();
  });
  Gatherer(config, ranks).gather(result);
  return result;
}

}  // namespace trellis::trainer
