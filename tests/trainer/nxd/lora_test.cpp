// LoraConfig and LoRAModel of a user's model: layouts against one rank, what is trained, what is
// saved, and adapters that are loaded.
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_training.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/nxd/initialize_parallel_model.h"

namespace trellis::trainer::lora_test {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAreArray;

LoraConfig every_kind() {
  return {.lora_rank = 4,
          .lora_alpha = 6,
          .bias = "lora_only",
          .target_modules = {"embed", "up", "block.1.down", "head"},
          .modules_to_save = {"block.0.norm"}};
}

NxDConfig config_with(const Layout& layout, const LoraConfig& lora) {
  NxDConfig config = config_of(layout);
  config.lora_config = lora;
  return neuronx_distributed_config(config);
}

void on_ranks(
    const NxDConfig& config, int ranks,
    const std::function<void(runtime::RankContext&, NxDModel&)>& body,
    const ModelFunction& model_fn = [](const ModuleContext& c) { return user_model(c); }) {
  runtime::WorldOptions world;
  world.world_size = ranks;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, model_fn);
    body(rank, *model);
  });
}

void train(NxDModel& model, NxDOptimizer& optimizer, int steps,
           const std::function<void(double loss, double norm)>& each = {}) {
  const ParallelState& parallel = model.parallel();
  for (int step = 0; step < steps; ++step) {
    const double loss = model
                            .run_train(user_batch(step, parallel.get_data_parallel_size(),
                                                  parallel.get_data_parallel_rank()))
                            .item<double>();
    optimizer.step();
    if (each) each(loss, *optimizer.grad_norm());
  }
}

constexpr const char* kOptimizer = "adamw";

std::vector<double> losses_of(const NxDConfig& config, int ranks) {
  std::vector<double> numbers;
  on_ranks(config, ranks, [&](runtime::RankContext& rank, NxDModel& model) {
    const auto optimizer =
        initialize_parallel_optimizer(config, model, {.name = kOptimizer, .lr = 1e-2});
    train(model, *optimizer, 4, [&](double loss, double norm) {
      if (rank.rank() == 0) numbers.insert(numbers.end(), {loss, norm});
    });
  });
  return numbers;
}

TEST(LoRA, EveryLayoutTrainsTheAdaptersOfOneRank) {
  LoraConfig lora = every_kind();
  lora.lora_dropout = 0.25;
  const std::vector<double> one = losses_of(config_with({}, lora), 1);
  EXPECT_NEAR(one.front(), losses_of(config_of({}), 1).front(), 1e-14) << "at first, the base";
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .pp = 2, .dp = 2}, Layout{.pp = 4},
                               Layout{.dp = 2, .zero1 = false}}) {
    const std::vector<double> got = losses_of(config_with(layout, lora), layout.ranks());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(got[i], one[i], 1e-11) << i;
  }
  NxDConfig with_sp = config_with({.tp = 2, .pp = 2}, lora);
  with_sp.sequence_parallel = true;
  const std::vector<double> got = losses_of(with_sp, 4);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(got[i], one[i], 1e-11) << i;
}

TEST(LoRA, OnlyWhatTheConfigurationNamesChanges) {
  const NxDConfig config = config_with({}, every_kind());
  on_ranks(config, 1, [&](runtime::RankContext&, NxDModel& model) {
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : model.named_parameters())
      before[name] = tensor.detach().clone();
    const auto optimizer =
        initialize_parallel_optimizer(config, model, {.name = kOptimizer, .lr = 1e-2});
    train(model, *optimizer, 2);
    std::int64_t trained = 0;
    for (const auto& [name, tensor] : model.named_parameters()) {
      const bool expected = name.find(".lora_") != std::string::npos ||
                            name.starts_with("block.0.norm.") || name.ends_with(".up.bias") ||
                            name == "block.1.down.bias";
      EXPECT_EQ(!tensor.detach().equal(before.at(name)), expected) << name;
      if (name.find(".lora_") != std::string::npos) trained += tensor.numel();
    }
    const std::int64_t ups = 4 * 4 * (kHidden + 2 * kHidden), down = 4 * (2 * kHidden + kHidden),
                       ends = 2 * 4 * (kVocabulary + kHidden);
    EXPECT_EQ(trained, ups + down + ends);
  });
}

