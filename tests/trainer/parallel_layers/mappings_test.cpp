// Each mapping's forward and backward against its definition in NxD, on 2 and 4 ranks.
#include <functional>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/mappings.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/sequence_parallel.h"

namespace trellis::trainer::mappings_test {
namespace {

using Mapping = std::function<at::Tensor(const at::Tensor&, const ParallelGroup&)>;
/// All ranks' tensors → what rank r must have.
using Definition = std::function<at::Tensor(const std::vector<at::Tensor>&, int rank)>;

at::Tensor sum(const std::vector<at::Tensor>& all) { return at::stack(all).sum(0); }
at::Tensor part(const at::Tensor& full, int dim, int rank, std::size_t ranks) {
  return full.chunk(static_cast<std::int64_t>(ranks), dim)[static_cast<std::size_t>(rank)];
}
const Definition kIdentity = [](const auto& all, int rank) {
  return all[static_cast<std::size_t>(rank)];
};
const Definition kSum = [](const auto& all, int) { return sum(all); };
Definition split_of(int dim) {
  return [dim](const auto& all, int rank) {
    return part(all[static_cast<std::size_t>(rank)], dim, rank, all.size());
  };
}
Definition gather_of(int dim) {
  return [dim](const auto& all, int) { return at::cat(all, dim); };
}
const Definition kReduceScatter = [](const auto& all, int rank) {
  return part(sum(all), 0, rank, all.size());
};

struct Case {
  const char* name;
  Mapping mapping;
  Definition forward, backward;
};

const Case kCases[] = {
    {"copy_to_tensor",
     [](const auto& x, const auto& g) { return copy_to_tensor_model_parallel_region(x, g); },
     kIdentity, kSum},
    {"reduce_from_tensor",
     [](const auto& x, const auto& g) {
       return reduce_from_tensor_model_parallel_region(x.mul(1), g, at::kDouble);
     },
     kSum, kIdentity},
    {"scatter_to_tensor",
     [](const auto& x, const auto& g) { return scatter_to_tensor_model_parallel_region(x, g); },
     split_of(-1), gather_of(-1)},
    {"gather_from_tensor",
     [](const auto& x, const auto& g) { return gather_from_tensor_model_parallel_region(x, g); },
     gather_of(-1), split_of(-1)},
    {"scatter_to_sequence",
     [](const auto& x, const auto& g) { return scatter_to_sequence_parallel_region(x, g); },
     split_of(0), gather_of(0)},
    {"gather_from_sequence",
     [](const auto& x, const auto& g) { return gather_from_sequence_parallel_region(x, g); },
     gather_of(0), kReduceScatter},
    {"gather_from_sequence_replicated",
     [](const auto& x, const auto& g) { return gather_from_sequence_parallel_region(x, g, false); },
     gather_of(0), split_of(0)},
    {"reduce_scatter_to_sequence",
     [](const auto& x, const auto& g) {
       return reduce_scatter_to_sequence_parallel_region(x, g, at::kDouble);
     },
     kReduceScatter, gather_of(0)},
};

class Mappings : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(Mappings, ForwardAndBackwardAreAsDefined) {
  const auto& [c, ranks] = GetParam();
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<at::Tensor> inputs(count), outputs(count), grad_outputs(count), grad_inputs(count);
  runtime::WorldOptions world;
  world.world_size = ranks;
  runtime::run_ranks(world, [&, &mapping = c.mapping](runtime::RankContext& rank) {
    const auto i = static_cast<std::size_t>(rank.rank());
    const ParallelState state = ParallelState::initialize_model_parallel(rank, world.world_size, 1);
    at::Generator generator = at::detail::createCPUGenerator(i);
    at::Tensor input = at::randn({8, 3, 12}, generator, at::kDouble);
    inputs[i] = input.clone();
    const at::Tensor output =
        mapping(input.requires_grad_(), state.get_tensor_model_parallel_group());
    outputs[i] = output.detach().clone();
    grad_outputs[i] = at::randn(output.sizes(), generator, at::kDouble);
    output.backward(grad_outputs[i].clone());
    grad_inputs[i] = input.grad().clone();
  });
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(at::allclose(outputs[i], c.forward(inputs, static_cast<int>(i)), 1e-14, 1e-14))
        << "forward, rank " << i;
    EXPECT_TRUE(
        at::allclose(grad_inputs[i], c.backward(grad_outputs, static_cast<int>(i)), 1e-14, 1e-14))
        << "backward, rank " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mappings,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(2, 4)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::to_string(std::get<1>(test.param)) + "_ranks";
                         });

TEST(Mappings, AGroupOfOneIsTheIdentityAndLeavesNoTrace) {
  const at::Tensor input = at::ones({2, 2, 2}).requires_grad_();
  for (const Case& c : kCases) {
    if (std::string(c.name) == "reduce_from_tensor") continue;  // its wrapper above copies
    EXPECT_TRUE(c.mapping(input, ParallelGroup{}).is_same(input)) << c.name;
  }
}

/// 256 + ½ + ½ + ½: each partial sum of 256 and ½ rounds back to 256 in bf16, whose numbers are 2
/// wide from 256 on; in fp32 the whole sum is 257.5,
/// which rounds once, to 258, when it becomes the activations' type again.
TEST(Mappings, TheSumRunsInTheReduceType) {
  runtime::WorldOptions world;
  world.world_size = 4;
  runtime::run_ranks(world, [](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 4, 1);
    const at::Tensor input = at::full({4, 1, 1}, rank.rank() == 0 ? 256.0 : 0.5, at::kBFloat16);
    const auto& tp = state.get_tensor_model_parallel_group();
    for (const auto& [dtype, expected] : {std::pair{at::kFloat, 258.0}, {at::kBFloat16, 256.0}}) {
      const at::Tensor sum = reduce_from_tensor_model_parallel_region(input.clone(), tp, dtype);
      EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
      EXPECT_EQ(sum[0].item<double>(), expected);
      EXPECT_EQ(reduce_scatter_to_sequence_parallel_region(input, tp, dtype).item<double>(),
                expected);
    }
  });
}

