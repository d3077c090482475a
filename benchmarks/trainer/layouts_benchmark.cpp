// TP 2 × PP 2 × DP 2 on 8 CPU ranks, and the same global batches on one CPU rank as the baseline of
// the same run: tokens/s and host memory. Goals: tokens per CPU second at least 0.7 times those of
// one rank; peak memory at most 1.2 times what all ranks need.
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <nlohmann/json.hpp>

#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"

namespace trellis::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSequence = 256, kVocabulary = 2048, kGlobalBatch = 8;
constexpr std::int64_t kSteps =
    4;  ///< of a turn; the first makes optimizer state and is not counted
constexpr int kTurns = 3;

/// A layout of the one model, with ZeRO-1 and sequence parallelism where they can be.
struct Layout {
  int tp = 1, pp = 1, dp = 1;
  [[nodiscard]] int ranks() const { return tp * pp * dp; }
};
constexpr Layout kOne = {}, kEight = {2, 2, 2};

trainer::RunConfig llama(const Layout& layout) {
  trainer::RunConfig config;
  config.name = "layouts_benchmark";
  config.trainer.devices = layout.ranks();
  config.trainer.max_steps = kSteps;
  config.trainer.gradient_clip_val = 1.0;
  config.distributed_strategy.tensor_model_parallel_size = layout.tp;
  config.distributed_strategy.pipeline_model_parallel_size = layout.pp;
  config.distributed_strategy.sequence_parallel = layout.tp > 1;
  config.distributed_strategy.zero1 = true;
  config.data.global_batch_size = kGlobalBatch;
  config.precision.type = "fp32";
  trainer::ModelSection& model = config.model;
  model.num_layers = 4;
  model.hidden_size = 512;
  model.ffn_hidden_size = 1408;
  model.num_attention_heads = model.num_kv_heads = 8;
  model.encoder_seq_length = model.max_position_embeddings = kSequence;
  model.vocab_size = kVocabulary;
  return config;
}

/// Row r of a global batch is the same whatever the layout.
class RandomTokens final : public trainer::DataModule {
 public:
  explicit RandomTokens(int dp) : dp_(dp) {}
  [[nodiscard]] std::vector<trainer::MicroBatch> micro_batches(std::int64_t step,
                                                               int dp_rank) const override {
    std::vector<trainer::MicroBatch> batches;
    for (std::int64_t row = dp_rank; row < kGlobalBatch; row += dp_) {
      at::Generator generator =
          at::detail::createCPUGenerator(static_cast<std::uint64_t>(step * kGlobalBatch + row));
      const at::Tensor tokens =
          at::randint(0, kVocabulary, {1, kSequence + 1}, generator, at::kLong);
      batches.push_back({tokens.narrow(1, 0, kSequence).contiguous(),
                         tokens.narrow(1, 1, kSequence).contiguous()});
      batches.back().places = {row};
    }
    return batches;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return 1 << 20; }
  [[nodiscard]] std::string description() const override { return "random tokens"; }

 private:
  int dp_;
};

/// CPU seconds of the whole process: every thread counts.
double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The fastest step of some runs.
struct Speed {
  double cpu_s = 1e30, wall_s = 1e30;
  double last_loss = 0;
};

/// `threads`: of the one rank; several ranks have one thread each, as many at a time as the host
/// has cores.
void run_turn(const Layout& layout, int threads, Speed& best) {
  runtime::WorldOptions world;
  world.world_size = layout.ranks();
  const trainer::RunConfig config = llama(layout);
  const auto data = std::make_shared<RandomTokens>(layout.dp);
  double cpu = -1;
  Clock::time_point wall;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    if (layout.ranks() == 1) at::set_num_threads(threads);
    trainer::Trainer trainer(config, rank, data);
    trainer.fit([&](const trainer::StepResult& result) {  // every rank has ended the step
      const double cpu_now = process_seconds();
      const auto wall_now = Clock::now();
      if (cpu >= 0) {
        best.cpu_s = std::min(best.cpu_s, cpu_now - cpu);
        best.wall_s = std::min(best.wall_s, std::chrono::duration<double>(wall_now - wall).count());
      }
      cpu = cpu_now;
      wall = wall_now;
      best.last_loss = result.loss;
    });
  });
}

