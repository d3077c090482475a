#include "analysis/schedule/schedule_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "traces/report/step_view.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/parameter_count.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using trainer::LayerCosts;
using trainer::LayerRange;
using trainer::PassCost;
using trainer::PipelineShape;
using trainer::RunConfig;

PipelineShape shape_of(const RunConfig& config) {
  return {config.num_microbatches(), config.pp(), config.vpp()};
}

std::vector<LayerRange> layers_of(const RunConfig& config) {
  std::vector<LayerRange> ranges;
  for (const auto& [first, end] : trainer::layers_of_stages(config)) ranges.push_back({first, end});
  return ranges;
}

/// Forward and backward as the ratio splits their sum.
PassCost split(std::int64_t both, double backward_ratio) {
  const auto forward =
      static_cast<std::int64_t>(std::llround(static_cast<double>(both) / (1 + backward_ratio)));
  return {forward, both - forward};
}

/// Model FLOPs of one micro-batch, forward and backward, in millions; a look-up in the embedding
/// costs none.
LayerCosts flops_per_layer(const RunConfig& config) {
  const trainer::ModelSection& model = config.model;
  const trainer::ParameterCounts counts = trainer::count_parameters(model);
  const double tokens =
      static_cast<double>(config.data.micro_batch_size) * model.encoder_seq_length;
  const double of_step =
      static_cast<double>(config.data.global_batch_size) / config.data.micro_batch_size;
  std::vector<double> products;
  double sum = static_cast<double>(counts.final_norm + counts.head);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    products.push_back(
        static_cast<double>(counts.layer(model, layer) -
                            (trainer::is_moe_layer(model, layer) ? counts.idle_experts : 0)));
    sum += products.back();
  }
  const double attention =
      (config.model_flops_per_step() / of_step - 6 * sum * tokens) / model.num_layers;
  LayerCosts costs;
  for (const double parameters : products)
    costs.layers.push_back(std::llround((6 * parameters * tokens + attention) * 1e-6));
  costs.head =
      std::llround(6 * static_cast<double>(counts.final_norm + counts.head) * tokens * 1e-6);
  return costs;
}

std::int64_t sum_of(const json& row, std::initializer_list<const char*> keys) {
  std::int64_t sum = 0;
  for (const char* key : keys) sum += row.at(key).get<std::int64_t>();
  return sum;
}

/// Time of a rank's passes in the step: all but what waits for other stages and replicas, and the
/// optimizer.
std::int64_t time_of_passes(const json& row) {
  return row.at("total_ps").get<std::int64_t>() -
         sum_of(row, {"bubble_ps", "exposed_pp_ps", "exposed_dp_ps", "optimizer_ps"});
}

/// Per pipeline rank and micro-batch, the slowest of its ranks.
std::vector<std::int64_t> times_of_pipeline_ranks(const ReportFile& run, const RunConfig& config) {
  const json& report = run.report;
  const auto per_stage =
      std::max<std::int64_t>(1, report.at("world_size").get<std::int64_t>() / config.pp());
  std::vector<std::int64_t> times(static_cast<std::size_t>(config.pp()), 0);
  for (const json& row : report.at("simulated").at("breakdown")) {
    const auto stage = static_cast<std::size_t>(
        std::min<std::int64_t>(row.at("rank").get<std::int64_t>() / per_stage, config.pp() - 1));
    times[stage] = std::max(times[stage], time_of_passes(row) / config.num_microbatches());
  }
  const auto missing = std::find(times.begin(), times.end(), 0);
  if (missing != times.end()) {
    throw ConfigError(fmt::format(
        "{}: simulated.breakdown: no rank of pipeline stage {}: expected one of ranks {} to {}",
        run.path.string(), missing - times.begin(), (missing - times.begin()) * per_stage,
        (missing - times.begin() + 1) * per_stage - 1));
  }
  return times;
}

/// Backward to forward, from the time of the programs of these phases.
double ratio_of_programs(const ReportFile& run) {
  double forward = 0, backward = 0;
  for (const json& program : run.report.at("simulated").at("programs")) {
    const double time =
        program.at("device_time_us").get<double>() * program.at("launches").get<double>();
    forward += program.at("name") == "forward" ? time : 0;
    backward += program.at("name") == "backward" ? time : 0;
  }
  if (forward <= 0 || backward <= 0)
    throw ConfigError(run.path.string() +
                      ": simulated.programs: expected programs `forward` and `backward`, which "
                      "split a stage's time");
  return backward / forward;
}

/// Times of the parts of the model such that the stages of the run take what they took: layers by
/// their FLOPs, at the rate of the middle stages where there are some, else of the first stage;
/// what the outer stages take beyond that is the embedding's and the head's.
LayerCosts times_of_layers(const std::vector<std::int64_t>& stages,
                           const std::vector<LayerRange>& ranges, const LayerCosts& flops) {
  LayerCosts bare = flops;
  bare.embedding = bare.head = 0;
  const std::vector<std::int64_t> work = stage_costs(bare, ranges);
  const std::size_t count = stages.size();
  const bool has_middle = count > 2;
  const std::size_t from = has_middle ? 1 : 0, to = has_middle ? count - 1 : 1;
  double time = 0, weight = 0;
  for (std::size_t i = from; i < to; ++i) {
    time += static_cast<double>(stages[i]);
    weight += static_cast<double>(work[i]) + (count == 1 ? static_cast<double>(flops.head) : 0);
  }
  const double rate = time / weight;
  LayerCosts times;
  for (const std::int64_t layer : flops.layers)
    times.layers.push_back(std::llround(static_cast<double>(layer) * rate));
  const auto beyond = [&](std::size_t stage) {
    return std::max<std::int64_t>(
        0, stages[stage] - std::llround(static_cast<double>(work[stage]) * rate));
  };
  times.embedding = has_middle ? beyond(0) : 0;
  times.head = beyond(count - 1);
  return times;
}

