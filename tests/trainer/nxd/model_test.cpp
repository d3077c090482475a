// NxDModel's interface: what each member gives with and without pipeline stages, and how misuse is
// named.
#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/trainer/nxd/user_model.h"
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/parallel_layers/qkv_linear.h"

namespace trellis::trainer::model_test {
namespace {

using namespace testing_support;
using testing::HasSubstr;

NxDConfig config_of(int pp, PipelineConfig pipeline = {}) {
  NxDConfig config;
  config.pipeline_parallel_size = pp;
  if (pipeline.transformer_layer_cls.empty()) pipeline.transformer_layer_cls = "Block";
  pipeline.auto_partition = pipeline.pipeline_cuts.empty();
  config.pipeline_config = pipeline;
  config.dtype = at::kDouble;
  return config;
}

using Body = std::function<void(NxDModel&, runtime::RankContext&)>;

void on_ranks(
    const NxDConfig& arguments, const Body& body,
    const ModelFunction& model_fn = [](const ModuleContext& c) { return user_model(c); }) {
  runtime::WorldOptions world;
  world.world_size = arguments.pipeline_parallel_size;
  const NxDConfig config = neuronx_distributed_config(arguments);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    body(*initialize_parallel_model(config, rank, model_fn), rank);
  });
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<std::string> names_of(const NxDModel& model) {
  std::vector<std::string> names;
  for (const auto& [name, module] : model.named_modules()) names.push_back(name);
  return names;
}

TEST(NxDModelPartition, OnlyTransformerLayersAreCountedAndTheRestStaysWithItsNeighbour) {
  on_ranks(config_of(2), [](NxDModel& model, runtime::RankContext& rank) {
    const auto expected = rank.rank() == 0
                              ? std::vector<std::string>{"embed", "block.0", "block.1", "plain"}
                              : std::vector<std::string>{"block.2", "block.3", "head"};
    EXPECT_EQ(names_of(model), expected);
  });
}

TEST(NxDModelPartition, CutsAreNamesOfLayers) {
  on_ranks(config_of(2, {.pipeline_cuts = {"block.0"}}),
           [](NxDModel& model, runtime::RankContext& rank) {
             const auto on_first = std::vector<std::string>{"embed", "block.0"};
             EXPECT_EQ(names_of(model) == on_first, rank.rank() == 0);
           });
  EXPECT_THAT(
      message_of([] { on_ranks(config_of(2, {.pipeline_cuts = {"plain"}}), [](auto&, auto&) {}); }),
      HasSubstr("\"plain\" is no layer of the model: expected one of block.0, block.1, block.2"));
  EXPECT_THAT(
      message_of(
          [] { on_ranks(config_of(2, {.transformer_layer_cls = "Blok"}), [](auto&, auto&) {}); }),
      HasSubstr("no layer of class \"Blok\": expected one of Embedding, Block, Plain, Head"));
}

TEST(NxDModelState, NamesAreGlobalAndTheStateGoesBack) {
  on_ranks(config_of(2), [](NxDModel& model, runtime::RankContext& rank) {
    NxDModel::StateDict state;
    for (const auto& [name, tensor] : model.state_dict()) state[name] = tensor.clone();
    EXPECT_EQ(state.count("block.3.norm.weight"), rank.rank() == 1 ? 1U : 0U)
        << "the last block keeps its number";
    EXPECT_EQ(state.count("plain.scale"), rank.rank() == 0 ? 1U : 0U) << "a buffer";
    EXPECT_EQ(model.named_parameters().size() + model.named_buffers().size(), state.size());
    for (const auto& [name, tensor] : model.state_dict()) at::Tensor(tensor).zero_();
    const auto result = model.load_state_dict(state);
    EXPECT_TRUE(result.missing_keys.empty() && result.unexpected_keys.empty());
    for (const auto& [name, tensor] : model.state_dict())
      EXPECT_TRUE(tensor.equal(state.at(name))) << name;
  });
}

TEST(NxDModelState, MissingUnexpectedAndWrongSizesAreNamed) {
  on_ranks(config_of(1), [](NxDModel& model, runtime::RankContext&) {
    NxDModel::StateDict state = model.state_dict();
    state.erase("head.weight");
    state["tail.weight"] = at::ones({1});
    EXPECT_THAT(
        message_of([&] { model.load_state_dict(state); }),
        testing::AllOf(HasSubstr("head.weight: expected"), HasSubstr("tail.weight: unexpected")));
    const auto result = model.load_state_dict(state, false);
    EXPECT_EQ(result.missing_keys, std::vector<std::string>{"head.weight"});
    EXPECT_EQ(result.unexpected_keys, std::vector<std::string>{"tail.weight"});
    state["head.weight"] = at::ones({3});
    EXPECT_THAT(message_of([&] { model.load_state_dict(state, false); }),
                HasSubstr("head.weight: expected sizes [16, 8], got [3]"));
  });
}

TEST(NxDModelRuns, OneStageHasForwardAndNoEvaluation) {
  on_ranks(config_of(1), [](NxDModel& model, runtime::RankContext&) {
    EXPECT_EQ(model.forward(user_batch(0, 1, 0)).sizes(),
              (std::vector<std::int64_t>{kSequence, kGlobalBatch, kVocabulary}));
    EXPECT_THAT(message_of([&] { (void)model.run_eval(user_batch(0, 1, 0)); }),
                HasSubstr("run_eval: expected pipeline_parallel_size 2 or more"));
    EXPECT_EQ(model.original_module().size(), 7U);
    EXPECT_EQ(model.local_modules().size(), 1U);
  });
}

TEST(NxDModelRuns, SeveralStagesHaveEvaluationAndNoForward) {
  on_ranks(config_of(2, {.num_microbatches = 4}), [](NxDModel& model, runtime::RankContext& rank) {
    EXPECT_THAT(message_of([&] { (void)model.forward(user_batch(0, 1, 0)); }),
                HasSubstr("call run_train or run_eval"));
    EXPECT_THAT(message_of([&] { (void)model.original_module(); }),
                HasSubstr("local_modules() has them"));
    const at::Tensor evaluated = model.run_eval(user_batch(0, 1, 0));
    for (const at::Tensor& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
    const at::Tensor trained = model.run_train(user_batch(0, 1, 0));
    EXPECT_EQ(evaluated.defined(), rank.rank() == 1) << "the loss is on the last stage";
    ASSERT_EQ(trained.defined(), evaluated.defined());
    if (!trained.defined()) return;
    EXPECT_EQ(trained.item<double>(), evaluated.item<double>());
  });
}

TEST(NxDModelRuns, LossesOfMicroBatchesAndOutputSpecification) {
  NxDConfig config = config_of(
      2, {.num_microbatches = 4, .output_loss_value_spec = {false, true}, .return_mb_loss = true});
  const auto model_fn = [](const ModuleContext& context) {
    SequentialModel model = user_model(context);
    return model.loss([](const at::Tensor& logits, const MicroBatch&) {
      return std::vector<at::Tensor>{logits, logits.pow(2).mean()};
    });
  };
  on_ranks(
      config,
      [](NxDModel& model, runtime::RankContext& rank) {
        const at::Tensor losses = model.run_train(user_batch(0, 1, 0));
        ASSERT_EQ(losses.defined(), rank.rank() == 1);
        if (!losses.defined()) return;
        EXPECT_EQ(losses.sizes(), std::vector<std::int64_t>{4});
      },
      model_fn);
}

TEST(NxDModelRuns, BadBatchesAreNamed) {
  on_ranks(config_of(1, {.num_microbatches = 3}), [](NxDModel& model, runtime::RankContext&) {
    EXPECT_THAT(message_of([&] { (void)model.run_train(user_batch(0, 1, 0)); }),
                HasSubstr("expected a multiple of 3 rows, got 8"));
  });
  on_ranks(config_of(1, {.input_names = {"input_ids", "loss_mask"}}),
           [](NxDModel& model, runtime::RankContext&) {
             EXPECT_THAT(message_of([&] { (void)model.run_train(user_batch(0, 1, 0)); }),
                         HasSubstr("the batch has no loss_mask"));
           });
}

TEST(NxDModelInit, TheInitialiserIsTheSourceOfValues) {
  NxDConfig config = config_of(2);
  config.model_init_config.meta_device_init = true;
  config.model_init_config.param_init_fn = [](const std::string&, const std::string&,
                                              at::Tensor& value) { value.fill_(0.25); };
  on_ranks(config, [](NxDModel& model, runtime::RankContext&) {
    for (const auto& [name, tensor] : model.named_parameters())
      EXPECT_TRUE(tensor.detach().eq(0.25).all().item<bool>()) << name;
  });
  config.model_init_config.param_init_fn = [](const std::string& layer, const std::string& name,
                                              at::Tensor& value) {
    if (layer != "plain" || name != "linear.bias") value.fill_(1);
  };
  EXPECT_THAT(message_of([&] { on_ranks(config, [](auto&, auto&) {}); }),
              HasSubstr("layer plain: linear.bias was not initialised"));
}

TEST(NxDModelInit, BuffersAreFilledWhenAskedFor) {
  NxDConfig config = config_of(2);
  config.model_init_config.meta_device_init = true;
  config.model_init_config.param_init_fn = [](const std::string&, const std::string&,
                                              at::Tensor& value) { value.fill_(0.25); };
  const auto buffers_are = [&](bool filled) {
    on_ranks(config, [&](NxDModel& model, runtime::RankContext&) {
      for (const auto& [name, tensor] : model.named_buffers())
        EXPECT_EQ(tensor.eq(0.25).all().item<bool>(), filled) << name;
    });
  };
  buffers_are(false);
  config.model_init_config.include_buffers = true;
  buffers_are(true);
  config.model_init_config.param_init_fn = [](const std::string&, const std::string& name,
                                              at::Tensor& value) {
    if (name != "scale") value.fill_(1);
  };
  EXPECT_THAT(message_of([&] { on_ranks(config, [](auto&, auto&) {}); }),
              HasSubstr("layer plain: scale was not initialised"));
  config.model_init_config.meta_device_init = false;
  EXPECT_THAT(message_of([&] { on_ranks(config, [](auto&, auto&) {}); }),
              HasSubstr("expected model_init_config.meta_device_init, got it off"));
}

TEST(NxDModelCheckpointing, UnknownClassesAndMissingOnesAreNamed) {
  NxDConfig config = config_of(1);
  config.activation_checkpoint_config = ActivationCheckpointConfig{};
  EXPECT_THAT(
      message_of([&] { on_ranks(config, [](auto&, auto&) {}); }),
      HasSubstr("the list of classes is empty: expected some of Embedding, Block, Plain, Head"));
}

TEST(NxDOptimizer, GroupsNormAndState) {
  on_ranks(config_of(1), [](NxDModel& model, runtime::RankContext&) {
    const auto optimizer = initialize_parallel_optimizer(
        model.config(), model, {.name = "adamw", .lr = 1e-2, .weight_decay = 0.1});
    EXPECT_FALSE(optimizer->grad_norm().has_value()) << "before the first step";
    const auto groups = optimizer->param_groups();
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_THAT(groups[0].names, testing::Contains("block.0.up.weight"));
    EXPECT_THAT(groups[1].names,
                testing::IsSupersetOf({"block.0.norm.weight", "plain.linear.bias"}));
    (void)model.run_train(user_batch(0, 1, 0));
    optimizer->step();
    EXPECT_GT(*optimizer->grad_norm(), 0);

    NxDModel::StateDict weights;
    NxDOptimizer::StateDict states;
    for (const auto& [name, tensor] : model.state_dict()) weights[name] = tensor.clone();
    for (const auto& [name, tensor] : optimizer->state_dict()) states[name] = tensor.clone();
    const auto step = [&] {
      (void)model.run_train(user_batch(1, 1, 0));
      optimizer->step();
      return model.named_parameters().front().second.detach().clone();
    };
    const at::Tensor after = step();
    (void)step();
    model.load_state_dict(weights);
    optimizer->load_state_dict(states);
    EXPECT_EQ(optimizer->steps(), 1);
    EXPECT_TRUE(step().equal(after)) << "a restored optimizer takes the same step";
    states.erase("state.0");
    EXPECT_THAT(message_of([&] { optimizer->load_state_dict(states); }),
                HasSubstr("state.0: expected"));
  });
}

/// The value of each parameter after one step of plain SGD.
std::map<std::string, at::Tensor> after_one_step(
    int pp, const std::vector<NxDOptimizer::ParamGroup>& groups) {
  std::map<std::string, at::Tensor> weights;
  std::mutex mutex;
  NxDConfig config = config_of(pp, {.num_microbatches = 4});
  config.optimizer_config.grad_clipping = false;
  on_ranks(config, [&](NxDModel& model, runtime::RankContext&) {
    const auto optimizer =
        initialize_parallel_optimizer(model.config(), model, {.name = "sgd", .lr = 0.1});
    for (const auto& group : groups) optimizer->add_param_group(group);
    EXPECT_EQ(optimizer->param_groups().size(), 2U + groups.size());
    (void)model.run_train(user_batch(0, 1, 0));
    optimizer->step();
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [name, tensor] : model.named_parameters())
      weights[name] = tensor.detach().clone();
  });
  return weights;
}

TEST(NxDOptimizer, AnAddedGroupHasItsOwnWeightDecayAndLearningRate) {
  const std::vector<std::string> names = {"block.0.up.weight", "block.0.norm.weight",
                                          "block.3.up.weight"};
  const auto in_group = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const int pp : {1, 2}) {
    const auto start = after_one_step(pp, {});
    std::map<std::string, at::Tensor> initial;
    std::mutex mutex;
    on_ranks(config_of(pp, {.num_microbatches = 4}), [&](NxDModel& model, runtime::RankContext&) {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const auto& [name, tensor] : model.named_parameters())
        initial[name] = tensor.detach().clone();
    });
    const auto doubled = after_one_step(pp, {{{0, 2}, names}}),
               decayed = after_one_step(pp, {{{0.5, 1}, names}}),
               frozen = after_one_step(pp, {{{0, 0}, names}});
    ASSERT_EQ(doubled.size(), initial.size());
    for (const auto& [name, before] : initial) {
      const at::Tensor step = start.at(name) - before;
      EXPECT_GT(step.abs().max().item<double>(), 0) << name;
      EXPECT_TRUE(
          at::allclose(doubled.at(name) - before, step * (in_group(name) ? 2 : 1), 1e-10, 1e-14))
          << name;
      EXPECT_TRUE(at::allclose(decayed.at(name) - before,
                               step - before * (in_group(name) ? 0.1 * 0.5 : 0), 1e-10, 1e-14))
          << name;
      EXPECT_EQ(frozen.at(name).equal(before), in_group(name)) << name;
    }
  }
}

