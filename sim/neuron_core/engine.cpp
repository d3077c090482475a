#include "sim/neuron_core/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/kernel/time.h"

namespace trellis::sim {
namespace {

// How far an engine may run ahead of the kernel: bounds the increments and intervals that wait to be consumed.
constexpr std::int64_t kQuantum = 100'000'000;

}  // namespace

Engine::Engine(const sc_core::sc_module_name& name, isa::Engine which, const EngineShared& shared)
    : sc_module(name), which_(which), track_(static_cast<int>(which)), shared_(shared) {
  SC_HAS_PROCESS(Engine);
  SC_THREAD(run);
}

void Engine::start(const ResolvedQueue& queue) {
  queue_ = &queue;
  finished_ = false;
  pc_ = 0;
  local_ = completion_ = now_ps();
  table_ = 0;
  dma_count_ = 0;
  depth_ = 0;
  pipeline_.reset(local_);
  start_.notify(sc_core::SC_ZERO_TIME);
}

void Engine::run() {
  for (;;) {
    wait(start_);
    execute();
    finished_ = !shared_.abandon;
  }
}

void Engine::execute() {
  const auto& ops = queue_->ops;
  while (pc_ < ops.size()) {
    const ResolvedOp& op = ops[pc_];
    if (op.num_waits > 0 && !await(op)) return;
    switch (op.kind) {
      case ResolvedOp::Kind::kCompute: compute(op); break;
      case ResolvedOp::Kind::kLoadStationary: stream(op, pipeline_.load(local_, op.occupancy)); break;
      case ResolvedOp::Kind::kMatmul: stream(op, pipeline_.stream(local_, op.occupancy)); break;
      case ResolvedOp::Kind::kDma: start_dma(op); break;
      case ResolvedOp::Kind::kSemaphore:
        completion_ = std::max(completion_, local_);
        post(op);
        break;
      case ResolvedOp::Kind::kLoop: remaining_[static_cast<std::size_t>(depth_++)] = op.count; break;
      case ResolvedOp::Kind::kEndLoop:
        pc_ = close_loop(pc_);
        keep_near_kernel();
        continue;
    }
    ++pc_;
  }
}

void Engine::compute(const ResolvedOp& op) {
  const std::int64_t begin = op.dependent ? std::max(local_, completion_) : local_;
  std::int64_t end = begin + op.occupancy;
  if (op.table != 0 && op.table != table_) {
    table_ = op.table;
    end += shared_.activation_table_load;
  }
  local_ = end;
  completion_ = std::max(completion_, end + op.latency);
  shared_.meter->record(track_, op.kernel, begin, end);
  post(op);
}

void Engine::stream(const ResolvedOp& op, const TensorPipeline::Slot& slot) {
  local_ = slot.next_issue;
  completion_ = std::max(completion_, slot.end + op.latency);
  shared_.meter->record(track_, op.kernel, slot.begin, slot.end);
  post(op);
}

void Engine::start_dma(const ResolvedOp& op) {
  const std::int64_t begin = local_;
  local_ += op.occupancy;
  if (which_ != isa::Engine::kTensor) shared_.meter->record(track_, op.kernel, begin, local_);
  DmaRequest request;
  request.transfer = &queue_->transfers[op.partner];
  request.updates = queue_->updates.data() + op.first_update;
  request.num_updates = op.num_updates;
  request.kernel = op.kernel;
  request.arrival = local_;
  request.order = (static_cast<std::uint64_t>(track_) << 56) | dma_count_++;
  shared_.dma[op.dma_queue]->submit(request);
}

void Engine::post(const ResolvedOp& op) {
  for (std::uint32_t u = op.first_update; u < op.first_update + op.num_updates; ++u) {
    const auto& update = queue_->updates[u];
    (*shared_.semaphores)[update.id].post(completion_ + shared_.semaphore_latency, update.value);
  }
}

bool Engine::await(const ResolvedOp& op) {
  for (std::uint32_t w = op.first_wait; w < op.first_wait + op.num_waits; ++w) {
    if (!await(queue_->waits[w])) return false;
  }
  return true;
}

bool Engine::await(const isa::SemaphoreWait& wait_for) {
  Semaphore& semaphore = (*shared_.semaphores)[wait_for.id];
  for (;;) {
    const std::int64_t ready = semaphore.ready_time(wait_for.value);
    // What is known up to `local_`, or up to the kernel's clock, decides; a later moment may still be beaten by an unknown increment.
    if (ready <= local_ || ready <= now_ps()) {
      semaphore.take(wait_for.value);
      local_ = std::max(local_, ready);
      return true;
    }
    if (shared_.abandon) return false;
    blocked_on_ = wait_for;
    semaphore.waiting = true;
    if (ready == kNever) {
      wait(semaphore.posted);
    } else {
      wait(duration_ps(ready - now_ps()), semaphore.posted);
    }
    semaphore.waiting = false;
  }
}

std::size_t Engine::close_loop(std::size_t pc) {
  std::int64_t& remaining = remaining_[static_cast<std::size_t>(depth_ - 1)];
  if (--remaining > 0) return queue_->ops[pc].partner + 1;
  --depth_;
  return pc + 1;
}

void Engine::keep_near_kernel() {
  const std::int64_t now = now_ps();
  if (local_ - now > kQuantum) wait(duration_ps(local_ - now));
  shared_.meter->settle(now);
}

std::string Engine::where() const {
  return fmt::format("{} waits at instruction {} for semaphore {} >= {} (holds {})", isa::name(which_), pc_, blocked_on_.id, blocked_on_.value,
      (*shared_.semaphores)[blocked_on_.id].known_value());
}

}  // namespace trellis::sim