/// Against the sum in fp64: one rounding at the end, or one after every member.
TEST(Mappings, ASumInBf16IsLessRightThanInFp32) {
  constexpr int kRanks = 8;
  std::vector<at::Tensor> inputs;
  at::Tensor exact = at::zeros({32, 4, 64}, at::kDouble);
  for (int rank = 0; rank < kRanks; ++rank) {
    inputs.push_back(at::randn({32, 4, 64},
                               at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank)),
                               at::kDouble)
                         .to(at::kBFloat16));
    exact += inputs.back().to(at::kDouble);
  }
  runtime::WorldOptions world;
  world.world_size = kRanks;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, kRanks, 1);
    const auto& tp = state.get_tensor_model_parallel_group();
    const auto error = [&](at::ScalarType dtype) {
      const at::Tensor sum = reduce_from_tensor_model_parallel_region(
          inputs[static_cast<std::size_t>(rank.rank())].clone(), tp, dtype);
      return ((sum.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
    };
    const double wide = error(at::kFloat), narrow = error(at::kBFloat16);
    EXPECT_LT(wide, 1.0 / 512) << "half a unit in the last place of bf16";
    EXPECT_GT(narrow, 1.5 * wide);
    EXPECT_LT(narrow, kRanks * wide);
  });
}

TEST(Mappings, AnIndivisibleSizeIsNamed) {
  runtime::WorldOptions world;
  world.world_size = 2;
  EXPECT_THROW(runtime::run_ranks(world,
                                  [](runtime::RankContext& rank) {
                                    const ParallelState state =
                                        ParallelState::initialize_model_parallel(rank, 2, 1);
                                    scatter_to_sequence_parallel_region(
                                        at::ones({3, 1, 2}),
                                        state.get_tensor_model_parallel_group());
                                  }),
               std::exception);
}

}  // namespace
}  // namespace trellis::trainer::mappings_test
