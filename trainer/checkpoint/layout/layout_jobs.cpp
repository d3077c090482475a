#include "trainer/checkpoint/layout/layout_jobs.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "trainer/loop/rank_model.h"
#include "trainer/loop/trainer.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/pipeline/tied_weights.h"

namespace trellis::checkpoint {
namespace {

using trainer::ParallelAxis;
using trainer::ParallelGroup;
using trainer::ParallelState;
using trainer::RankMesh;

/// Says who is where; no one communicates.
ParallelGroup silent_group(const std::vector<int>& ranks, int rank) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank);
  return {{}, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size())};
}

ParallelState silent_state(const RankMesh& mesh, int rank, const trainer::ParallelSizes& sizes) {
  const auto group = [&](ParallelAxis axis) { return silent_group(mesh.ranks(axis, rank), rank); };
  return ParallelState(group(ParallelAxis::kTensor), group(ParallelAxis::kPipeline),
                       group(ParallelAxis::kData))
      .with_expert_groups(group(ParallelAxis::kExpert), group(ParallelAxis::kExpertData))
      .with_context_groups(group(ParallelAxis::kContext), group(ParallelAxis::kZero1Sharding))
      .with_fsdp_groups(group(ParallelAxis::kFsdpSharding),
                        group(ParallelAxis::kExpertFsdpSharding),
                        group(ParallelAxis::kFsdpReplicas))
      .with_kv_shared_group(
          silent_group(mesh.kv_shared_ranks(rank, sizes.kv_size_multiplier, sizes.kv_replica_order),
                       rank),
          sizes.kv_replica_order);
}

}  // namespace

std::vector<native::FileJob> layout_jobs(
    const trainer::RunConfig& config, int rank, std::int64_t optimizer_steps,
    const std::function<std::vector<native::FileJob>(native::RankContent)>& jobs_of) {
  const at::NoGradGuard no_grad;
  const trainer::ParallelSizes sizes = trainer::parallel_sizes(config);
  const RankMesh mesh = trainer::make_rank_mesh(sizes, config.world_size());
  const ParallelState parallel = silent_state(mesh, rank, sizes);
  trainer::ParameterList parameters;
  const trainer::ModuleContext context =
      trainer::module_context(config, {at::kMeta, /*shape_only=*/true}, parallel, parameters);
  const auto stages = trainer::build_stages(config, context);
  const trainer::TiedWeights tied(stages, parameters,
                                  {config.num_microbatches(), config.pp(), config.vpp()}, parallel,
                                  [](const std::vector<int>&) { return ParallelGroup{}; });
  trainer::NeuronZero1Optimizer optimizer(parameters, parallel, trainer::optimizer_options(config));
  optimizer.continue_after(optimizer_steps);
  std::vector<native::FileJob> jobs =
      jobs_of({parameters, optimizer, parallel, live_state(parameters, optimizer, parallel),
               native::file_place_of(mesh, parallel, rank, optimizer.is_sharded())});
  std::erase_if(jobs, [&](const native::FileJob& job) { return job.holders.front() != rank; });
  return jobs;
}

}  // namespace trellis::checkpoint
