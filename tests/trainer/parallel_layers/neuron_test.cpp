// All layers together on the emulated device: what one CPU rank computes, and the same program
// without data.
#include <map>
#include <mutex>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/groups/device_plugin.h"
#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/checkpointing.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/layer_norm.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/parallel_layers/qkv_linear.h"

namespace trellis::trainer::neuron_test {
namespace {

using namespace testing_support;

constexpr std::int64_t kSequence = 8, kBatch = 2, kHidden = 16, kVocab = 40;

runtime::WorldOptions emulated(const Setup& setup, bool shape_only) {
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const std::string options =
      R"({"schema": "trellis.device_options/1", "instance": "trn1.32xlarge", )"
      R"("nodes": 1, "world_size": )" +
      std::to_string(setup.tp) + R"(, "shape_only": )" + (shape_only ? "true" : "false") +
      R"(, "record": true})";
  plugin.check(plugin.api().configure(options.c_str()));
  runtime::WorldOptions world;
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = shape_only;
  return world;
}

/// Embedding, a recomputed attention block with dropout, head, loss: every layer of this folder
/// once.
class Model {
 public:
  explicit Model(Rank& rank)
      : context_(rank.context),
        embedding_(rank.context, "embed", kVocab, kHidden, WeightInit(0.5)),
        norm_(rank.context, "norm", kHidden, 1e-5, false, LayerNormKind::kLayerNorm1P),
        qkv_(rank.context, "qkv", {kHidden, 8, 2, 4},
             {.init = 0.3,
              .gather_output = false,
              .kv_size_multiplier = rank.state.get_kv_shared_group().size}),
        dense_(rank.context, "dense", 32, kHidden,
               {.init = 0.3, .input_is_parallel = true, .partition = qkv_.query_columns()}),
        dropout_(rank.context, "dropout", 0.25),
        final_norm_(rank.context, "final_norm", kHidden, 1e-5, false),
        head_(rank.context, "head", kHidden, {{"", kVocab}},
              {.init = 0.3, .gather_output = false}) {}

  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) const {
    *context_.position = {2, 3};
    const at::Tensor hidden = checkpoint(context_, [this](const auto& in) { return block(in[0]); },
                                         {embedding_.forward(ids)});
    const at::Tensor logits = head_.forward(final_norm_.forward(hidden))[0];
    return parallel_cross_entropy(logits, labels.t(), context_.tp(), {.label_smoothing = 0.1})
        .mean();
  }

 private:
  at::Tensor block(const at::Tensor& input) const {
    const auto [q, k, v] = qkv_.forward(norm_.forward(input));
    const std::int64_t copies = q.size(2) / k.size(2);
    const at::Tensor mixed =
        q * k.repeat_interleave(copies, 2).tanh() + v.repeat_interleave(copies, 2);
    return dropout_.forward(dense_.forward(mixed.flatten(2))).add(input);
  }

  ModuleContext context_;
  ParallelEmbedding embedding_;
  LayerNorm norm_;
  GQAQKVColumnParallelLinear qkv_;
  RowParallelLinear dense_;
  Dropout dropout_;
  RMSNorm final_norm_;
  ColumnParallelLinear head_;
};

at::Tensor tokens(std::uint64_t seed) {
  return at::randint(0, kVocab, {kBatch, kSequence}, at::detail::createCPUGenerator(seed),
                     at::kLong);
}

at::Tensor train_once(Rank& rank) {
  const Model model(rank);
  at::Tensor labels = tokens(2);
  labels.select(1, 3).fill_(-100);
  at::Tensor loss = model.loss(tokens(1).to(rank.context.device), labels.to(rank.context.device));
  loss.backward();
  return loss.detach();
}

class NeuronLayers : public testing::TestWithParam<Setup> {};

TEST_P(NeuronLayers, EqualOneCpuRankWithAllGradients) {
  Rank one{ParallelState()};
  const double expected = train_once(one).item<double>();
  std::map<std::string, std::vector<at::Tensor>> grads;
  std::map<std::string, Partition> partitions;
  std::mutex mutex;
  run(GetParam(), emulated(GetParam(), false), [&](Rank& rank) {
    const double loss = train_once(rank).cpu().item<double>();
    EXPECT_NEAR(loss, expected, 1e-12 * expected);
    for (Parameter& parameter : rank.parameters) {
      at::Tensor grad = parameter.tensor.grad();
      if (parameter.sequence_parallel_enabled) grad = all_reduce(grad, rank.context.tp());
      const at::Tensor host = grad.cpu();
      const std::lock_guard lock(mutex);
      partitions[parameter.name] = parameter.partition;
      auto& shards = grads[parameter.name];
      shards.resize(static_cast<std::size_t>(rank.context.tp().size));
      shards[static_cast<std::size_t>(rank.context.tp().rank)] = host;
    }
  });
  ASSERT_EQ(grads.size(), one.parameters.size());
  for (const Parameter& parameter : one.parameters) {
    EXPECT_TRUE(close(join_shards(grads.at(parameter.name), partitions.at(parameter.name)),
                      parameter.tensor.grad(), 1e-11))
        << parameter.name;
  }
}

TEST_P(NeuronLayers, RunWithoutData) {
  run(GetParam(), emulated(GetParam(), true), [](Rank& rank) {
    EXPECT_EQ(train_once(rank).dim(), 0);
    for (const Parameter& parameter : rank.parameters)
      EXPECT_EQ(parameter.tensor.grad().sizes(), parameter.tensor.sizes()) << parameter.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, NeuronLayers,
                         testing::Values(Setup{1}, Setup{2, true}, Setup{4, false, 2},
                                         Setup{8, true, 4},
                                         Setup{4, true, 2, ReplicaOrder::kInterleaved}),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace trellis::trainer::neuron_test
