// NxD's interface, call by call: the right column of the table in docs/guides/model.md. The last
// case compares that table with this file.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_model.h"
#include "tests/trainer/nxd/user_training.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/nxd/checkpoint/checkpoints.h"
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/optimizer/make_update_rule.h"

namespace trellis::trainer::interface_test {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using runtime::RankContext;

constexpr std::int64_t kHeads = 4, kKvHeads = 2;

struct Projections : torch::nn::Module {
  Projections(const ModuleContext& context, const std::string& name)
      : qkv(GQAQKVColumnParallelLinear(
            context, name + ".qkv", {kHidden, kHeads, kKvHeads},
            {.bias = true, .gather_output = true, .kv_size_multiplier = 2, .fuse_qkv = true})) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto [query, key, value] = qkv.forward(x);
    return x + query.flatten(2) + at::cat({key, value}, 2).flatten(2);
  }
  GQAQKVColumnParallelLinear qkv;
};

SequentialModel model_fn(const ModuleContext& context) {
  return SequentialModel()
      .add<Embedding>("embed")
      .add<Projections>("projections")
      .add<Block>("block.0")
      .add<Block>("block.1")
      .add<Head>("head")
      .loss([tp = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
        return parallel_cross_entropy(logits, batch.labels.t(), tp).mean();
      });
}

NxDConfig whole_config() {
  NxDConfig config;
  config.tensor_parallel_size = 4;
  config.pipeline_parallel_size = 1;
  config.expert_parallel_size = 1;
  config.context_parallel_size = 1;
  config.kv_size_multiplier = 2;
  config.pipeline_config = PipelineConfig{
      .num_microbatches = 2, .transformer_layer_cls = "Block", .auto_partition = true};
  config.optimizer_config = {.zero_one_enabled = true, .grad_clipping = true, .max_grad_norm = 1.0};
  config.activation_checkpoint_config = ActivationCheckpointConfig{.full = true};
  config.activation_checkpoint_config = ActivationCheckpointConfig{.classes = {"Block"}};
  config.pad_model = false;
  config.sequence_parallel = false;
  config.model_init_config = {.sequential_move_factor = 11, .meta_device_init = false};
  config.mixed_precision_config = {.use_master_weights = true};
  config.dtype = at::kDouble;
  return neuronx_distributed_config(config);
}

void on_four_ranks(const std::function<void(RankContext&)>& body) {
  runtime::run_ranks({.world_size = 4}, body);
}

TEST(Interface, ModelAndOptimizer) {
  const NxDConfig config = whole_config();
  on_four_ranks([&](RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, model_fn);
    const auto optimizer =
        initialize_parallel_optimizer(config, *model, {.name = "adamw", .lr = 1e-3});
    optimizer->add_param_group({{.weight_decay = 0.01}, {"block.0.up.weight"}});
    const MicroBatch batch = user_batch(0, 1, 0);
    const double first = model->run_train(batch).item<double>();
    optimizer->step();
    optimizer->zero_grad();
    EXPECT_GT(*optimizer->grad_norm(), 0);
    EXPECT_LT(model->run_train(batch).item<double>(), first);

    const auto local = model->local_module();
    EXPECT_EQ(local, model->local_module());
    ASSERT_EQ(local->named_parameters().size(), model->named_parameters().size());
    for (const auto& [name, tensor] : model->named_parameters())
      EXPECT_TRUE(local->named_parameters()[name].is_same(tensor)) << name;
    EXPECT_TRUE(local->forward(batch).equal(model->forward(batch)));
    EXPECT_EQ(model->named_modules().size(), 5U);
    EXPECT_TRUE(model->named_buffers().empty());
    EXPECT_EQ(model->local_modules().front().size(), model->original_module().size());
    EXPECT_EQ(model->dtype(), at::kDouble);
    EXPECT_EQ(model->config().tensor_parallel_size, 4);
    model->load_state_dict(model->state_dict());
  });
}

TEST(Interface, Adapters) {
  NxDConfig config = whole_config();
  const LoraConfig lora{.enable_lora = true,
                        .lora_rank = 16,
                        .lora_alpha = 32,
                        .lora_dropout = 0.05,
                        .bias = "none",
                        .target_modules = {"qkv", "up", "down"}};
  config.lora_config = lora;
  on_four_ranks([&](RankContext& rank) {
    const auto model =
        initialize_parallel_model(neuronx_distributed_config(config), rank, model_fn);
    ASSERT_NE(model->lora(), nullptr);
    EXPECT_EQ(model->lora()->scale(), 2);
    const NxDConfig plain = whole_config();
    const auto wrapped = initialize_parallel_model(plain, rank, [&](const ModuleContext& context) {
      return LoRAModel(model_fn(context), lora);
    });
    EXPECT_EQ(wrapped->named_parameters().size(), model->named_parameters().size());
  });
}

