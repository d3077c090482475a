#include "sim/systemc/engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace trellis::sim {
namespace {

const ResolvedQueue kNoQueue;

}  // namespace

Engine::Engine(isa::Engine which, int number, EngineShared& shared)
    : which_(which),
      track_(static_cast<int>(which)),
      number_(number),
      shared_(shared),
      queue_(&kNoQueue) {}

void Engine::start(const ResolvedQueue& queue, Engine* peer, std::int64_t now) {
  queue_ = &queue;
  peer_ = peer;
  pc_ = 0;
  waits_done_ = 0;
  local_ = completion_ = unit_free_ = now;
  results_.fill(now);
  newest_ = 0;
  table_ = 0;
  at_barrier_ = false;
  dma_count_ = 0;
  unanswered_.clear();
  mismatch_.clear();
  depth_ = 0;
  longest_delay_ = 0;
  for (const auto& op : queue.ops) longest_delay_ = std::max(longest_delay_, op.dependent_delay);
  pipeline_.reset(local_, shared_.clock_grid);
  plan();
}

void Engine::act() {
  do {
    step();
  } while (next_ <= shared_.turn->limit());
}

/// Sets `next_` by the instruction at `pc_`: its next semaphore, then its result dependency.
void Engine::plan() {
  if (pc_ == queue_->ops.size() || at_barrier_) {
    next_ = kNever;
    return;
  }
  const ResolvedOp& op = queue_->ops[pc_];
  next_ = local_;
  if (waits_done_ < op.num_waits) {
    const auto& wait = queue_->waits[op.first_wait + waits_done_];
    Semaphore& semaphore = (*shared_.semaphores)[wait.id];
    const std::int64_t ready = semaphore.ready_time(wait.value);
    const bool late = which_ == isa::Engine::kTensor && ready != kNever;
    next_ = std::max(local_, ready + (late ? shared_.tensor_wait : 0));
    semaphore.expect(*this, wait.value);
    return;
  }
  if (op.kind == ResolvedOp::Kind::kCompute) next_ = std::max(next_, unit_free_);
  if (op.producer != 0) {
    next_ =
        std::max(next_, results_[(newest_ + kProducerWindow + 1 - op.producer) % kProducerWindow] +
                            op.dependent_delay);
  }
}

void Engine::posted() {
  plan();
  shared_.turn->expect(number_, next_);
}

void Engine::step() {
  const ResolvedOp& op = queue_->ops[pc_];
  if (waits_done_ < op.num_waits && !take_semaphore(op)) return;
  waits_done_ = 0;
  execute(op);
  plan();
}

/// Takes the instruction's next semaphore at `next_`. False: there is something left to wait for.
bool Engine::take_semaphore(const ResolvedOp& op) {
  const auto& wait = queue_->waits[op.first_wait + waits_done_];
  Semaphore& semaphore = (*shared_.semaphores)[wait.id];
  semaphore.take(wait.value);
  local_ = next_;
  ++waits_done_;
  plan();
  return waits_done_ == op.num_waits && next_ == local_;
}

void Engine::execute(const ResolvedOp& op) {
  switch (op.kind) {
    case ResolvedOp::Kind::kCompute: compute(op); break;
    case ResolvedOp::Kind::kLoadStationary: stream(op, pipeline_.load(local_, op.occupancy)); break;
    case ResolvedOp::Kind::kMatmul:
      stream(op, pipeline_.stream(local_, op.occupancy, op.overhead));
      break;
    case ResolvedOp::Kind::kDma:
    case ResolvedOp::Kind::kSendRecv: start_dma(op); break;
    case ResolvedOp::Kind::kSemaphore:
      note(local_, local_ + op.occupancy);
      local_ += op.occupancy;
      completion_ = std::max(completion_, local_);
      post(op);
      break;
    case ResolvedOp::Kind::kLoop:
      if (which_ == isa::Engine::kTensor) pipeline_.loop_opened(depth_, local_);
      loops_[static_cast<std::size_t>(depth_++)] = {op.partner, op.count};
      break;
    case ResolvedOp::Kind::kEndLoop: close_loop(op); return;
    case ResolvedOp::Kind::kCoreBarrier: reach_barrier(); return;
  }
  ++pc_;
}

void Engine::compute(const ResolvedOp& op) {
  const std::int64_t begin = shared_.ports.free_from(op.ports, next_);
  std::int64_t end = begin + op.occupancy;
  if (op.table != 0 && op.table != table_) {
    table_ = op.table;
    end += shared_.activation_table_load;
  }
  shared_.ports.hold(op.ports, end);
  unit_free_ = end;
  local_ = shared_.issue_ahead ? begin : end;
  note(begin, end + op.latency);
  completion_ = std::max(completion_, end + op.latency);
  newest_ = (newest_ + 1) % kProducerWindow;
  results_[newest_] = completion_;
  shared_.meter->record(track_, op.kernel, begin, end);
  post(op);
}

void Engine::stream(const ResolvedOp& op, const TensorPipeline::Slot& slot) {
  local_ = slot.next_issue;
  note(local_, slot.end + op.latency);
  completion_ = std::max(completion_, slot.end + op.latency);
  shared_.meter->record(track_, op.kernel, slot.begin, slot.end);
  post(op);
}

