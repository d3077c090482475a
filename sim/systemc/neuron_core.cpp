#include "sim/systemc/neuron_core.h"

#include <algorithm>

namespace trellis::sim {
namespace {

constexpr std::size_t kSemaphores = 256;

}  // namespace

NeuronCore::NeuronCore(const sc_core::sc_module_name& name, NeuronCore* before, Hbm& stack,
                       Turn& turn)
    : sc_module(name), stack_(stack), semaphores_(kSemaphores) {
  dma_shared_.before = before == nullptr ? nullptr : &before->dma_shared_;
  dma_shared_.semaphores = &semaphores_;
  dma_shared_.meter = &meter_;
  engine_shared_.semaphores = &semaphores_;
  engine_shared_.meter = &meter_;
  engine_shared_.turn = &turn;
  for (int q = 0; q < isa::kNumDmaQueues; ++q) {
    const auto queue_name = "dma_" + std::string(isa::name(static_cast<isa::DmaQueue>(q)));
    dma_[q] = std::make_unique<DmaQueue>(queue_name.c_str(), isa::kNumEngines + q, dma_shared_);
    dma_[q]->hbm.bind(stack.target);
    engine_shared_.dma[q] = dma_[q].get();
  }
  const int first = before == nullptr ? 0 : static_cast<int>(before->engines_.size());
  engines_.reserve(isa::kNumEngines);
  for (int e = 0; e < isa::kNumEngines; ++e)
    engines_.emplace_back(static_cast<isa::Engine>(e), first + e, engine_shared_);
}

void NeuronCore::configure(const CoreConfig& core) {
  config_ = core;
  dma_shared_.config = config_.dma;
  dma_shared_.engines.configure(config_.dma.engines);
  engine_shared_.semaphore_latency = config_.semaphore_latency.value;
  engine_shared_.activation_table_load = config_.activation_table_load.value;
  engine_shared_.core_barrier = config_.core_barrier.value;
  engine_shared_.tensor_wait = config_.tensor.wait_time.value;
  engine_shared_.issue_ahead = config_.issue_ahead;
  for (auto& engine : engines_) engine.configure(config_);
}

void NeuronCore::reset(const std::vector<ResolvedQueue>& queues, std::size_t kernels,
                       std::int64_t now) {
  for (auto& semaphore : semaphores_) semaphore.reset();
  awaited_.clear();
  for (const auto& queue : queues) {
    for (const auto& wait : queue.waits) awaited_.push_back(wait.id);
  }
  std::sort(awaited_.begin(), awaited_.end());
  awaited_.erase(std::unique(awaited_.begin(), awaited_.end()), awaited_.end());
  for (auto& queue : dma_) queue->reset();
  dma_shared_.engines.reset(now);
  engine_shared_.ports.reset(now);
  dma_shared_.generator_free.fill(now);
  dma_shared_.backlog_end = now;
  begin_ = now;
  instructions_.clear();
  transfers_.clear();
  dma_shared_.hbm_read = dma_shared_.hbm_written = 0;
  dma_shared_.last_completion = now;
  meter_.reset(now, kernels);
  skipped_ = 0;
}

void NeuronCore::start(const std::vector<ResolvedQueue>& queues, NeuronCore* peer,
                       LoopObserver* observer, std::size_t kernels, std::int64_t now) {
  reset(queues, kernels, now);
  engine_shared_.observer = observer;
  for (std::size_t e = 0; e < engines_.size(); ++e)
    engines_[e].start(queues[e], peer == nullptr ? nullptr : &peer->engines_[e], now);
}

std::string NeuronCore::waiting() const {
  std::string text;
  for (const auto& engine : engines_) {
    if (!engine.finished()) text += "\n  " + engine.where();
  }
  return text;
}

std::int64_t NeuronCore::last_end() const {
  std::int64_t end = dma_shared_.last_completion;
  for (const auto& engine : engines_) end = std::max(end, engine.end());
  return end;
}

SegmentTiming NeuronCore::usage() {
  SegmentTiming timing;
  timing.hbm_read = Bytes(dma_shared_.hbm_read);
  timing.hbm_written = Bytes(dma_shared_.hbm_written);
  meter_.finish(timing);
  for (auto* log : {&instructions_, &transfers_}) {
    for (InstructionTiming& each : *log) {
      each.start = each.start - Picoseconds(begin_);
      each.end = each.end - Picoseconds(begin_);
    }
  }
  timing.instructions = std::move(instructions_);
  timing.transfers = std::move(transfers_);
  return timing;
}

void NeuronCore::keep_instructions(bool keep) {
  engine_shared_.log = keep ? &instructions_ : nullptr;
  dma_shared_.log = keep ? &transfers_ : nullptr;
}

std::vector<Engine*> NeuronCore::engines() {
  std::vector<Engine*> all;
  for (auto& engine : engines_) all.push_back(&engine);
  return all;
}

void NeuronCore::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  for (const std::uint16_t id : awaited_) semaphores_[id].append_future(out, now);
  for (const auto& queue : dma_) queue->append_state(out, now);
  dma_shared_.engines.append_state(out, now);
  stack_.append_state(out, now);
  engine_shared_.ports.append_state(out, now);
  for (const std::int64_t free : dma_shared_.generator_free)
    out.push_back(std::max<std::int64_t>(free - now, 0));
  out.push_back(std::max<std::int64_t>(dma_shared_.last_completion - now, 0));
  out.push_back(std::max<std::int64_t>(dma_shared_.backlog_end - now, 0));
  meter_.append_state(out, now);
}

void NeuronCore::append_semaphores(std::vector<Semaphore*>& out) {
  for (const std::uint16_t id : awaited_) out.push_back(&semaphores_[id]);
}

void NeuronCore::append_counters(std::vector<std::int64_t*>& out) {
  out.insert(out.end(), {&dma_shared_.hbm_read, &dma_shared_.hbm_written});
}

void NeuronCore::skip(std::int64_t now, std::int64_t time) {
  const bool done = std::all_of(engines_.begin(), engines_.end(),
                                [](const Engine& engine) { return engine.finished(); }) &&
                    last_end() <= now;
  if (!done) skipped_ += time;
}

}  // namespace trellis::sim
