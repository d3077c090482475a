#include "analysis/sweep/bounds.h"

#include <algorithm>
#include <numeric>

#include "trainer/config/schedule/scheduler.h"

namespace trellis::analysis {
namespace {

using sim::CollectiveKind;
using trainer::RunConfig;

constexpr double kTensorFlopsPerCycle = 2.0 * 128 * 128;

/// Highest rates of one logical core, which is what SystemConfig calls a core.
struct Peaks {
  double flops, hbm, sbuf_bytes;

  explicit Peaks(const sim::SystemConfig& system) {
    const sim::CoreConfig& core = system.chip.core;
    flops = std::max(core.tensor.clock.value * kTensorFlopsPerCycle,
                     system.peak_per_logical_core().value);
    const double stacks = std::max(1.0, static_cast<double>(system.instance.logical_core_size) /
                                            system.chip.cores_per_hbm_stack);
    hbm = std::min(stacks * system.hbm_stack_bandwidth().value,
                   core.dma.engines * core.dma.engine_rate.value);
    sbuf_bytes = static_cast<double>(core.sbuf.value);
  }
};

/// Seconds of one micro-batch on one virtual stage, and of them what each resource takes alone.
struct StageTime {
  double forward = 0, backward = 0;
  double compute = 0, hbm = 0, sums = 0;
  [[nodiscard]] double total() const { return forward + backward; }
};

/// One sum of the hidden state over TP: an all-reduce, or with sequence parallelism a
/// reduce-scatter here and an all-gather there.
double sum_over_tp(const RunConfig& config, CollectiveTimes& times) {
  if (config.tp() == 1) return 0;
  const std::int64_t bytes = hidden_bytes(config);
  if (!config.distributed_strategy.sequence_parallel)
    return times.seconds(CollectiveKind::kAllReduce, config.tp(), 1, bytes);
  return times.seconds(CollectiveKind::kReduceScatter, config.tp(), 1, bytes) +
         times.seconds(CollectiveKind::kAllGather, config.tp(), 1, bytes);
}

StageTime time_stage(const StageWork& work, const Peaks& peaks, double sum) {
  const double weights =
      std::max(0.0, static_cast<double>(work.weight_bytes) - peaks.sbuf_bytes) / peaks.hbm;
  StageTime time;
  time.forward = std::max(work.forward_flops / peaks.flops, weights) + work.sums_forward * sum;
  time.backward = std::max({work.backward_flops / peaks.flops, weights,
                            work.backward_chain_flops / peaks.flops + work.sums_backward * sum});
  time.compute = (work.forward_flops + work.backward_flops) / peaks.flops;
  time.hbm = 2 * weights;
  time.sums = time.total() - std::max(time.compute, time.hbm);
  return time;
}

bool is_adamw(const RunConfig& config) {
  return config.model.optim.name == "adamw" || config.model.optim.name == "adamw_fp32OptState";
}

/// Bytes that the optimizer keeps for one parameter that it owns.
double state_bytes(const RunConfig& config) {
  if (!is_adamw(config)) return 0;
  const int own = weight_element_bytes(config);
  const bool masters =
      own == 2 && config.distributed_strategy.zero1 && config.precision.master_weights;
  return masters ? 12 : 2 * own;
}

/// States read and written, gradients read, weights written.
double update_bytes(const RunConfig& config) {
  return 2 * state_bytes(config) + gradient_element_bytes(config) + weight_element_bytes(config);
}

struct RankWork {
  double busy = 0;  ///< of one micro-batch on all chunks, seconds
  double compute = 0, hbm = 0, sums = 0;
  std::int64_t parameters = 0, trained = 0;  ///< of its stages, whole
  std::int64_t exchanged = 0;  ///< over DP × CP for sure: with EP experts have fewer copies
};

std::vector<RankWork> by_rank(const RunConfig& config, const std::vector<StageWork>& stages,
                              const std::vector<StageTime>& times) {
  std::vector<RankWork> ranks(static_cast<std::size_t>(config.pp()));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    RankWork& rank = ranks[i % ranks.size()];
    rank.parameters += stages[i].parameters;
    rank.trained += stages[i].trained_parameters;
    rank.exchanged +=
        stages[i].trained_parameters - (config.ep() > 1 ? stages[i].expert_parameters : 0);
    if (times.empty()) continue;
    rank.busy += times[i].total();
    rank.compute += times[i].compute;
    rank.hbm += times[i].hbm;
    rank.sums += times[i].sums;
  }
  return ranks;
}

struct DataParallelTimes {
  double gradients = 0, weights = 0;
};

/// Over which ZeRO-1's states, and fully sharded weights, are shared out.
int sharding_ranks(const RunConfig& config) {
  return config.dp() * config.cp() / config.distributed_strategy.data_parallel_replicate_size;
}

DataParallelTimes data_parallel_times(const RunConfig& config, std::int64_t exchanged,
                                      CollectiveTimes& times) {
  const int members = sharding_ranks(config), stride = config.tp();
  if (members == 1 || exchanged == 0) return {};
  const auto parameters = static_cast<double>(exchanged);
  // Gradients travel in the type of the weights at least.
  const double bytes = parameters * weight_element_bytes(config);
  // Each micro-batch reduces them. Its gathers, and the sum over copies, may have other links, in a
  // bound.
  if (config.distributed_strategy.fsdp)
    return {config.num_microbatches() * bytes *
                times.busy_seconds_per_byte(CollectiveKind::kReduceScatter, members, stride),
            0};
  if (!config.distributed_strategy.zero1)
    return {bytes * times.busy_seconds_per_byte(CollectiveKind::kAllReduce, members, stride), 0};
  return {bytes * times.busy_seconds_per_byte(CollectiveKind::kReduceScatter, members, stride),
          bytes * times.busy_seconds_per_byte(CollectiveKind::kAllGather, members, stride)};
}

double update_seconds(const RunConfig& config, std::int64_t trained,
                      const DataParallelTimes& exchange, const Peaks& peaks) {
  if (!config.trainer.gradient_clip_val) return 0;
  const double owners = config.distributed_strategy.zero1 ? sharding_ranks(config) : 1;
  return std::max(static_cast<double>(trained) / owners * update_bytes(config) / peaks.hbm,
                  exchange.weights);
}

std::string largest_part(const StepBound& bound, const RankWork& rank, std::int64_t micro_batches) {
  const double m = static_cast<double>(micro_batches);
  const std::vector<std::pair<double, std::string>> parts = {
      {m * std::max(0.0, rank.busy - rank.sums), rank.compute >= rank.hbm ? "compute" : "HBM"},
      {m * rank.sums, "TP comm"},
      {bound.bubble_s, "bubble"},
      {bound.optimizer_s, "optimizer"},
      {bound.gradients_s > bound.pipeline_s + bound.optimizer_s ? bound.gradients_s : 0,
       "DP comm"}};
  return std::max_element(parts.begin(), parts.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

}  // namespace

const sim::CollectiveTiming& CollectiveTimes::timing(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const auto& [kind, members, stride, size] = key;
  sim::CollectiveRequest request;
  request.kind = kind;
  for (int i = 0; i < members; ++i) request.cores.push_back(i * stride);
  request.size = Bytes(size);
  return known_.emplace(key, sim::time_collective(system_, request)).first->second;
}

double CollectiveTimes::seconds(CollectiveKind kind, int members, int stride, std::int64_t size) {
  if (members == 1 || size == 0) return 0;
  return static_cast<double>(timing({kind, members, stride, size}).time.value) * 1e-12;
}

double CollectiveTimes::busy_seconds_per_byte(CollectiveKind kind, int members, int stride) {
  double least = 0;
  for (const std::int64_t size :
       {std::int64_t{4} << 20, std::int64_t{32} << 20, std::int64_t{256} << 20}) {
    const std::int64_t bytes = size / members * members;
    const sim::CollectiveTiming& t = timing({kind, members, stride, bytes});
    const double each =
        static_cast<double>(t.time.value) * 1e-12 * t.bound_share / static_cast<double>(bytes);
    least = least == 0 ? each : std::min(least, each);
  }
  return least;
}

StepBound bound_step(const RunConfig& config, const sim::SystemConfig& system,
                     CollectiveTimes& times) {
  const Peaks peaks(system);
  const std::vector<StageWork> stages = stage_work(config);
  const double sum = sum_over_tp(config, times);
  std::vector<StageTime> each;
  for (const StageWork& work : stages) each.push_back(time_stage(work, peaks, sum));
  const std::vector<RankWork> ranks = by_rank(config, stages, each);
  const double m = config.num_microbatches();
  StepBound bound;
  double lead = 0;
  std::size_t slowest = 0;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    const DataParallelTimes exchange = data_parallel_times(config, ranks[p].exchanged, times);
    bound.gradients_s = std::max(bound.gradients_s, exchange.gradients);
    bound.optimizer_s =
        std::max(bound.optimizer_s, update_seconds(config, ranks[p].trained, exchange, peaks));
    if (const double path = lead + m * ranks[p].busy; path > bound.pipeline_s) {
      bound.pipeline_s = path;
      bound.bubble_s = lead;
      slowest = p;
    }
    lead += each[p].total();
  }
  bound.step_ps = static_cast<std::int64_t>(
      std::max(bound.pipeline_s + bound.optimizer_s, bound.gradients_s) * 1e12);
  bound.largest = largest_part(bound, ranks[slowest], config.num_microbatches());
  return bound;
}

std::int64_t activation_bytes(const RunConfig& config, const std::vector<StageWork>& stages,
                              int rank) {
  // Later micro-batches repeat what three groups of PP do.
  const int micro_batches = std::min(config.num_microbatches(), 3 * config.pp());
  const trainer::PipelineShape shape{micro_batches, config.pp(), config.vpp()};
  std::int64_t kept = 0, most = 0;
  for (const trainer::Task& task : trainer::training_tasks(shape, rank)) {
    const StageWork& stage = stages[static_cast<std::size_t>(shape.stage(rank, task.chunk))];
    if (task.kind == trainer::TaskKind::kForwardStep) {
      kept += stage.saved_bytes;
      most = std::max(most, kept + stage.forward_bytes);
    } else if (task.kind == trainer::TaskKind::kBackwardStep) {
      most = std::max(most, kept + stage.backward_bytes);
      kept -= stage.saved_bytes;
    }
  }
  return most;
}

std::int64_t bound_memory(const RunConfig& config) {
  const std::vector<StageWork> stages = stage_work(config);
  const std::vector<RankWork> ranks = by_rank(config, stages, {});
  const double owners = config.distributed_strategy.zero1 ? sharding_ranks(config) : 1;
  // Units that are whole while they run come on top.
  const auto holders = static_cast<std::int64_t>(config.distributed_strategy.fsdp ? owners : 1);
  std::int64_t most = 0;
  for (int p = 0; p < config.pp(); ++p) {
    const RankWork& rank = ranks[static_cast<std::size_t>(p)];
    const auto states =
        static_cast<std::int64_t>(static_cast<double>(rank.trained) / owners * state_bytes(config));
    const std::int64_t kept = rank.parameters / holders * weight_element_bytes(config) +
                              rank.trained / holders * gradient_element_bytes(config) + states;
    const std::int64_t written =
        owners == 1 ? rank.trained * weight_element_bytes(config) : std::int64_t{0};
    most = std::max(most, kept + std::max(activation_bytes(config, stages, p), written));
  }
  return most;
}

}  // namespace trellis::analysis
