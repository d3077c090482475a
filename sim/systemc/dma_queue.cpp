#include "sim/systemc/dma_queue.h"

#include <algorithm>

#include "sim/systemc/time.h"

namespace trellis::sim {

DmaQueue::DmaQueue(const sc_core::sc_module_name& name, int track, DmaShared& shared)
    : sc_module(name), track_(track), shared_(shared) {
  SC_HAS_PROCESS(DmaQueue);
  SC_THREAD(run);
  payload_.set_data_ptr(nullptr);
  shared_.queues.push_back(this);
}

void DmaQueue::reset() {
  pending_ = {};
  on_engines_.clear();
  current_ = nullptr;
  sent_ = 0;
  busy_until_ = last_end_ = 0;
}

std::int64_t DmaQueue::back_pressure(const DmaTransfer& t, std::int64_t now) {
  const DmaConfig& dma = shared_.config;
  if (t.generator < 0 || dma.generated_backlog.value == 0) return 0;
  const auto time = [&](Bytes bytes) { return transfer_time(bytes, dma.generated_drain).value; };
  shared_.backlog_end = std::max(shared_.backlog_end, now) + time(t.bytes);
  return std::max<std::int64_t>(0, shared_.backlog_end - time(dma.generated_backlog) - now);
}

void DmaQueue::complete_given(const DmaRequest& request, std::int64_t begin, std::int64_t end) {
  const DmaTransfer& t = *request.transfer;
  shared_.hbm_read += t.hbm_read.value;
  shared_.hbm_written += t.hbm_written.value;
  first_data_ = begin;
  // Others of its ring were given their times too: in order or not.
  last_end_ = std::min(last_end_, end);
  complete(request, end);
}

std::int64_t DmaQueue::submit(DmaRequest request) {
  const DmaTransfer& t = *request.transfer;
  if (t.generator >= 0) {
    // A generator is fed by one engine, which comes here in its own order: arithmetic is exact.
    std::int64_t& free = shared_.generator_free[static_cast<std::size_t>(t.generator)];
    request.arrival = std::max(request.arrival, free);
    free = request.arrival + shared_.config.hardware_generation.value;
  }
  request.arrival += t.latency.value;
  const bool next = pending_.empty() || Later()(pending_.top(), request);
  pending_.push(request);
  if (next) submitted_.notify(sc_core::SC_ZERO_TIME);
  return request.arrival;
}

void DmaQueue::run() {
  for (;;) {
    if (pending_.empty()) {
      wait(submitted_);
      continue;
    }
    const std::int64_t arrival = pending_.top().arrival;
    if (arrival > now_ps()) {
      sleep_until(arrival, &submitted_);  // an earlier one may still be submitted
      continue;
    }
    const DmaRequest request = pending_.top();
    pending_.pop();
    transfer(request);
  }
}

void DmaQueue::transfer(const DmaRequest& request) {
  const DmaTransfer& t = *request.transfer;
  current_ = &t;
  const std::int64_t semaphore_write = shared_.config.semaphore_write.value;
  current_end_ =
      shared_.engines.write_semaphores(now_ps(), t, DmaEngines::Part::kIdle, semaphore_write);
  std::int64_t hbm_sent = 0;
  first_data_ = kNever;
  for (sent_ = 0; sent_ < t.per_engine;) {
    await_turn();
    const std::int64_t n = std::min(t.packet, t.per_engine - sent_);
    const std::int64_t hbm_due =
        sent_ + n == t.per_engine ? t.hbm_load : t.hbm_load / t.per_engine * (sent_ + n);
    current_end_ = std::max(current_end_, packet(request, sent_, n, hbm_due - hbm_sent));
    hbm_sent = hbm_due;
    sent_ += n;
  }
  shared_.hbm_read += t.hbm_read.value;
  shared_.hbm_written += t.hbm_written.value;
  complete(request,
           std::max(current_end_, shared_.engines.write_semaphores(
                                      now_ps(), t, DmaEngines::Part::kBusy, semaphore_write)));
  release();
}

void DmaQueue::await_turn() {
  for (;;) {
    while (!on_engines_.empty() && on_engines_.front() <= now_ps()) on_engines_.pop_front();
    if (on_engines_.size() >= static_cast<std::size_t>(shared_.config.queued_packets)) {
      sleep_until(on_engines_.front());
      continue;
    }
    if (!must_yield()) return;
    sc_core::sc_event_or_list higher;
    for (const DmaQueue* other : shared_.queues) {
      if (other->priority() < priority()) higher |= other->released_;
    }
    wait(higher);
  }
}

void DmaQueue::sleep_until(std::int64_t time, const sc_core::sc_event* or_earlier) {
  wakes_at_ = time;
  if (or_earlier != nullptr) {
    wait(duration_ps(time - now_ps()), *or_earlier);
  } else {
    wait(duration_ps(time - now_ps()));
  }
  wakes_at_ = kNever;
  while (others_go_first()) wait(sc_core::SC_ZERO_TIME);
}

bool DmaQueue::others_go_first() const {
  const std::int64_t now = now_ps();
  const auto due = [now](const DmaQueue* other) { return other->wakes_at_ == now; };
  const auto& own = shared_.queues;
  const auto self = std::find(own.begin(), own.end(), this);
  return std::any_of(own.begin(), self, due) ||
         (shared_.before != nullptr &&
          std::any_of(shared_.before->queues.begin(), shared_.before->queues.end(), due));
}

int DmaQueue::priority() const {
  return shared_.config.priority[static_cast<std::size_t>(track_ - isa::kNumEngines)];
}

bool DmaQueue::must_yield() const {
  return std::any_of(shared_.queues.begin(), shared_.queues.end(), [this](const DmaQueue* other) {
    return other->current_ != nullptr && other->priority() < priority();
  });
}

void DmaQueue::release() {
  current_ = nullptr;
  sent_ = 0;
  released_.notify(sc_core::SC_ZERO_TIME);
}

std::int64_t DmaQueue::packet(const DmaRequest& request, std::int64_t from, std::int64_t count,
                              std::int64_t hbm_bytes) {
  const std::int64_t now = now_ps();
  const DmaTransfer& t = *request.transfer;
  const DmaEngines::Slot slot = shared_.engines.serve(now, t, from, count);
  std::int64_t end = slot.end;
  first_data_ = std::min(first_data_, slot.begin);
  if (hbm_bytes > 0) {
    // Asked for when the packet is handed over, though it may be after others on its engine: a
    // later start would reserve HBM's future.
    sc_core::sc_time delay = sc_core::SC_ZERO_TIME;
    payload_.set_data_length(static_cast<unsigned>(hbm_bytes));
    hbm->b_transport(payload_, delay);
    end = std::max(end, now + static_cast<std::int64_t>(delay.value()));
  }
  on_engines_.push_back(end);
  // Packets of one group overlap on the engines; the track shows their union.
  const std::int64_t begin = std::max(slot.begin, busy_until_);
  busy_until_ = std::max(busy_until_, end);
  shared_.meter->record(track_, request.kernel, std::min(begin, busy_until_), busy_until_,
                        from == 0 ? t.bytes.value : 0);
  return end;
}

void DmaQueue::complete(const DmaRequest& request, std::int64_t end) {
  last_end_ = std::max(last_end_, end);  // a ring completes in order
  const std::int64_t visible = last_end_ + request.transfer->completion.value;
  if (shared_.log != nullptr) {
    shared_.log->push_back(
        {request.engine, request.index, Picoseconds(first_data_), Picoseconds(last_end_)});
  }
  for (std::uint32_t u = 0; u < request.num_updates; ++u) {
    const auto& update = request.updates[u];
    (*shared_.semaphores)[update.id].post(visible, update.value);
  }
  shared_.last_completion = std::max(shared_.last_completion, visible);
}

void DmaQueue::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  const auto ahead = [now](std::int64_t time) { return std::max<std::int64_t>(time - now, 0); };
  const auto identity = [](const void* p) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(p));
  };
  out.insert(out.end(),
             {identity(current_), sent_, current_ == nullptr ? 0 : ahead(current_end_),
              ahead(busy_until_), ahead(last_end_), static_cast<std::int64_t>(pending_.size())});
  auto waiting = pending_;
  for (; !waiting.empty(); waiting.pop())
    out.insert(out.end(), {identity(waiting.top().transfer), waiting.top().arrival - now});
  for (const std::int64_t end : on_engines_) {
    if (end >= now) out.push_back(end - now);
  }
}

}  // namespace trellis::sim