TEST(Interface, Checkpoints) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "ckpts";
  const NxDConfig config = whole_config();
  NxDCheckpoints checkpoints(path, /*world_size=*/4);
  on_four_ranks([&](RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, model_fn);
    const auto optimizer = initialize_parallel_optimizer(config, *model, {.name = "adamw"});
    LrScheduler scheduler({.name = "adamw", .lr = 1e-2}, 9);
    const checkpoint::Value user_content =
        checkpoint::Value::dict({{"total_steps", checkpoint::Value(3)}});
    checkpoints.save_checkpoint(rank, {.tag = "step_3",
                                       .model = model.get(),
                                       .optimizer = optimizer.get(),
                                       .scheduler = &scheduler,
                                       .user_content = user_content,
                                       .num_workers = 8,
                                       .use_xser = true,
                                       .async_save = false,
                                       .num_kept_ckpts = 2});
    EXPECT_TRUE(checkpoints.has_checkpoint(rank));
    const auto loaded = checkpoints.load_checkpoint(rank, {.model = model.get(),
                                                           .optimizer = optimizer.get(),
                                                           .scheduler = &scheduler,
                                                           .num_workers = 8,
                                                           .strict = true});
    EXPECT_EQ(loaded.user_content, user_content);
    checkpoints.finalize_checkpoint(rank);
  });
}

TEST(Interface, TheOlderCheckpoints) {
  const TemporaryDirectory directory;
  const auto folder = checkpoint::open_storage(directory.path() / "old");
  const NxDConfig config = whole_config();
  on_four_ranks([&](RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, model_fn);
    const auto optimizer = initialize_parallel_optimizer(config, *model, {.name = "adamw"});
    const auto train = [&] {
      (void)model->run_train(user_batch(0, 1, 0));
      optimizer->step();
    };
    train();
    legacy::save(rank, model->parallel(),
                 {.states = {{"model", model->state_dict()}, {"optim", optimizer->state_dict()}}},
                 *folder, {.save_serially = true, .save_xser = true, .down_cast_bf16 = false});
    legacy::save_sharded_state_dict(rank, *model, *optimizer, *folder, /*save_serially=*/true);
    const auto weights = model->state_dict();
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : weights) before[name] = tensor.clone();
    train();
    EXPECT_EQ(optimizer->steps(), 2);
    legacy::load(rank, model->parallel(), folder,
                 {.model_or_optimizer = model.get(), .model_key = "model", .load_xser = true});
    legacy::load(rank, model->parallel(), folder,
                 {.model_or_optimizer = optimizer.get(), .model_key = "optim", .load_xser = true});
    EXPECT_EQ(optimizer->steps(), 1);
    for (const auto& [name, tensor] : model->state_dict())
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
    legacy::load_sharded_state_dict(rank, *model, *optimizer, folder, /*num_workers_per_step=*/8);
    EXPECT_THAT(
        error_of([&] {
          legacy::load(
              rank, model->parallel(), folder,
              {.model_or_optimizer = optimizer.get(), .model = model.get(), .load_xser = true});
        }),
        testing::HasSubstr("expected one of them"));
  });
}

TEST(Interface, ClippingAndTheShardedOptimizer) {
  const TemporaryDirectory directory;
  const auto folder = checkpoint::open_storage(directory.path() / "shards");
  const NxDConfig config = whole_config();
  on_four_ranks([&](RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, model_fn);
    const MicroBatch batch = user_batch(0, 1, 0);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    (void)model->run_train(batch);
    const at::Tensor norm = clip_grad_norm(model->parameter_list(), model->parallel(), 1e-3);
    const at::Tensor clipped = clip_grad_norm(model->parameter_list(), model->parallel(), 1.0);
    EXPECT_NEAR(clipped.item<double>(), 1e-3 * norm.item<double>() / (norm.item<double>() + 1e-6),
                1e-12);
    const at::Tensor largest =
        clip_grad_norm(model->parameter_list(), model->parallel(), 1.0, kInfinityNorm);
    EXPECT_LE(largest.item<double>(), clipped.item<double>());
    sgd.step();
    sgd.zero_grad();

    const std::vector<NeuronZero1Optimizer::ParameterGroup> groups = {
        {{.weight_decay = 0.01}, {"block.0.up.weight", "block.1.up.weight"}},
        {{.weight_decay = 0.0}, {"block.0.norm.weight", "block.0.norm.bias"}}};
    NeuronZero1Optimizer zero1(
        groups, model->parameter_list(), model->parallel(),
        {.rule = make_update_rule({.name = "adamw"}), .weight_decay = 0.1, .max_grad_norm = 1.0});
    model->leave_gradients_to_optimizer();
    (void)model->run_train(batch);
    zero1.reduce_gradients();
    EXPECT_GT(zero1.step(/*lr=*/1e-3).item<double>(), 0);
    legacy::save_sharded_state_dict(rank, *model, zero1, /*lr=*/1e-3, *folder);
    legacy::load_sharded_state_dict(rank, *model, zero1, folder);
    EXPECT_EQ(zero1.steps(), 1);
    std::size_t grouped = 0;
    for (const auto& group : zero1.param_groups()) {
      if (group.numbers.weight_decay == 0.01) grouped = group.names.size();
    }
    EXPECT_EQ(grouped, 2U);
  });
}

