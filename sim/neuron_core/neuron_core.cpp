#include "sim/neuron_core/neuron_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "sim/kernel/time.h"
#include "sim/neuron_core/resolved_queue.h"

namespace trellis::sim {
namespace {

constexpr std::size_t kSemaphores = 256;

}  // namespace

NeuronCore::NeuronCore(const sc_core::sc_module_name& name) : sc_module(name), semaphores_(kSemaphores) {
  dma_shared_.semaphores = &semaphores_;
  dma_shared_.meter = &meter_;
  engine_shared_.semaphores = &semaphores_;
  engine_shared_.meter = &meter_;
  for (int q = 0; q < isa::kNumDmaQueues; ++q) {
    const auto queue_name = "dma_" + std::string(isa::name(static_cast<isa::DmaQueue>(q)));
    dma_[q] = std::make_unique<DmaQueue>(queue_name.c_str(), isa::kNumEngines + q, dma_shared_);
    dma_[q]->hbm.bind(hbm_.target);
    engine_shared_.dma[q] = dma_[q].get();
  }
  for (int e = 0; e < isa::kNumEngines; ++e) {
    const auto which = static_cast<isa::Engine>(e);
    engines_[e] = std::make_unique<Engine>(std::string(isa::name(which)).c_str(), which, engine_shared_);
  }
}

void NeuronCore::configure(const SystemConfig& system) {
  config_ = system.chip.core;
  hbm_.configure(system.chip.hbm_bandwidth * (1.0 / system.logical_cores_per_chip()));
  dma_shared_.config = config_.dma;
  dma_shared_.engines.configure(config_.dma.engines);
  engine_shared_.semaphore_latency = config_.semaphore_latency.value;
  engine_shared_.activation_table_load = config_.activation_table_load.value;
  for (auto& engine : engines_) engine->configure(config_);
}

CoreTiming NeuronCore::time(const isa::Program& program) {
  elaborate_once();
  CoreTiming timing;
  timing.segments.reserve(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s) timing.segments.push_back(time_segment(program, s));
  return timing;
}

void NeuronCore::reset(std::size_t kernels) {
  const std::int64_t now = now_ps();
  for (auto& semaphore : semaphores_) semaphore.reset();
  for (auto& queue : dma_) queue->reset();
  dma_shared_.engines.reset(now);
  dma_shared_.hbm_read = dma_shared_.hbm_written = 0;
  dma_shared_.last_completion = now;
  hbm_.reset(now);
  meter_.reset(now, kernels);
}

SegmentTiming NeuronCore::time_segment(const isa::Program& program, std::size_t index) {
  const auto queues = resolve_segment(program, program.segments[index], config_);
  reset(program.kernels.size());
  const std::int64_t start = now_ps();
  for (int e = 0; e < isa::kNumEngines; ++e) engines_[e]->start(queues[e]);
  run_until_idle();
  check_finished(program, index);

  std::int64_t end = dma_shared_.last_completion;
  for (const auto& engine : engines_) end = std::max(end, engine->end());
  SegmentTiming timing;
  timing.duration = Picoseconds(end - start);
  timing.hbm_read = Bytes(dma_shared_.hbm_read);
  timing.hbm_written = Bytes(dma_shared_.hbm_written);
  meter_.finish(timing);
  return timing;
}

void NeuronCore::check_finished(const isa::Program& program, std::size_t segment) {
  std::string waiting;
  for (const auto& engine : engines_) {
    if (!engine->finished()) waiting += "\n  " + engine->where();
  }
  if (waiting.empty()) return;
  engine_shared_.abandon = true;
  for (auto& semaphore : semaphores_) semaphore.posted.notify(sc_core::SC_ZERO_TIME);
  run_until_idle();
  engine_shared_.abandon = false;
  throw Error(ExitCode::kInternal, fmt::format("deadlock in program \"{}\", segment {}: every engine that is left waits for a semaphore that nobody posts{}",
      program.name, segment, waiting));
}

}  // namespace trellis::sim