TEST(NxDOptimizer, GroupsThatCannotBeAreNamed) {
  const auto tied = [](const ModuleContext& context) { return user_model(context, true); };
  on_ranks(
      config_of(1),
      [](NxDModel& model, runtime::RankContext&) {
        const auto optimizer =
            initialize_parallel_optimizer(model.config(), model, {.name = "sgd", .lr = 0.1});
        EXPECT_THAT(message_of([&] {
                      optimizer->add_param_group({{0, 1}, {"block.9.up.weight", "plain.bias"}});
                    }),
                    testing::AllOf(HasSubstr("block.9.up.weight is no parameter of the model"),
                                   HasSubstr("plain.bias is no parameter of the model")));
        EXPECT_THAT(message_of([&] { optimizer->add_param_group({{0, 1}, {"embed.weight"}}); }),
                    HasSubstr("expected all of embed.weight, head.weight"));
        optimizer->add_param_group({{0, 1}, {"embed.weight", "head.weight"}});
        EXPECT_THAT(message_of([&] {
                      optimizer->add_param_group({{0, 1}, {"embed.weight", "head.weight"}});
                    }),
                    HasSubstr("embed.weight is in an added group already"));
        (void)model.run_train(user_batch(0, 1, 0));
        optimizer->step();
        EXPECT_THAT(
            message_of([&] { optimizer->add_param_group({{0, 1}, {"plain.linear.bias"}}); }),
            HasSubstr("expected no step yet, got 1"));
      },
      tied);
}