TEST(LoRA, TheWrapperIsTheConfiguration) {
  const std::vector<double> expected = losses_of(config_with({}, every_kind()), 1);
  std::vector<double> numbers;
  const NxDConfig config = config_of({});
  on_ranks(
      config, 1,
      [&](runtime::RankContext&, NxDModel& model) {
        const auto optimizer =
            initialize_parallel_optimizer(config, model, {.name = kOptimizer, .lr = 1e-2});
        train(model, *optimizer, 4,
              [&](double loss, double norm) { numbers.insert(numbers.end(), {loss, norm}); });
      },
      [](const ModuleContext& c) { return LoRAModel(user_model(c), every_kind()); });
  EXPECT_EQ(numbers, expected);
  LoraConfig off = every_kind();
  off.enable_lora = false;
  EXPECT_EQ(losses_of(config_with({}, off), 1), losses_of(config_of({}), 1));
}

TEST(LoRA, ScaleIsAlphaOverTheRankOrItsRoot) {
  for (const bool stabilised : {false, true}) {
    LoraConfig lora{.lora_rank = 4, .lora_alpha = 6, .target_modules = {"up"}};
    lora.use_rslora = stabilised;
    on_ranks(config_with({}, lora), 1, [&](runtime::RankContext&, NxDModel& model) {
      const at::NoGradGuard no_grad;
      const MicroBatch batch = user_batch(0, 1, 0);
      auto state = model.state_dict();
      state.at("block.0.up.lora_B.weight").fill_(0.125);
      const at::Tensor with = model.forward(batch);
      const at::Tensor product =
          at::matmul(state.at("block.0.up.lora_B.weight"), state.at("block.0.up.lora_A.weight"));
      state.at("block.0.up.lora_B.weight").zero_();
      state.at("block.0.up.weight").add_(product, stabilised ? 3.0 : 1.5);
      EXPECT_LE((model.forward(batch) - with).abs().max().item<double>(), 1e-13);
    });
  }
}

std::vector<std::string> keys_in(const fs::path& checkpoint) {
  std::vector<std::string> keys;
  const checkpoint::native::NativeSource source(checkpoint::open_place(checkpoint.string()));
  for (const auto& entry : source.tensors()) {
    if (entry.key.find("optimizer") == std::string::npos) keys.push_back(entry.key);
  }
  return keys;
}

/// The last layer's output on one rank.
at::Tensor output_of(const NxDConfig& config, const fs::path& folder, bool strict = true) {
  at::Tensor output;
  NxDCheckpoints saved(folder.string(), 1);
  on_ranks(config, 1, [&](runtime::RankContext& rank, NxDModel& model) {
    if (!model.lora() || !model.lora()->load)
      saved.load_checkpoint(rank, {.tag = "tag", .model = &model, .strict = strict});
    const at::NoGradGuard no_grad;
    output = model.forward(user_batch(9, 1, 0));
  });
  return output;
}

