// What a run needs is known without running it: shape-only memory equals materialised memory to the byte, through the real trainer.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/device_plugin.h"
#include "tests/integration/layout_run.h"

namespace trellis::trainer {
namespace {

using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

struct Case {
  const char* name;
  Layout layout;
  const char* precision = "fp32";
  int micro_batch = 1;
  int hidden = 32;
  int sequence = 16;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

RunConfig config_of(const Case& one) {
  RunConfig config = small_llama(one.layout, one.precision, 3);
  config.data.micro_batch_size = one.micro_batch;
  config.model.hidden_size = one.hidden;
  config.model.ffn_hidden_size = one.hidden * 3 / 2;
  config.model.encoder_seq_length = config.model.max_position_embeddings = one.sequence;
  const bool masters = one.precision == std::string("mixed_precision") && one.layout.zero1;
  config.precision.master_weights = config.precision.fp32_grad_acc = masters;
  return config;
}

/// The answer of `trellis::memory_timeline`.
nlohmann::json timeline_of(int rank) {
  torch::jit::Stack stack{std::int64_t{rank}};
  c10::Dispatcher::singleton().findSchemaOrThrow("trellis::memory_timeline", "").callBoxed(stack);
  return nlohmann::json::parse(stack.back().toStringRef());
}

/// Trains in this process; trellis.memory/1 and each rank's allocations and releases.
nlohmann::json memory_of(const Case& one, bool shape_only) {
  const RunConfig config = config_of(one);
  const auto& plugin = runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const nlohmann::json options = {{"schema", "trellis.device_options/1"}, {"instance", "trn1.32xlarge"},
                                  {"world_size", one.layout.world_size()}, {"shape_only", shape_only}};
  plugin.check(plugin.api().configure(options.dump().c_str()));
  runtime::WorldOptions world;
  world.world_size = one.layout.world_size();
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = shape_only;
  const auto data = std::make_shared<RandomTokens>(config);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data, ParallelState::initialize_model_parallel(rank, one.layout.tp, one.layout.pp));
    trainer.fit([](const StepResult&) {});
  });
  const char* report = nullptr;
  plugin.check(plugin.api().memory_report(&report));
  nlohmann::json result = nlohmann::json::parse(report);
  for (int rank = 0; rank < one.layout.world_size(); ++rank) result["timelines"].push_back(timeline_of(rank));
  return result;
}

/// A device is configured once per process: each mode gets a process of its own.
nlohmann::json memory_in_child(const Case& one, bool shape_only) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) /
                                     ("memory_modes_" + std::to_string(getpid()) + (shape_only ? "_shapes" : "_data"));
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      std::ofstream(file) << memory_of(one, shape_only);
      code = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  std::ifstream stream(file);
  nlohmann::json report = nlohmann::json::parse(stream, nullptr, false);
  std::filesystem::remove(file);
  return report;
}

/// Without the number of operations so far: while a model is built, weights are drawn in one mode only.
nlohmann::json comparable(nlohmann::json event) {
  event.erase("op");
  return event;
}

/// The same blocks for the same operations in the same order: peaks follow.
void expect_same_events(const nlohmann::json& data, const nlohmann::json& shapes) {
  EXPECT_EQ(data.at("dropped_events"), 0);
  ASSERT_EQ(data.at("events").size(), shapes.at("events").size());
  ASSERT_GT(data.at("events").size(), 1000u);
  for (std::size_t i = 0; i < data.at("events").size(); ++i) {
    ASSERT_EQ(comparable(data.at("events").at(i)), comparable(shapes.at("events").at(i))) << "event " << i;
  }
}

class MemoryModes : public testing::TestWithParam<Case> {};

TEST_P(MemoryModes, ShapeOnlyEqualsMaterialisedToTheByte) {
  const nlohmann::json data = memory_in_child(GetParam(), false), shapes = memory_in_child(GetParam(), true);
  ASSERT_EQ(data.at("ranks").size(), static_cast<std::size_t>(GetParam().layout.world_size()));
  ASSERT_EQ(shapes.at("ranks").size(), data.at("ranks").size());
  for (std::size_t rank = 0; rank < data.at("ranks").size(); ++rank) {
    const nlohmann::json &one = data.at("ranks").at(rank), &other = shapes.at("ranks").at(rank);
    EXPECT_GT(one.at("peak_bytes"), 0);
    EXPECT_GE(one.at("peak_reserved_bytes"), one.at("peak_bytes"));
    EXPECT_EQ(one, other) << nlohmann::json::diff(one, other);
    expect_same_events(data.at("timelines").at(rank), shapes.at("timelines").at(rank));
  }
}

TEST(MemoryOfARun, ThatDoesNotFitIsAnErrorWithExitCode3) {
  try {
    memory_of({"does_not_fit", {1, 2, 1}, "fp32", 1, 32768}, true);
    FAIL() << "more than 16 GiB of weights per core must not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
    EXPECT_NE(std::string(error.what()).find("The largest live tensors"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ten, MemoryModes,
    testing::Values(Case{"one_rank", {}}, Case{"one_rank_fp64", {1, 1, 1, false, false}, "fp64"},
                    Case{"one_rank_mixed", {}, "mixed_precision", 2, 64, 32}, Case{"large", {}, "mixed_precision", 4, 256, 128},
                    Case{"tp", {2, 1, 1, false, false}}, Case{"tp_sequence_parallel", {2, 1, 1, true, true}, "mixed_precision"},
                    Case{"pp", {1, 2, 1}, "fp32", 2}, Case{"dp_zero1", {1, 1, 2, false, true}, "mixed_precision", 2, 64, 32},
                    Case{"dp_replicated", {1, 1, 2, false, false}, "fp32", 4}, Case{"tp_pp_dp", {2, 2, 2, true, true}, "mixed_precision"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trellis::trainer
