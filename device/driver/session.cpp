#include "device/driver/session.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "device/driver/cluster_job.h"

namespace trellis::device {

struct Session::Impl {
  std::vector<std::unique_ptr<RankRecorder>> ranks;
  std::map<ContentHash, std::unique_ptr<TimedProgram>> programs;
  std::unique_ptr<sim::Simulator> simulator;  ///< made at first use: SystemC elaborates once
  std::optional<StepTiming> last;
  ContentHash last_key;
  std::vector<const StepStream*> streams;
  std::vector<const std::vector<Graph>*> graphs;

  sim::Simulator& machine(const sim::SystemConfig& system) {
    if (!simulator) simulator = std::make_unique<sim::Simulator>(system);
    return *simulator;
  }

  const TimedProgram* program_of(const Graph& graph, const sim::SystemConfig& system) {
    const ContentHash key = graph.hash();
    auto it = programs.find(key);
    if (it == programs.end()) {
      auto timed = std::make_unique<TimedProgram>();
      timed->compiled = compile(graph, system.chip.core);
      timed->timing = std::make_shared<const sim::CoreTiming>(machine(system).time_program(timed->compiled.program));
      it = programs.emplace(key, std::move(timed)).first;
    }
    return it->second.get();
  }
};

Session::Session(const SessionOptions& options)
    : options_(options), system_(sim::load_system(options.instance, options.nodes)), impl_(std::make_unique<Impl>()) {
  if (options.world_size < 1 || options.world_size > system_.logical_cores()) {
    throw ConfigError(fmt::format("{} ranks do not fit {} × {} with {} logical NeuronCores: raise --nodes or choose a larger --instance",
                                  options.world_size, options.nodes, options.instance, system_.logical_cores()));
  }
  for (int rank = 0; rank < options.world_size; ++rank) {
    impl_->ranks.push_back(std::make_unique<RankRecorder>(rank, system_.hbm_per_logical_core(), options.record));
  }
}

Session::~Session() = default;

RankRecorder& Session::rank(int rank) {
  TRELLIS_CHECK(rank >= 0 && rank < options_.world_size, fmt::format("rank {} of {}", rank, options_.world_size));
  return *impl_->ranks[static_cast<std::size_t>(rank)];
}

void Session::end_step(int rank, std::int64_t) {
  RankRecorder& recorder = this->rank(rank);
  recorder.cut("end of step");
  RankRecorder::Impl& stream = recorder.impl();
  stream.finished = std::move(stream.step);
  stream.step = {};
  stream.layer_from.clear();
}

nlohmann::json Session::simulate_step(std::int64_t step) {
  TRELLIS_CHECK(options_.record, "simulate_step needs recording");
  impl_->streams.clear();
  impl_->graphs.clear();
  for (const auto& recorder : impl_->ranks) {
    impl_->streams.push_back(&recorder->impl().finished);
    impl_->graphs.push_back(&recorder->impl().graphs);
  }
  StepTiming timing = lay_out_step(impl_->streams, impl_->graphs,
                                   [this](const Graph& graph) { return impl_->program_of(graph, system_); });
  const ContentHash key = job_key(timing.job);
  if (impl_->last && impl_->last_key == key) {
    timing.timing = std::move(impl_->last->timing);
  } else {
    timing.timing = impl_->machine(system_).run_cluster(timing.job);
  }
  impl_->last = std::move(timing);
  impl_->last_key = key;
  return step_report(step, *impl_->last, break_down(*impl_->last, impl_->streams, impl_->graphs), system_);
}

void Session::write_trace(const std::filesystem::path& path, const std::string& format) {
  if (!impl_->last) throw Error(ExitCode::kInternal, "no simulated step to write a trace of");
  write_step_trace(path, format, *impl_->last, impl_->streams, impl_->graphs);
}

nlohmann::json Session::memory_report() {
  nlohmann::json ranks = nlohmann::json::array();
  for (const auto& recorder : impl_->ranks) {
    const MemoryAccount& memory = recorder->memory();
    nlohmann::json peak, now;
    for (int c = 0; c < kNumBufferCategories; ++c) {
      const std::string key = std::string(name(static_cast<BufferCategory>(c))) + "_bytes";
      peak[key] = memory.at_peak_by_category()[static_cast<std::size_t>(c)];
      now[key] = memory.current_by_category()[static_cast<std::size_t>(c)];
    }
    ranks.push_back({{"rank", recorder->rank()},
                     {"peak_bytes", memory.peak()},
                     {"capacity_bytes", memory.capacity().value},
                     {"peak_phase", memory.peak_phase()},
                     {"at_peak", peak},
                     {"current_bytes", memory.current()},
                     {"current", now}});
  }
  return {{"schema", "trellis.memory/1"}, {"ranks", std::move(ranks)}};
}

}  // namespace trellis::device
