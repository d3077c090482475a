// The memory of a run is known without running it: shape-only memory equals materialised memory to
// the byte, through the real trainer.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/groups/device_plugin.h"
#include "tests/integration/layout_run.h"

namespace trellis::trainer::memory_modes_test {
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
  void (*set)(RunConfig&) = nullptr;  ///< what is special
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

RunConfig config_of(const Case& one) {
  RunConfig config = small_llama(one.layout, one.precision, 2);
  config.data.micro_batch_size = one.micro_batch;
  config.model.hidden_size = one.hidden;
  config.model.ffn_hidden_size = one.hidden * 3 / 2;
  config.model.encoder_seq_length = config.model.max_position_embeddings = one.sequence;
  const bool masters = one.precision == std::string("mixed_precision") && one.layout.zero1;
  config.precision.master_weights = config.precision.fp32_grad_acc = masters;
  if (one.set != nullptr) one.set(config);
  return config;
}

void tied_embeddings(RunConfig& config) { config.model.share_embeddings_and_output_weights = true; }

/// Each key and value head on two ranks of TP 4.
void kv_copies(RunConfig& config) {
  config.model.num_kv_heads = 2;
  config.model.qkv_linear = true;
  config.distributed_strategy.kv_replicator = 2;
}

void bf16_stochastic_rounding(RunConfig& config) { config.precision.stochastic_rounding = true; }

void selective_recompute_and_dropout(RunConfig& config) {
  config.model.recompute = Recompute::kSelective;
  config.model.recompute_modules = {"CoreAttention"};
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
}

void full_recompute_and_autocast(RunConfig& config) {
  config.model.recompute = Recompute::kFull;
  config.precision.autocast = true;
  config.precision.weights_bf16 = false;
}

/// The answer of `trellis::memory_timeline`.
nlohmann::json timeline_of(int rank) {
  torch::jit::Stack stack{std::int64_t{rank}};
  c10::Dispatcher::singleton().findSchemaOrThrow("trellis::memory_timeline", "").callBoxed(stack);
  return nlohmann::json::parse(stack.back().toStringRef());
}

/// Trains in this process; trellis.memory/1 and each rank's allocations and releases.
nlohmann::json memory_of(const Case& one, bool shape_only, bool unlimited = false) {
  const RunConfig config = config_of(one);
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const nlohmann::json options = {{"schema", "trellis.device_options/1"},
                                  {"instance", "trn1.32xlarge"},
                                  {"world_size", one.layout.world_size()},
                                  {"shape_only", shape_only},
                                  {"unlimited_memory", unlimited}};
  plugin.check(plugin.api().configure(options.dump().c_str()));
  runtime::WorldOptions world;
  world.world_size = one.layout.world_size();
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = shape_only;
  const auto data = std::make_shared<RandomTokens>(config);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState groups = ParallelState::initialize_model_parallel(
        rank, {.tensor_model_parallel_size = one.layout.tp,
               .pipeline_model_parallel_size = one.layout.pp,
               .kv_size_multiplier = config.distributed_strategy.kv_replicator});
    Trainer trainer(config, rank, data, groups);
    trainer.fit([](const StepResult&) {});
  });
  const char* report = nullptr;
  plugin.check(plugin.api().memory_report(&report));
  nlohmann::json result = nlohmann::json::parse(report);
  for (int rank = 0; rank < one.layout.world_size(); ++rank)
    result["timelines"].push_back(timeline_of(rank));
  return result;
}

/// A device is configured once per process: each mode gets a separate process.
nlohmann::json memory_in_child(const Case& one, bool shape_only, bool unlimited = false) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) /
      ("memory_modes_" + std::to_string(getpid()) + (shape_only ? "_shapes" : "_data"));
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      std::ofstream(file) << memory_of(one, shape_only, unlimited);
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

/// Without the number of operations so far: while a model is built, weights are drawn in one mode
/// only.
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
    ASSERT_EQ(comparable(data.at("events").at(i)), comparable(shapes.at("events").at(i)))
        << "event " << i;
  }
}

std::int64_t sum_of(const nlohmann::json& categories) {
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : categories.items()) sum += bytes.get<std::int64_t>();
  return sum;
}

/// Categories add up to what was allocated, and the highest phase is the peak.
void expect_phases_add_up(const nlohmann::json& rank) {
  std::int64_t highest = 0, highest_reserved = 0;
  std::set<std::string> names;
  for (const nlohmann::json& phase : rank.at("phases")) {
    EXPECT_EQ(sum_of(phase.at("at_peak")), phase.at("peak_bytes").get<std::int64_t>()) << phase;
    highest = std::max(highest, phase.at("peak_bytes").get<std::int64_t>());
    highest_reserved =
        std::max(highest_reserved, phase.at("peak_reserved_bytes").get<std::int64_t>());
    names.insert(phase.at("phase").get<std::string>());
  }
  EXPECT_EQ(highest, rank.at("peak_bytes").get<std::int64_t>());
  EXPECT_EQ(highest_reserved, rank.at("peak_reserved_bytes").get<std::int64_t>());
  EXPECT_EQ(sum_of(rank.at("at_peak")), highest);
  for (const char* phase : {"init", "forward", "backward", "optimizer"})
    EXPECT_TRUE(names.contains(phase)) << phase;
}

