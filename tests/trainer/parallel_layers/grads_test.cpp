// Gradient norms, Lp and infinity, do not depend on how the gradient is spread.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/grads.h"

namespace trellis::trainer {
namespace {

/// A sharded part, a replicated part; the sharded one is spread over all three axes, the replicated
/// one over pp and dp only.
struct Whole {
  at::Tensor sharded = at::randn({64}, at::detail::createCPUGenerator(1), at::kDouble);
  at::Tensor replicated = at::randn({16}, at::detail::createCPUGenerator(2), at::kDouble);
  [[nodiscard]] double norm(double p = 2) const {
    return at::linalg_vector_norm(at::cat({sharded, replicated}), p).item<double>();
  }
};

struct Mesh {
  int tp, pp, dp;
};
class GradNorm : public testing::TestWithParam<Mesh> {
 protected:
  void on_each_rank(const std::function<void(const std::vector<GradientPart>&,
                                             const GradNormGroups&)>& body) const {
    const Mesh mesh = GetParam();
    runtime::WorldOptions world;
    world.world_size = mesh.tp * mesh.pp * mesh.dp;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const ParallelState state = ParallelState::initialize_model_parallel(rank, mesh.tp, mesh.pp);
      const GradNormGroups groups{state.get_tensor_model_parallel_group(),
                                  state.get_pipeline_model_parallel_group(),
                                  state.get_data_parallel_group()};
      const at::Tensor shared =
          split(split(whole.replicated, 0, groups.pipeline), 0, groups.sharding);
      const at::Tensor own = split(
          split(split(whole.sharded, 0, groups.pipeline), 0, groups.sharding), 0, groups.tensor);
      body({{own.clone(), true}, {shared.clone(), false}}, groups);
    });
  }
  Whole whole;
};

TEST_P(GradNorm, EqualsTheNormOfTheWholeVector) {
  on_each_rank([this](const auto& parts, const auto& groups) {
    EXPECT_NEAR(get_grad_norm(parts, groups).template item<double>(), whole.norm(),
                1e-13 * whole.norm());
  });
}

TEST_P(GradNorm, EveryOrderEqualsTheNormOfTheWholeVector) {
  on_each_rank([this](const auto& parts, const auto& groups) {
    for (const double p : {1.0, 1.5, 2.0, 3.0, 4.0, kInfinityNorm}) {
      EXPECT_NEAR(get_grad_norm(parts, groups, p).template item<double>(), whole.norm(p),
                  1e-13 * whole.norm(p))
          << p;
    }
  });
}

TEST_P(GradNorm, InfinityWorksWithOnlyShardedOrOnlyReplicatedGradients) {
  on_each_rank([this](const auto& parts, const auto& groups) {
    EXPECT_EQ(get_grad_norm({parts[0]}, groups, kInfinityNorm).template item<double>(),
              whole.sharded.abs().max().template item<double>());
    EXPECT_EQ(get_grad_norm({parts[1]}, groups, kInfinityNorm).template item<double>(),
              whole.replicated.abs().max().template item<double>());
  });
}

TEST_P(GradNorm, ClippingInOneCallIsTheSameAsInTwo) {
  on_each_rank([](const auto& parts, const auto& groups) {
    const at::Tensor before = parts[1].grad.clone();
    const at::Tensor norm = clip_grad_norm(parts, groups, 0.25, kInfinityNorm);
    EXPECT_TRUE(at::allclose(parts[1].grad, before * (0.25 / (norm + 1e-6)), 1e-14, 0));
    EXPECT_NEAR(get_grad_norm(parts, groups, kInfinityNorm).template item<double>(), 0.25, 1e-6);
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

INSTANTIATE_TEST_SUITE_P(Meshes, GradNorm,
                         testing::Values(Mesh{1, 1, 1}, Mesh{2, 1, 1}, Mesh{1, 2, 1}, Mesh{1, 1, 4},
                                         Mesh{2, 2, 2}),
                         [](const auto& test) {
                           return "TP" + std::to_string(test.param.tp) + "PP" +
                                  std::to_string(test.param.pp) + "DP" +
                                  std::to_string(test.param.dp);
                         });

TEST(GradNormInput, ANegativeOrderAndNoGradientsAreErrors) {
  EXPECT_THROW(get_grad_norm({{at::ones({2})}}, {}, -1), ConfigError);
  EXPECT_THROW(get_grad_norm({{at::ones({2})}}, {}, std::nan("")), ConfigError);
  EXPECT_THROW(get_grad_norm({}, {}), c10::Error);
}

/// weight_qkv of two ranks that share one key/value head each: rows q q | k | v.
Parameter fused_qkv() {
  Parameter parameter;
  parameter.tensor = at::arange(12, at::kDouble).view({4, 3});
  parameter.tensor_model_parallel = true;
  parameter.partition = {0, {{{{0, 4}}, 1}, {{{4, 1}, {4, 1}}, 2}, {{{5, 1}, {5, 1}}, 2}}};
  return parameter;
}

TEST(GradientParts, FusedRowsAreCountedByTheirCopies) {
  const Parameter parameter = fused_qkv();
  const auto parts = gradient_parts(parameter, parameter.tensor.view(-1));
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].copies, 1);
  EXPECT_EQ(parts[1].copies, 2);
  EXPECT_TRUE(parts[0].grad.equal(at::arange(6, at::kDouble)));
  EXPECT_TRUE(parts[2].grad.equal(at::arange(9, 12, at::kDouble)));
}

TEST(GradientParts, ASliceOfAZero1ShardIsCutAtTheSamePlaces) {
  const Parameter parameter = fused_qkv();
  const auto parts = gradient_parts(parameter, parameter.tensor.view(-1).narrow(0, 4, 4), 4);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(parts[0].grad.equal(at::arange(4, 6, at::kDouble)));
  EXPECT_TRUE(parts[1].grad.equal(at::arange(6, 8, at::kDouble)));
}

TEST(GradientParts, ATiedCopyIsNotCounted) {
  Parameter parameter = fused_qkv();
  parameter.shared = true;
  EXPECT_TRUE(gradient_parts(parameter, parameter.tensor.view(-1)).empty());
}

}  // namespace
}  // namespace trellis::trainer