void tokens_per_second(benchmark::State& state) {
  const int cores = static_cast<int>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
  for (auto _ : state) {
    Speed eight, one, one_on_all_cores;
    for (int turn = 0; turn < kTurns; ++turn) {
      run_turn(kOne, 1, one);
      run_turn(kEight, 1, eight);
      run_turn(kOne, cores, one_on_all_cores);
    }
    if (std::abs(eight.last_loss - one.last_loss) > 1e-4)
      throw std::runtime_error("the layouts have trained different models");
    const double tokens = static_cast<double>(kGlobalBatch * kSequence);
    state.SetIterationTime(eight.wall_s);
    state.counters["tokens_per_s"] = tokens / eight.wall_s;
    state.counters["tokens_per_cpu_s"] = tokens / eight.cpu_s;
    state.counters["baseline_tokens_per_s"] = tokens / one_on_all_cores.wall_s;
    state.counters["baseline_tokens_per_cpu_s"] = tokens / one.cpu_s;
    state.counters["ratio"] = one.cpu_s / eight.cpu_s;
    state.counters["ratio_wall"] = one_on_all_cores.wall_s / eight.wall_s;
  }
}

/// Bytes of tensors on the CPU: now and at most.
std::atomic<std::int64_t> live{0}, peak{0};

/// LibTorch's own allocator, counted. The size is kept in front of the block.
class CountingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    char* const block = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    *reinterpret_cast<std::size_t*>(block) = bytes;
    const std::int64_t now = live += static_cast<std::int64_t>(bytes);
    for (std::int64_t seen = peak; seen < now && !peak.compare_exchange_weak(seen, now);) {}
    return {block + kHeader, block, &release, c10::Device(c10::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }  // the block is not where the data are
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::size_t kHeader = 64;  // alignment of the data
  static void release(void* block) {
    live -= static_cast<std::int64_t>(*static_cast<std::size_t*>(block));
    c10::free_cpu(block);
  }
};

std::int64_t resident_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// Bytes of a run: of its tensors, and by which the process grew.
struct Memory {
  std::int64_t tensors = 0, resident = 0;
};

/// In a separate process: what ends takes its memory with it.
Memory memory_of(const Layout& layout) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = fork();
  if (child == 0) {
    static CountingAllocator allocator;
    c10::SetCPUAllocator(&allocator, 1);
    const std::int64_t before = resident_peak();
    Speed speed;
    run_turn(layout, 1, speed);
    const Memory memory{peak, resident_peak() - before};
    _exit(write(ends[1], &memory, sizeof memory) == sizeof memory ? 0 : 1);
  }
  Memory memory;
  int status = 0;
  const bool got = read(ends[0], &memory, sizeof memory) == sizeof memory;
  waitpid(child, &status, 0);
  close(ends[0]);
  close(ends[1]);
  if (!got || status != 0) throw std::runtime_error("a run that measures memory failed");
  return memory;
}

/// Weights, gradients, states and activations at each rank's peak, summed over the ranks: the plan
/// of the emulated device in shape-only mode.
std::int64_t planned_bytes(const Layout& layout) {
  const auto& plugin = runtime::DevicePlugin::load(TRELLIS_BUILD_DIR "/lib/libtrellis_neuron.so");
  const nlohmann::json options = {{"schema", "trellis.device_options/1"},
                                  {"instance", "trn1.32xlarge"},
                                  {"world_size", layout.ranks()},
                                  {"shape_only", true}};
  plugin.check(plugin.api().configure(options.dump().c_str()));
  runtime::WorldOptions world;
  world.world_size = layout.ranks();
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = true;
  const trainer::RunConfig config = llama(layout);
  const auto data = trainer::make_empty_data_module(config);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    trainer::Trainer(config, rank, data).fit([](const trainer::StepResult&) {});
  });
  const char* report = nullptr;
  plugin.check(plugin.api().memory_report(&report));
  std::int64_t bytes = 0;
  const nlohmann::json document = nlohmann::json::parse(report);  // outlives the loop
  for (const auto& rank : document.at("ranks")) bytes += rank.at("peak_bytes").get<std::int64_t>();
  return bytes;
}

void host_memory(benchmark::State& state) {
  for (auto _ : state) {
    const Memory one = memory_of(kOne),
                 eight = memory_of(kEight);  // before this process has threads
    const std::int64_t planned = planned_bytes(kEight);
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    state.counters["tensors_MiB"] = mib(eight.tensors);
    state.counters["resident_MiB"] = mib(eight.resident);
    state.counters["planned_MiB"] = mib(planned);
    state.counters["baseline_tensors_MiB"] = mib(one.tensors);
    state.counters["baseline_resident_MiB"] = mib(one.resident);
    state.counters["ratio_planned"] = mib(eight.resident) / mib(planned);
    state.counters["ratio_tensors"] = mib(eight.tensors) / mib(one.tensors);
    state.counters["ratio_resident"] = mib(eight.resident) / mib(one.resident);
  }
}

BENCHMARK(host_memory)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(tokens_per_second)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
