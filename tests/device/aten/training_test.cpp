#include <thread>

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/device/aten/neuron_fixture.h"
#include "tests/device/aten/tiny_model.h"

/// Training on the device equals training on the CPU, bit for bit, on one thread and on one thread
/// per rank.
namespace trellis::device::testing {
namespace {

using at::Tensor;

class TrainingTest : public NeuronTest {};

TEST_F(TrainingTest, EqualsTheCpuBitForBit) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto expected = train(at::kCPU, type, 4);
    const auto got = train(neuron(0), type, 4);
    ASSERT_EQ(expected.size(), got.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect_same_bits(expected[i], got[i], c10::str(type, " tensor ", i));
  }
}

TEST_F(TrainingTest, RankThreadsDoNotDisturbEachOther) {
  const auto expected = train(at::kCPU, at::kFloat, 3);
  std::vector<std::vector<Tensor>> got(kMaterialised);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kMaterialised; ++rank) {
    ranks.emplace_back([rank, &got] {
      bind_this_thread(rank);
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      for (const Tensor& tensor : train(neuron(rank), at::kFloat, 3))
        got[static_cast<std::size_t>(rank)].push_back(tensor.cpu());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const auto stream = [](int rank) {
    std::string text;
    for (const std::string& op : recorded_ops(rank)) text += op + "\n";
    return text;
  };
  for (int rank = 0; rank < kMaterialised; ++rank) {
    const auto& tensors = got[static_cast<std::size_t>(rank)];
    ASSERT_EQ(tensors.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect_same_bits(expected[i], tensors[i], c10::str("rank ", rank, " tensor ", i));
    EXPECT_EQ(stream(rank), stream(1)) << "rank " << rank;
  }
}

TEST_F(TrainingTest, FullPrecisionGradientsOfEveryFusedOperator) {
  const auto gradients = [](at::Device device) {
    at::Generator generator = at::detail::createCPUGenerator(3);
    const auto leaf = [&](at::IntArrayRef size) {
      return at::randn(size, generator, at::TensorOptions(at::kDouble)).to(device).requires_grad_();
    };
    const Tensor x = leaf({2, 3, 8}), w = leaf({8}), table = leaf({9, 8}), q = leaf({1, 2, 5, 8}),
                 k = leaf({1, 2, 5, 8}), v = leaf({1, 2, 5, 8});
    const Tensor tokens = at::tensor({1, 3, 3}).to(device), kernel = leaf({4, 3, 3});
    const Tensor loss = at::rms_norm(x, {8}, w, 1e-5).pow(2).sum() +
                        at::layer_norm(x, {8}, w, w).pow(3).sum() +
                        at::embedding(table, tokens).pow(2).sum() +
                        at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).pow(2).sum() +
                        at::conv1d(x, kernel).pow(2).sum() + at::silu(x).sum() + at::gelu(x).sum() +
                        x.softmax(-1).pow(2).sum() + x.index({tokens.slice(0, 0, 1)}).sum();
    return torch::autograd::grad({loss}, {x, w, table, q, k, v, kernel});
  };
  const auto expected = gradients(at::kCPU), got = gradients(neuron(0));
  for (std::size_t i = 0; i < expected.size(); ++i)
    expect_same_bits(expected[i], got[i], c10::str("gradient ", i));
}

}  // namespace
}  // namespace trellis::device::testing