/// Trains over TP 2 × DP 2 and saves "tag"; returns the whole model's output.
at::Tensor train_and_save(const LoraConfig& lora, const fs::path& folder) {
  const NxDConfig config = config_with({.tp = 2, .dp = 2, .zero1 = false}, lora);
  NxDCheckpoints saved(folder.string(), 4);
  at::Tensor output;
  on_ranks(config, 4, [&](runtime::RankContext& rank, NxDModel& model) {
    const auto optimizer =
        initialize_parallel_optimizer(config, model, {.name = kOptimizer, .lr = 1e-2});
    train(model, *optimizer, 3);
    saved.save_checkpoint(rank, {.tag = "tag", .model = &model});
    const at::NoGradGuard no_grad;
    const at::Tensor part = model.forward(user_batch(9, 1, 0));
    const at::Tensor whole = all_gather(part.transpose(0, 2).contiguous(),
                                        model.parallel().get_tensor_model_parallel_group())
                                 .transpose(0, 2);  // of the vocabulary
    if (rank.rank() == 0) output = whole;
  });
  return output;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(LoRACheckpoints, TheThreeModesSaveWhatTheySay) {
  const TemporaryDirectory folder;
  LoraConfig lora = every_kind();
  lora.bias = "none";
  lora.modules_to_save.clear();
  const at::Tensor trained = train_and_save(lora, folder.path() / "alone");
  EXPECT_THAT(keys_in(folder.path() / "alone" / "tag"), Each(HasSubstr(".lora_")));
  EXPECT_TRUE(fs::exists(folder.path() / "alone" / "adapter_config.json"));
  EXPECT_LE(difference(output_of(config_with({}, lora), folder.path() / "alone"), trained), 1e-12);

  lora.save_lora_base = lora.save_lora_config_adapter = true;
  EXPECT_LE(difference(train_and_save(lora, folder.path() / "both"), trained), 1e-12);
  EXPECT_THAT(keys_in(folder.path() / "both" / "tag"),
              AllOf(Contains("block.0.up.weight"), Contains("block.0.up.lora_A.weight")));
  EXPECT_FALSE(fs::exists(folder.path() / "both" / "adapter_config.json"));
  EXPECT_LE(difference(output_of(config_with({}, lora), folder.path() / "both"), trained), 1e-12);

  lora.merge_lora = true;
  train_and_save(lora, folder.path() / "merged");
  EXPECT_THAT(keys_in(folder.path() / "merged" / "tag"), Each(Not(HasSubstr(".lora_"))));
  EXPECT_LE(difference(output_of(config_of({}), folder.path() / "merged"), trained), 1e-12)
      << "a model without adapters";
}

TEST(LoRACheckpoints, AModelBeginsWithSavedAdaptersAndTheirNumbers) {
  const TemporaryDirectory folder;
  for (const bool in_file : {false, true}) {
    const fs::path place = folder.path() / (in_file ? "in_file" : "json");
    LoraConfig lora = every_kind();
    lora.save_lora_config_adapter = in_file;
    const at::Tensor trained = train_and_save(lora, place);
    LoraConfig loads{.load_lora_from_ckpt = true, .lora_save_dir = place.string()};
    loads.lora_load_tag = in_file ? "tag" : "";
    on_ranks(config_with({}, loads), 1, [&](runtime::RankContext&, NxDModel& model) {
      EXPECT_EQ(model.lora()->rank, 4);
      EXPECT_EQ(model.lora()->alpha, 6);
      EXPECT_EQ(model.lora()->bias, "lora_only");
      EXPECT_THAT(model.lora()->targets, UnorderedElementsAreArray(lora.target_modules));
    });
    EXPECT_LE(difference(output_of(config_with({}, loads), place), trained), 1e-12) << place;
  }
}

TEST(LoRA, MisuseIsNamed) {
  const auto message = [](const LoraConfig& lora, const Layout& layout = {}) {
    return error_of([&] {
      on_ranks(config_with(layout, lora), layout.ranks(), [](runtime::RankContext&, NxDModel&) {});
    });
  };
  const std::string problems = message({.lora_rank = 0,
                                        .lora_dropout = 1,
                                        .bias = "some",
                                        .target_modules_regex = "(",
                                        .init_lora_weights = "zeros"});
  for (const char* part : {"lora_config.lora_rank: expected 1 or more, got 0", "lora_dropout",
                           "bias: expected none, all or lora_only, got \"some\"",
                           "init_lora_weights: expected default or gaussian", "regular expression"})
    EXPECT_THAT(problems, HasSubstr(part));
  EXPECT_THAT(message({}), HasSubstr("target_modules: a model of your own has no default targets"));
  EXPECT_THAT(message({.target_modules = {"up", "q_proj"}}, {.pp = 2}),
              HasSubstr("`q_proj` names no parallel layer of the model"));
  EXPECT_THAT(message({.target_modules = {"linear"}}),
              HasSubstr("plain.linear: a module of LibTorch takes no adapter"));
  EXPECT_THAT(message({.load_lora_from_ckpt = true, .lora_save_dir = "nowhere"}),
              HasSubstr("nowhere"));
  const TemporaryDirectory folder;
  LoraConfig merges = every_kind();
  merges.merge_lora = true;
  const NxDConfig config = config_with({}, merges);
  NxDCheckpoints saved(folder.path().string(), 1);
  EXPECT_THAT(error_of([&] {
                on_ranks(config, 1, [&](runtime::RankContext& rank, NxDModel& model) {
                  const auto optimizer =
                      initialize_parallel_optimizer(config, model, {.name = kOptimizer});
                  saved.save_checkpoint(rank, {.model = &model, .optimizer = optimizer.get()});
                });
              }),
              HasSubstr("with lora_config.merge_lora no adapters are saved"));
}

}  // namespace
}  // namespace trellis::trainer::lora_test