void Engine::start_dma(const ResolvedOp& op) {
  const DmaTransfer& transfer = queue_->transfers[op.partner];
  DmaQueue& queue = *shared_.dma[op.dma_queue];
  const std::int64_t begin = local_;
  local_ += op.preparation;
  const std::int64_t triggered = local_;
  local_ += op.occupancy;
  local_ += queue.back_pressure(transfer, local_);
  note(triggered, local_);
  // The instruction before it may still work: the engine is not busy twice.
  const std::int64_t from = std::max(begin, unit_free_);
  unit_free_ = std::max(unit_free_, local_);
  if (which_ != isa::Engine::kTensor)
    shared_.meter->record(track_, op.kernel, from, std::max(from, local_));
  DmaRequest request;
  request.transfer = &transfer;
  request.engine = which_;
  request.index = static_cast<std::uint32_t>(pc_);
  request.updates = queue_->updates.data() + op.first_update;
  request.num_updates = op.num_updates;
  request.kernel = op.kernel;
  request.arrival = local_;
  request.order = (static_cast<std::uint64_t>(track_) << 56) | dma_count_++;
  if (transfer.given.value >= 0) {
    queue.complete_given(request, local_, std::max(local_, triggered + transfer.given.value));
  } else if (op.kind == ResolvedOp::Kind::kSendRecv) {
    exchange(request, op.dma_queue);
  } else {
    submit(request, op.dma_queue);
  }
}

void Engine::submit(const DmaRequest& request, std::size_t queue) {
  shared_.turn->hold_at(shared_.dma[queue]->submit(request));
}

/// Both halves of an exchange start when the later core has come; each core's DMA engines fetch
/// what it receives.
void Engine::exchange(const DmaRequest& request, std::size_t queue) {
  if (peer_->unanswered_.empty()) {
    unanswered_.push_back(request);
    return;
  }
  DmaRequest other = peer_->unanswered_.front();
  peer_->unanswered_.pop_front();
  if (other.transfer->bytes != request.transfer->bytes) {
    mismatch_ =
        fmt::format("{} meets with a send_recv of {} B one of {} B on the other core",
                    isa::name(which_), request.transfer->bytes.value, other.transfer->bytes.value);
  }
  other.arrival = request.arrival;
  submit(request, queue);
  peer_->submit(other, queue);
}

void Engine::reach_barrier() {
  at_barrier_ = true;
  local_ = std::max(local_, unit_free_);  // what was issued before it is done
  if (!peer_->at_barrier_) return;
  const std::int64_t time = std::max(local_, peer_->local_) + shared_.core_barrier;
  leave_barrier(time);
  peer_->leave_barrier(time);
  peer_->plan();
  shared_.turn->expect(peer_->number_, peer_->next_);
}

void Engine::leave_barrier(std::int64_t time) {
  at_barrier_ = false;
  local_ = time;
  completion_ = std::max(completion_, local_);
  post(queue_->ops[pc_++]);
}

void Engine::post(const ResolvedOp& op) {
  for (std::uint32_t u = op.first_update; u < op.first_update + op.num_updates; ++u) {
    const auto& update = queue_->updates[u];
    (*shared_.semaphores)[update.id].post(completion_ + shared_.semaphore_latency, update.value);
  }
}

void Engine::note(std::int64_t start, std::int64_t end) {
  if (shared_.log != nullptr)
    shared_.log->push_back(
        {which_, static_cast<std::uint32_t>(pc_), Picoseconds(start), Picoseconds(end)});
}

void Engine::close_loop(const ResolvedOp& op) {
  // Loops whose remaining work is short are not worth a look at the machine's state.
  constexpr std::int64_t kWorthwhile = 256;
  OpenLoop& open = loops_[static_cast<std::size_t>(depth_ - 1)];
  const LoopBody& body = queue_->loops[op.partner];
  if (--open.remaining == 0) {
    --depth_;
    ++pc_;
    return;
  }
  pc_ = body.begin + 1;
  if (which_ == isa::Engine::kTensor) pipeline_.loop_closed(depth_ - 1, local_);
  shared_.meter->settle(local_);
  if (shared_.observer != nullptr && open.remaining * body.work >= kWorthwhile)
    shared_.observer->loop_closed(*this, depth_ - 1, local_);
}

void Engine::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  out.insert(
      out.end(),
      {static_cast<std::int64_t>(pc_), waits_done_, std::max<std::int64_t>(local_ - now, 0),
       std::max<std::int64_t>(unit_free_ - now, 0), std::max<std::int64_t>(completion_ - now, 0),
       table_, at_barrier_, static_cast<std::int64_t>(unanswered_.size())});
  for (std::size_t back = 0; back < kProducerWindow; ++back) {
    out.push_back(std::max(results_[(newest_ + kProducerWindow - back) % kProducerWindow] - now,
                           -longest_delay_));
  }
  for (const auto& request : unanswered_)
    out.push_back(reinterpret_cast<std::intptr_t>(request.transfer));
  if (which_ == isa::Engine::kTensor) pipeline_.append_state(out, now);
}

std::string Engine::where() const {
  if (!mismatch_.empty()) return mismatch_;
  if (pc_ == queue_->ops.size())
    return fmt::format("{} has {} send_recv that the other core never meets", isa::name(which_),
                       unanswered_.size());
  if (at_barrier_)
    return fmt::format(
        "{} waits at instruction {}, a core_barrier that the other core never reaches",
        isa::name(which_), pc_);
  const auto& wait = queue_->waits[queue_->ops[pc_].first_wait + waits_done_];
  return fmt::format("{} waits at instruction {} for semaphore {} >= {} (holds {})",
                     isa::name(which_), pc_, wait.id, wait.value,
                     (*shared_.semaphores)[wait.id].known_value());
}

}  // namespace trellis::sim