/// Each rank's time over its chunks, as their FLOPs are.
std::vector<std::int64_t> over_chunks(const std::vector<std::int64_t>& ranks,
                                      const PipelineShape& shape,
                                      const std::vector<std::int64_t>& work) {
  std::vector<std::int64_t> times(work.size());
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::int64_t sum = 0;
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk)
      sum += work[static_cast<std::size_t>(shape.stage(rank, chunk))];
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      const auto stage = static_cast<std::size_t>(shape.stage(rank, chunk));
      times[stage] = std::llround(static_cast<double>(ranks[static_cast<std::size_t>(rank)]) *
                                  static_cast<double>(work[stage]) / static_cast<double>(sum));
    }
  }
  return times;
}

/// Each pass is drawn and timed one by one.
void check_passes(const PipelineShape& shape) {
  constexpr double kMost = 4'000'000;
  const double passes = 1.0 * shape.num_ranks * shape.num_chunks * shape.num_microbatches;
  if (passes <= kMost) return;
  throw ConfigError(
      fmt::format("a schedule of PP {} × VPP {} × {} micro-batches has {:.3g} passes; expected at "
                  "most {:.0f}: lower one of --pp, --vpp and --micro-batches (or the "
                  "configuration's pipeline_model_parallel_size, "
                  "virtual_pipeline_model_parallel_size and global_batch_size)",
                  shape.num_ranks, shape.num_chunks, shape.num_microbatches, passes, kMost));
}

void set_costs(SchedulePlan& plan, const std::vector<std::int64_t>& stages) {
  plan.costs.clear();
  for (const std::int64_t both : stages) plan.costs.push_back(split(both, plan.backward_ratio));
}

}  // namespace

SchedulePlan equal_stages(const PipelineShape& shape, double backward_ratio) {
  SchedulePlan plan;
  check_passes(shape);
  plan.shape = shape;
  plan.costs_from = "equal stages";
  plan.backward_ratio = backward_ratio;
  const std::int64_t forward = 1'000'000 / shape.num_chunks;
  plan.costs.assign(static_cast<std::size_t>(shape.num_stages()),
                    {forward, std::llround(static_cast<double>(forward) * backward_ratio)});
  return plan;
}

SchedulePlan stages_by_flops(const RunConfig& config, std::optional<double> backward_ratio) {
  SchedulePlan plan;
  plan.shape = shape_of(config);
  check_passes(plan.shape);
  plan.costs_from = "FLOPs of the model's layers and head";
  // Recomputing everything runs each forward again inside its backward.
  plan.backward_ratio =
      backward_ratio.value_or(config.model.recompute == trainer::Recompute::kFull ? 3 : 2);
  plan.layers = layers_of(config);
  plan.layer_costs = flops_per_layer(config);
  plan.layer_prefix =
      config.model.architecture == "gpt" ? "language_model.encoder.layers" : "model.layers";
  set_costs(plan, stage_costs(*plan.layer_costs, plan.layers));
  return plan;
}

SchedulePlan stages_by_report(const RunConfig& config, const ReportFile& run,
                              const RunConfig& config_of_run) {
  const json& step = simulated_step(run.report, run.path.string());
  if (config.num_parameters() != config_of_run.num_parameters() ||
      config.model.num_layers != config_of_run.model.num_layers) {
    throw ConfigError(fmt::format(
        "{}: a run of another model: expected {} layers and {} parameters, got {} and {}",
        run.path.string(), config.model.num_layers, config.num_parameters(),
        config_of_run.model.num_layers, config_of_run.num_parameters()));
  }
  SchedulePlan plan = stages_by_flops(config, std::nullopt);
  plan.costs_from = "times of " + run.path.string();
  plan.in_time = true;
  plan.validity = run.report.value("validity", json(nullptr));
  plan.backward_ratio = ratio_of_programs(run);
  const LayerCosts flops = *plan.layer_costs;
  const std::vector<LayerRange> ranges = layers_of(config_of_run);
  const std::vector<std::int64_t> stages =
      over_chunks(times_of_pipeline_ranks(run, config_of_run), shape_of(config_of_run),
                  stage_costs(flops, ranges));
  plan.layer_costs = times_of_layers(stages, ranges, flops);
  const bool same = config.pp() == config_of_run.pp() && config.vpp() == config_of_run.vpp() &&
                    plan.layers == ranges;
  set_costs(plan, same ? stages : stage_costs(*plan.layer_costs, plan.layers));
  if (same && config.num_microbatches() == config_of_run.num_microbatches()) {
    plan.measured_step_ps = step.at("step_time_ps").get<std::int64_t>();
    const json& row = step.at("breakdown").at(0);
    plan.outside_passes_ps = sum_of(row, {"exposed_dp_ps", "optimizer_ps"});
  }
  return plan;
}

SchedulePlan with_layers(const SchedulePlan& plan, const std::vector<LayerRange>& layers) {
  SchedulePlan other = plan;
  other.layers = layers;
  set_costs(other, stage_costs(plan.layer_costs.value(), layers));
  return other;
}

}  // namespace trellis::analysis