LTModuleArguments lt_arguments() {
  LTModuleArguments arguments;
  arguments.model_fn = model_fn;
  arguments.optim = {.name = "adamw", .lr = 1e-2, .sched = SchedSection{.name = "CosineAnnealing"}};
  arguments.max_steps = 6;
  arguments.train_batch_size = static_cast<int>(kGlobalBatch);
  arguments.grad_accum_steps = 1;
  arguments.log_rank0 = true;
  return arguments;
}

TEST(Interface, LightningGoesOnFromACheckpoint) {
  const TemporaryDirectory directory;
  const BatchSource data = [](std::int64_t index, const SamplerArguments&) {
    return user_batch(index, 1, 0);
  };
  for (const bool xser : {true, false}) {
    const std::string folder = directory.path() / (xser ? "xser" : "plain");
    NeuronXLAStrategy strategy({.world_size = 4}, whole_config(), /*tensor_parallel_size=*/1,
                               /*pipeline_parallel_size=*/1, /*save_load_xser=*/xser);
    std::ostringstream shown;
    NeuronTQDMProgressBar bar(shown);
    NeuronTensorBoardLogger logger(directory.path() / "logs");
    std::vector<double> whole, second;
    LightningTrainer trainer(strategy, NeuronXLAPrecisionPlugin{});
    const NeuronCheckpointIO io(strategy.save_load_xser());
    trainer.callback(bar).logger(logger).callback(io.callback(folder, /*every_n_train_steps=*/3));
    trainer.fit(lt_arguments(), data, [&](const LTStep& step) { whole.push_back(*step.loss); });
    EXPECT_EQ(fs::is_directory(fs::path(folder) / "step_3.ckpt" / "tp_rank_00_pp_rank_00.tensors"),
              xser);
    LightningTrainer again(strategy);
    again.callback(io.callback(folder, /*every_n_train_steps=*/3, folder + "/step_3.ckpt"));
    again.fit(lt_arguments(), data, [&](const LTStep& step) { second.push_back(*step.loss); });
    ASSERT_EQ(whole.size(), 6U);
    EXPECT_EQ(second, std::vector<double>(whole.begin() + 3, whole.end())) << "bit for bit";
  }
}

TEST(Interface, TheCheckpointPluginKeepsAndRemoves) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "one.ckpt";
  LTModuleArguments arguments = lt_arguments();
  arguments.nxd_config = whole_config();
  arguments.nxd_config.optimizer_config.zero_one_enabled = false;
  arguments.nxd_config.mixed_precision_config = {};
  const NeuronCheckpointIO io(/*save_load_xser=*/false, /*weights_only=*/true);
  on_four_ranks([&](RankContext& rank) {
    NeuronLTModule module(arguments);
    module.setup(rank);
    module.configure_optimizers();
    module.training_step(user_batch(0, 1, 0));
    io.save_checkpoint(rank, module, path);
    const at::Tensor saved = module.model().parameters().front().detach().clone();
    module.training_step(user_batch(1, 1, 0));
    io.load_checkpoint(rank, module, path);
    EXPECT_TRUE(module.model().parameters().front().detach().equal(saved));
    EXPECT_EQ(module.optimizer().steps(), 1);
    io.remove_checkpoint(rank, path);
    EXPECT_FALSE(fs::exists(path));
  });
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

std::string content_of(const char* file) {
  std::ifstream in(fs::path(TRELLIS_SOURCE_DIR) / file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Interface, TheGuidesTableIsInThisFile) {
  const std::string here = without_spaces(content_of("tests/trainer/nxd/interface_test.cpp"));
  std::istringstream guide(content_of("docs/guides/model.md"));
  std::size_t calls = 0;
  bool in_table = false;
  for (std::string line; std::getline(guide, line);) {
    in_table = line.starts_with("| NxD") || (in_table && line.starts_with("|"));
    if (!in_table || line.starts_with("|---")) continue;
    const std::size_t column = line.find(" | ");
    ASSERT_NE(column, std::string::npos) << line;
    const std::string right = line.substr(column);
    for (std::size_t at = right.find('`'); at != std::string::npos;) {
      const std::size_t end = right.find('`', at + 1);
      const std::string call = right.substr(at + 1, end - at - 1);
      EXPECT_NE(here.find(without_spaces(call)), std::string::npos) << call;
      ++calls;
      at = right.find('`', end + 1);
    }
  }
  EXPECT_GE(calls, 30U);
}

}  // namespace
}  // namespace trellis::trainer::interface_test