/// Three heads of four.
struct Attention : torch::nn::Module {
  Attention(const ModuleContext& context, const std::string& name)
      : qkv(context, name + ".qkv", {kHidden, 3, 3, 4}, {.gather_output = false}),
        out(context, name + ".out", 12, kHidden,
            {.input_is_parallel = true, .partition = qkv.query_columns()}) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto [query, key, value] = qkv.forward(x);  // [s, b, heads, d]
    const at::Tensor weights =
        at::matmul(query.permute({1, 2, 0, 3}), key.permute({1, 2, 3, 0})).softmax(-1);
    const at::Tensor attended =
        at::matmul(weights, value.permute({1, 2, 0, 3})).permute({2, 0, 1, 3});
    return x + out.forward(qkv.mask_padded_heads(attended).flatten(2));
  }
  GQAQKVColumnParallelLinear qkv;
  RowParallelLinear out;
};

std::vector<double> attention_losses(int tp, bool pad_model) {
  NxDConfig config = config_of(1);
  config.tensor_parallel_size = tp;
  config.pad_model = pad_model;
  config.pipeline_config->transformer_layer_cls = "Attention";
  runtime::WorldOptions world;
  world.world_size = tp;
  const NxDConfig filled = neuronx_distributed_config(config);
  std::vector<double> losses;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(filled, rank, [](const ModuleContext& context) {
      SequentialModel built;
      built.add<Embedding>("embed")
          .add<Attention>("attention.0")
          .add<Attention>("attention.1")
          .add<Head>("head");
      return built.loss(
          [tp_group = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
            return parallel_cross_entropy(logits, batch.labels.t(), tp_group).mean();
          });
    });
    const auto optimizer =
        initialize_parallel_optimizer(filled, *model, {.name = "adamw", .lr = 1e-2});
    for (std::int64_t step = 0; step < 4; ++step) {
      const double loss = model->run_train(user_batch(step, 1, 0)).item<double>();
      optimizer->step();
      if (rank.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST(NxDModelPadding, PadModelTrainsTheUnpaddedModelWhereTpDoesNotDivideItsHeads) {
  const std::vector<double> one = attention_losses(1, false);
  EXPECT_LT(one.back(), one.front());
  for (const int tp : {2, 4}) {
    const std::vector<double> padded = attention_losses(tp, true);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(padded[i], one[i], 1e-10 * one[i]) << tp;
  }
  EXPECT_THAT(message_of([] { (void)attention_losses(2, false); }), HasSubstr("attention.0.qkv"));
}

}  // namespace
}  // namespace trellis::trainer::model_test
