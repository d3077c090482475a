#include "trainer/parallel_layers/parallel_state.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/world.h"

namespace trellis::trainer {
namespace {

ParallelGroup make_group(runtime::RankContext& rank, const char* axis, const std::vector<int>& ranks) {
  ParallelGroup group;
  group.size = static_cast<int>(ranks.size());
  group.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank.rank()) - ranks.begin());
  if (group.size > 1) group.group = rank.new_group(axis, ranks);
  return group;
}

}  // namespace

std::vector<int> RankMesh::tp_ranks(int of) const {
  std::vector<int> ranks;
  for (int t = 0; t < tp; ++t) ranks.push_back(rank(pp_rank(of), dp_rank(of), t));
  return ranks;
}

std::vector<int> RankMesh::dp_ranks(int of) const {
  std::vector<int> ranks;
  for (int d = 0; d < dp; ++d) ranks.push_back(rank(pp_rank(of), d, tp_rank(of)));
  return ranks;
}

std::vector<int> RankMesh::pp_ranks(int of) const {
  std::vector<int> ranks;
  for (int p = 0; p < pp; ++p) ranks.push_back(rank(p, dp_rank(of), tp_rank(of)));
  return ranks;
}

ParallelState ParallelState::initialize_model_parallel(runtime::RankContext& rank, int tp, int pp) {
  const int world = rank.world_size();
  if (tp < 1 || pp < 1 || world % (tp * pp) != 0) {
    throw ConfigError(c10::str("distributed_strategy: the world size must be a multiple of tensor_model_parallel_size · "
                               "pipeline_model_parallel_size: expected a multiple of ", tp, " · ", pp, ", got ", world,
                               " ranks; change trainer.devices, trainer.num_nodes or the parallel sizes"));
  }
  const RankMesh mesh{tp, pp, world / (tp * pp)};
  ParallelGroup tensor = make_group(rank, "tp", mesh.tp_ranks(rank.rank()));
  ParallelGroup pipeline = make_group(rank, "pp", mesh.pp_ranks(rank.rank()));
  ParallelGroup data = make_group(rank, "dp", mesh.dp_ranks(rank.rank()));
  return ParallelState(std::move(tensor), std::move(pipeline), std::move(data));
}

}  // namespace trellis::trainer