class MemoryModes : public testing::TestWithParam<Case> {};

TEST_P(MemoryModes, ShapeOnlyEqualsMaterialisedToTheByte) {
  const nlohmann::json data = memory_in_child(GetParam(), false),
                       shapes = memory_in_child(GetParam(), true);
  ASSERT_EQ(data.at("ranks").size(), static_cast<std::size_t>(GetParam().layout.world_size()));
  ASSERT_EQ(shapes.at("ranks").size(), data.at("ranks").size());
  for (std::size_t rank = 0; rank < data.at("ranks").size(); ++rank) {
    const nlohmann::json &one = data.at("ranks").at(rank), &other = shapes.at("ranks").at(rank);
    EXPECT_GT(one.at("peak_bytes"), 0);
    EXPECT_GE(one.at("peak_reserved_bytes"), one.at("peak_bytes"));
    EXPECT_EQ(one, other) << nlohmann::json::diff(one, other);
    expect_phases_add_up(one);
    expect_same_events(data.at("timelines").at(rank), shapes.at("timelines").at(rank));
  }
}

TEST(MemoryOfARun, ThatDoesNotFitIsAnErrorWithExitCode3) {
  try {
    memory_of({"does_not_fit", {1, 2, 1}, "fp32", 1, 32768}, true);
    FAIL() << "more than 16 GiB of weights per core must not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
    EXPECT_NE(std::string(error.what()).find("The largest live tensors"), std::string::npos)
        << error.what();
  }
}

TEST(UnlimitedMemory, ChangesNothingOfARunThatFits) {
  const Case one{"tp", {2, 1, 1, true, true}, "mixed_precision"};
  const nlohmann::json limited = memory_in_child(one, true),
                       unlimited = memory_in_child(one, true, true);
  EXPECT_EQ(limited.at("timelines"), unlimited.at("timelines"));
  for (std::size_t rank = 0; rank < limited.at("ranks").size(); ++rank) {
    nlohmann::json row = unlimited.at("ranks").at(rank);
    std::int64_t live = 0;
    for (const nlohmann::json& sort : row.at("live_at_peak"))
      live += sort.at("bytes").get<std::int64_t>();
    EXPECT_EQ(live, row.at("peak_bytes").get<std::int64_t>())
        << "what lived at the peak is the peak";
    EXPECT_EQ(row.at("num_ooms"), 0);
    EXPECT_FALSE(row.contains("first_refusal"));
    row.erase("live_at_peak");
    row.erase("num_ooms");
    EXPECT_EQ(row, limited.at("ranks").at(rank));
  }
}

TEST(UnlimitedMemory, ReportsWhatDoesNotFit) {
  const nlohmann::json report =
      memory_in_child({"does_not_fit", {1, 2, 1}, "fp32", 1, 32768}, true, true);
  const nlohmann::json& row = report.at("ranks").at(0);
  EXPECT_GT(row.at("peak_bytes").get<std::int64_t>(), row.at("capacity_bytes").get<std::int64_t>());
  EXPECT_GT(row.at("num_ooms").get<std::int64_t>(), 0);
  EXPECT_EQ(row.at("first_refusal").at("phase"), "init");
  EXPECT_LE(row.at("first_refusal").at("allocated_before").get<std::int64_t>(),
            row.at("capacity_bytes").get<std::int64_t>());
  EXPECT_GT(row.at("first_refusal").at("allocated_before").get<std::int64_t>() +
                row.at("first_refusal").at("bytes").get<std::int64_t>(),
            row.at("capacity_bytes").get<std::int64_t>());
  expect_phases_add_up(row);
}

/// Every parallelism and every setting of memory that the trainer has, at least once.
INSTANTIATE_TEST_SUITE_P(
    Twelve, MemoryModes,
    testing::Values(
        Case{"one_rank_fp64", {1, 1, 1, false, false}, "fp64"},
        Case{"large_mixed", {}, "mixed_precision", 4, 256, 128},
        Case{"tp", {2, 1, 1, false, false}},
        Case{"tp_sequence_parallel", {2, 1, 1, true, true}, "mixed_precision"},
        Case{"tp4_kv_copies", {4, 1, 1, true, true}, "mixed_precision", 1, 32, 16, kv_copies},
        Case{"pp_tied_embeddings", {1, 2, 1}, "fp32", 2, 32, 16, tied_embeddings},
        Case{"pp_virtual_stages", {1, 2, 1, false, true, 2}, "mixed_precision"},
        Case{"dp_zero1_bf16sr",
             {1, 1, 2, false, true},
             "bf16SR",
             2,
             64,
             32,
             bf16_stochastic_rounding},
        Case{"dp_replicated", {1, 1, 2, false, false}, "fp32", 4},
        Case{"tp_pp_dp", {2, 2, 2, true, true}, "mixed_precision"},
        Case{"selective_recompute_dropout",
             {2, 1, 1, true, true},
             "mixed_precision",
             2,
             32,
             32,
             selective_recompute_and_dropout},
        Case{"full_recompute_autocast",
             {2, 1, 2, true, true},
             "autocast",
             2,
             32,
             32,
             full_recompute_and_autocast}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trellis::trainer::memory_modes_test
