#include "device/driver/session.h"

#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/reports/memory_report.h"
#include "device/driver/reports/portability.h"
#include "device/driver/reports/rank_divergence.h"
#include "device/driver/reports/step_report.h"
#include "device/driver/reports/step_trace.h"
#include "device/driver/session_impl.h"
#include "device/driver/timing/cluster_job.h"
#include "device/driver/timing/rank_clock.h"
#include "sim/config/load_system.h"

namespace trellis::device {

sim::SystemConfig load_system(const SessionOptions& options) {
  sim::LoadOptions load;
  load.nodes = options.nodes;
  if (options.logical_core_size != 0) load.logical_core_size = options.logical_core_size;
  load.overrides = options.hardware;
  load.calibrated = options.calibrated;
  load.software = options.software;
  sim::SystemConfig system = sim::load_system(options.instance, load);
  system.slow = sim::read_slow_parts(options.slow, system, options.world_size);
  return system;
}

namespace {

/// Slow parts are checked against the ranks of each session.
bool same_machine(const SessionOptions& a, const SessionOptions& b) {
  return a.instance == b.instance && a.nodes == b.nodes &&
         a.logical_core_size == b.logical_core_size && a.hardware == b.hardware &&
         a.calibrated == b.calibrated && a.software == b.software && a.slow.empty() &&
         b.slow.empty();
}

}  // namespace

Session::Session(const SessionOptions& options, const Session* before)
    : options_(options),
      impl_(std::make_unique<Impl>(before != nullptr && same_machine(options, before->options_)
                                       ? before->impl_->machine
                                       : std::make_shared<TimedMachine>(load_system(options)))) {
  const sim::SystemConfig& system = this->system();
  if (options.world_size < 1 || options.world_size > system.logical_cores()) {
    throw ConfigError(
        fmt::format("{} ranks do not fit {} × {} with {} logical NeuronCores: {}choose a larger "
                    "--instance",
                    options.world_size, options.nodes, options.instance, system.logical_cores(),
                    system.instance.has_efa ? "raise --nodes or " : ""));
  }
  if (!options.fold.empty() && options.fold.world_size() != options.world_size) {
    throw ConfigError(fmt::format("equal ranks: a mesh of {} ranks, but a world of {}",
                                  options.fold.world_size(), options.world_size));
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const int world_rank = options.fold.empty()
                               ? rank
                               : options.fold.representatives()[static_cast<std::size_t>(rank)];
    impl_->ranks.push_back(std::make_unique<RankRecorder>(
        rank, world_rank, system.hbm_per_logical_core(), options.record, options.unlimited_memory));
    impl_->ranks.back()->clock().use(impl_->timer);
    if (options.replay && options.record) impl_->ranks.back()->log_passes();
  }
}

Session::~Session() = default;

const sim::SystemConfig& Session::system() const { return impl_->machine->system; }

int Session::ranks() const {
  return options_.fold.empty() ? options_.world_size
                               : static_cast<int>(options_.fold.representatives().size());
}

int Session::index_of(int world_rank) const {
  if (options_.fold.empty() || world_rank < 0) return world_rank;
  TRELLIS_CHECK(world_rank < options_.world_size,
                fmt::format("rank {} of {}", world_rank, options_.world_size));
  const int index = options_.fold.seat(world_rank);
  if (impl_->ranks[static_cast<std::size_t>(index)]->world_rank() != world_rank) {
    throw Error(ExitCode::kInternal,
                fmt::format("rank {} does not run: rank {} represents it", world_rank,
                            impl_->ranks[static_cast<std::size_t>(index)]->world_rank()));
  }
  return index;
}

RankRecorder& Session::rank(int rank) {
  TRELLIS_CHECK(rank >= 0 && rank < ranks(), fmt::format("rank {} of {}", rank, ranks()));
  return *impl_->ranks[static_cast<std::size_t>(rank)];
}

void Session::end_step(int rank, std::int64_t) { this->rank(rank).end_step(); }

void Session::forget_steps() {
  impl_->last.reset();
  impl_->streams.clear();
  impl_->graphs.clear();
  impl_->given_graphs.clear();
  for (const auto& recorder : impl_->ranks) recorder->impl().finished = {};
}

namespace {

void refuse_forgotten(int rank, const StepStream& step) {
  using Impl = RankRecorder::Impl;
  if (step.forgotten == 0) return;
  throw Error(
      ExitCode::kInternal,
      fmt::format(
          "step of rank {}: it ran {} graphs since the step before ended, and the first {} of them "
          "are forgotten, because a rank keeps at most {} of a step, {} communications and {} "
          "distinct operations: such a step cannot be simulated: end steps more often (in "
          "Python: run.step() of simulate())",
          rank, step.forgotten + static_cast<std::int64_t>(step.instances.size()), step.forgotten,
          Impl::kMostRuns, Impl::kMostComms, Impl::kMostOpenNodes));
}

}  // namespace

void Session::warn_of_divergence() {
  if (impl_->divergence_is_said) return;
  ContentHasher runs;
  for (std::size_t i = 0; i < impl_->streams.size(); ++i) {
    runs.value(impl_->graphs[i]->size());
    for (const GraphInstance& instance : impl_->streams[i]->instances) runs.value(instance.graph);
  }
  const ContentHash compared = runs.finish();
  if (std::exchange(impl_->compared_runs, compared) == compared) return;
  std::vector<RecordedRank> ranks;
  for (std::size_t i = 0; i < impl_->ranks.size(); ++i)
    ranks.push_back({impl_->ranks[i]->world_rank(), impl_->streams[i], impl_->graphs[i]});
  const std::string text = rank_divergence(ranks, options_.axes);
  impl_->divergence_is_said = !text.empty();
  if (!text.empty()) log_warning(text);
}

nlohmann::json Session::simulate_step(std::int64_t step) {
  TRELLIS_CHECK(options_.record, "simulate_step needs recording");
  Activity activity("laying out the streams of the step");
  impl_->streams.clear();
  impl_->graphs.clear();
  for (const auto& recorder : impl_->ranks) {
    refuse_forgotten(recorder->world_rank(), recorder->impl().finished);
    impl_->streams.push_back(&recorder->impl().finished);
    impl_->graphs.push_back(&recorder->impl().graphs);
  }
  warn_of_divergence();
  std::vector<std::shared_ptr<const TimedProgram>> owned;
  StepTiming timing = lay_out_step(
      impl_->streams, impl_->graphs,
      {options_.world_size, options_.fold,
       options_.reads_forward || system().software.reads_per_micro_batch > 0},
      [&](const Graph& graph) {
        return owned
            .emplace_back(impl_->timer.share(
                graph, options_.estimate_unknown ? Unknown::kEstimate : Unknown::kRefuse))
            .get();
      });
  timing.owned = std::move(owned);
  activity.now("timing the step on " + std::to_string(options_.nodes) + " × " + options_.instance);
  timing.axes = options_.axes;
  timing.slow = system().slow;
  timing.multi_node_stretch = system().optimizer_stretch();
  const ContentHash key = job_key(timing.job);
  const bool repeated = impl_->last && impl_->last_key == key;
  if (!timing.slow.empty() && !repeated)
    impl_->without_slow_parts = impl_->timer.makespan_without_slow_parts(timing.job);
  if (!timing.job.fold.empty())
    impl_->split(timing, repeated ? impl_->last->job.fold : impl_->timer.equal_ranks(timing.job));
  timing.timing = repeated ? std::move(impl_->last->timing) : impl_->timer.run_cluster(timing.job);
  impl_->last = std::move(timing);
  impl_->last_key = key;
  activity.now("explaining the time of the step");
  nlohmann::json report = step_report(step, *impl_->last, impl_->streams, impl_->graphs, system());
  if (impl_->without_slow_parts) report["without_slow_parts_ps"] = impl_->without_slow_parts->value;
  return report;
}

void Session::write_trace(const std::filesystem::path& path, const std::string& format) {
  if (!impl_->last) throw Error(ExitCode::kInternal, "no simulated step to write a trace of");
  const Activity activity("writing " + path.filename().string());
  write_step_trace(path, format, *impl_->last, impl_->streams, impl_->graphs);
}

nlohmann::json Session::portability_report(int rank) {
  OperatorUses uses;
  for (const auto& recorder : impl_->ranks) {
    if (rank >= 0 && recorder->rank() != rank) continue;
    const auto taken = impl_->taken.find(recorder->rank());
    uses.add(taken != impl_->taken.end() ? taken->second.uses : recorder->uses());
  }
  return portability(uses, system().instance.name, system().chip.core.limits.core_version);
}

nlohmann::json Session::memory_report() {
  nlohmann::json ranks = nlohmann::json::array();
  for (const auto& recorder : impl_->ranks) {
    const auto taken = impl_->taken.find(recorder->rank());
    ranks.push_back(taken != impl_->taken.end() ? taken->second.memory : memory_row(*recorder));
    ranks.back()["represents"] = options_.fold.represents(recorder->rank());
  }
  return {{"schema", "trellis.memory/1"}, {"ranks", std::move(ranks)}};
}

}  // namespace trellis::device
