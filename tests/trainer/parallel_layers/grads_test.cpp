// The gradient norm does not depend on how the gradient is spread.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/world.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/grads.h"

namespace trellis::trainer {
namespace {

/// A sharded part, a replicated part; the sharded one is spread over all three axes, the replicated one over pp and dp only.
struct Whole {
  at::Tensor sharded = at::randn({64}, at::detail::createCPUGenerator(1), at::kDouble);
  at::Tensor replicated = at::randn({16}, at::detail::createCPUGenerator(2), at::kDouble);
  [[nodiscard]] double norm() const { return at::cat({sharded, replicated}).norm().item<double>(); }
};

struct Mesh {
  int tp, pp, dp;
};
class GradNorm : public testing::TestWithParam<Mesh> {
 protected:
  void on_each_rank(const std::function<void(const std::vector<GradientPart>&, const GradNormGroups&)>& body) const {
    const Mesh mesh = GetParam();
    runtime::WorldOptions world;
    world.world_size = mesh.tp * mesh.pp * mesh.dp;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const ParallelState state = ParallelState::initialize_model_parallel(rank, mesh.tp, mesh.pp);
      const GradNormGroups groups{state.get_tensor_model_parallel_group(), state.get_pipeline_model_parallel_group(),
                                  state.get_data_parallel_group()};
      const at::Tensor shared = split(split(whole.replicated, 0, groups.pipeline), 0, groups.sharding);
      const at::Tensor own = split(split(split(whole.sharded, 0, groups.pipeline), 0, groups.sharding), 0, groups.tensor);
      body({{own.clone(), true}, {shared.clone(), false}}, groups);
    });
  }
  Whole whole;
};

TEST_P(GradNorm, EqualsTheNormOfTheWholeVector) {
  on_each_rank([this](const auto& parts, const auto& groups) {
    EXPECT_NEAR(get_grad_norm(parts, groups).template item<double>(), whole.norm(), 1e-13 * whole.norm());
  });
}

TEST_P(GradNorm, ClippingScalesToTheLimitAndLeavesSmallGradientsAlone) {
  on_each_rank([this](const auto& parts, const auto& groups) {
    const at::Tensor norm = get_grad_norm(parts, groups);
    const at::Tensor before = parts[0].grad.clone();
    clip_grads_with_norm(parts, 2 * whole.norm(), norm);
    EXPECT_TRUE(parts[0].grad.equal(before));
    clip_grads_with_norm(parts, 0.5, norm);
    EXPECT_TRUE(at::allclose(parts[0].grad, before * (0.5 / (whole.norm() + 1e-6)), 1e-13, 0));
    EXPECT_NEAR(get_grad_norm(parts, groups).template item<double>(), 0.5, 1e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, GradNorm, testing::Values(Mesh{1, 1, 1}, Mesh{2, 1, 1}, Mesh{1, 2, 1}, Mesh{1, 1, 4}, Mesh{2, 2, 2}),
                         [](const auto& test) {
                           return "TP" + std::to_string(test.param.tp) + "PP" + std::to_string(test.param.pp) + "DP" + std::to_string(test.param.dp);
                         });

}  // namespace
}  // namespace trellis::trainer
