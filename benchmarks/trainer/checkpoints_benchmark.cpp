#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <benchmark/benchmark.h>

#include "benchmarks/support/child_run.h"
#include "runtime/ranks/world.h"
#include "trainer/checkpoint/engine/loader.h"
#include "trainer/checkpoint/engine/saver.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

/// How fast checkpoints are written and read, next to `dd` on the same disk in the same rounds.
/// Bars: save and load ≥ 80 % of dd's rate (fsync; cold read), reshard ≥ 50 % of a copy's,
/// 50,000 small tensors ≤ 2 s.
namespace trellis::benchmarks {
namespace {

namespace fs = std::filesystem;
using namespace trellis::checkpoint;

constexpr int kRanks = 8;
constexpr const char* kTag = "step=1.ckpt";

/// On the disk of the build folder: /tmp may be memory.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(fs::path(TRELLIS_BUILD_DIR) / name) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A rank's weights: its part of `count` tensors of [kRanks * rows, columns].
std::vector<LiveTensor> weights_of(int rank, std::int64_t count, std::int64_t rows,
                                   std::int64_t columns) {
  std::vector<LiveTensor> weights;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".weight";
    weights.push_back({name, i, "", at::full({rows, columns}, rank + 1.0), {}});
    weights.back().parts.push_back(
        {ShardedTensor::from_rank_offsets(name, DType::kFloat32, {rows, columns},
                                          {{0, rank, kRanks}}, {0}),
         {{0, 0}, {rows, columns}}});
  }
  return weights;
}

std::vector<std::vector<LiveTensor>> all_weights(std::int64_t count, std::int64_t rows,
                                                 std::int64_t columns) {
  std::vector<std::vector<LiveTensor>> all;
  for (int rank = 0; rank < kRanks; ++rank) all.push_back(weights_of(rank, count, rows, columns));
  return all;
}

void run(const std::function<void(runtime::RankContext&)>& body) {
  runtime::WorldOptions world;
  world.world_size = kRanks;
  runtime::run_ranks(world, body);
}

void save(const fs::path& folder, const std::vector<std::vector<LiveTensor>>& weights, bool xser) {
  native::Saver saver(open_storage(folder.string()), kRanks, {});
  run([&](runtime::RankContext& rank) {
    RankPlace place;
    place.tp_rank = rank.rank();
    place.tp_size = kRanks;
    LiveState live{weights[static_cast<std::size_t>(rank.rank())], {}};
    const std::vector<int> self{rank.rank()};
    saver.save(rank, native::model_jobs(live, {place, 0, 1, self, self}, {xser}), {}, [] {
      native::SaveHead head;
      head.tag = kTag;
      head.user_content = Value::dict();
      head.failed = [](const std::string& reason) { throw std::runtime_error(reason); };
      return head;
    });
  });
}

void load(const fs::path& folder, const std::vector<std::vector<LiveTensor>>& weights) {
  native::Loader loader(open_storage(folder.string()), kTag, kRanks);
  run([&](runtime::RankContext& rank) {
    loader.load(rank, weights[static_cast<std::size_t>(rank.rank())]);
  });
}

/// The next reads come from the disk.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

std::int64_t bytes_of(const fs::path& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return bytes;
}

double dd(const std::string& from, const std::string& into, std::int64_t mib, bool sync) {
  std::vector<std::string> command{"/usr/bin/dd", "if=" + from, "of=" + into, "bs=1M",
                                   "count=" + std::to_string(mib)};
  if (sync) command.emplace_back("conv=fsync");
  return run_child(command).wall_s;
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Rates of the disk vary: sums over the rounds are compared.
void compare(benchmark::State& state, std::int64_t bytes, double ours, double baseline) {
  state.SetIterationTime(ours);
  state.counters["MB_per_s"] = static_cast<double>(bytes) / ours * 1e-6;
  state.counters["dd_MB_per_s"] = static_cast<double>(bytes) / baseline * 1e-6;
  state.counters["of_dd"] = baseline / ours;
}

constexpr int kRounds = 4;
constexpr std::int64_t kMib = 1024;

void save_rate(benchmark::State& state) {
  const Folder folder("checkpoint_save");
  const auto weights = all_weights(32, 1024, 1024);
  for (auto _ : state) {
    double ours = 0, baseline = 0;
    for (int round = 0; round < kRounds; ++round) {
      baseline += dd("/dev/zero", folder.path() / "dd", kMib, true);
      fs::remove(folder.path() / "dd");
      ours += seconds_of([&] { save(folder.path(), weights, false); });
      fs::remove_all(folder.path() / kTag);
    }
    compare(state, kRounds * (kMib << 20), ours, baseline);
  }
}

void load_rate(benchmark::State& state) {
  const Folder folder("checkpoint_load");
  const auto weights = all_weights(32, 1024, 1024);
  dd("/dev/zero", folder.path() / "dd", kMib, true);
  save(folder.path(), weights, false);
  for (auto _ : state) {
    double ours = 0, baseline = 0;
    for (int round = 0; round < kRounds; ++round) {
      forget(folder.path());
      baseline += dd(folder.path() / "dd", "/dev/null", kMib, false);
      ours += seconds_of([&] { load(folder.path(), weights); });
    }
    compare(state, kRounds * (kMib << 20), ours, baseline);
  }
}

/// A checkpoint of training with AdamW's states, for one rank, resharded to TP 4 from the shell.
void reshard_rate(benchmark::State& state) {
  const Folder folder("checkpoint_reshard");
  const std::string trellis = TRELLIS_BUILD_DIR "/bin/trellis", run_folder = folder.path() / "run";
  run_child({trellis, "train", TRELLIS_SOURCE_DIR "/examples/quickstart.yaml", "--device", "cpu",
             "trainer.devices=1", "trainer.max_steps=1", "model.num_layers=4",
             "model.hidden_size=1024", "model.ffn_hidden_size=4096", "model.num_kv_heads=4",
             "model.encoder_seq_length=16", "data.global_batch_size=1", "data.micro_batch_size=1",
             "distributed_strategy.tensor_model_parallel_size=1",
             "distributed_strategy.pipeline_model_parallel_size=1",
             "exp_manager.create_checkpoint_callback=true",
             "exp_manager.explicit_log_dir=" + run_folder});
  fs::path saved;
  for (const auto& entry : fs::directory_iterator(folder.path() / "run/checkpoints"))
    saved = entry.path();
  const std::int64_t bytes = bytes_of(saved), mib = bytes >> 20;
  dd("/dev/zero", folder.path() / "dd", mib, true);
  for (auto _ : state) {
    double ours = 0, baseline = 0;
    for (int round = 0; round < kRounds; ++round) {
      forget(folder.path());
      baseline += dd(folder.path() / "dd", folder.path() / "copy", mib, true);
      fs::remove(folder.path() / "copy");
      ours += run_child({trellis, "checkpoint", "reshard", saved.string(), "trainer.devices=4",
                         "distributed_strategy.tensor_model_parallel_size=4", "--out",
                         (folder.path() / "out.ckpt").string()})
                  .wall_s;
      fs::remove_all(folder.path() / "out.ckpt");
    }
    compare(state, kRounds * bytes, ours, baseline);
  }
}

void small_tensors(benchmark::State& state, bool xser) {
  const Folder folder("checkpoint_small");
  constexpr std::int64_t kCount = 50'000 / kRanks;
  const auto weights = all_weights(kCount, 1, 16);
  for (auto _ : state) {
    const double saving = seconds_of([&] { save(folder.path(), weights, xser); });
    const double loading = seconds_of([&] { load(folder.path(), weights); });
    state.SetIterationTime(saving);
    state.counters["save_s"] = saving;
    state.counters["load_s"] = loading;
    fs::remove_all(folder.path() / kTag);
  }
}

BENCHMARK(save_rate)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(load_rate)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(reshard_rate)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(small_tensors, in_files_of_ranks, false)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(small_tensors, a_file_each, true)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
