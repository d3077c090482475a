#include "sim/dma/dma_queue.h"

#include <algorithm>

#include "sim/kernel/time.h"

namespace trellis::sim {
namespace {

// An engine changes rings at packet boundaries; the driver allows 64 descriptors in a packet, collectives 64 KiB (hardware facts 3.1, 3.3).
constexpr std::int64_t kPacketDescriptors = 64;
constexpr std::int64_t kPacketBytes = 64 * 1024;
// How much work a group may have on the engines before others get their turn: about one packet.
constexpr std::int64_t kBacklog = 2'000'000;

std::int64_t descriptors_per_chunk(const DmaTransfer& t, int engines) {
  const std::int64_t size = std::max<std::int64_t>(1, t.bytes.value / t.descriptors);
  return engines * std::clamp<std::int64_t>(kPacketBytes / size, 1, kPacketDescriptors);
}

}  // namespace

DmaQueue::DmaQueue(const sc_core::sc_module_name& name, int track, DmaShared& shared) : sc_module(name), track_(track), shared_(shared) {
  SC_HAS_PROCESS(DmaQueue);
  SC_THREAD(run);
  payload_.set_data_ptr(nullptr);
}

void DmaQueue::reset() {
  pending_ = {};
  busy_until_ = last_end_ = 0;
}

void DmaQueue::submit(DmaRequest request) {
  request.arrival += shared_.config.fixed_latency.value;
  const bool next = pending_.empty() || Later()(pending_.top(), request);
  pending_.push(request);
  if (next) submitted_.notify(sc_core::SC_ZERO_TIME);
}

void DmaQueue::run() {
  for (;;) {
    if (pending_.empty()) {
      wait(submitted_);
      continue;
    }
    const std::int64_t arrival = pending_.top().arrival;
    if (arrival > now_ps()) {
      wait(duration_ps(arrival - now_ps()), submitted_);  // an earlier one may still be submitted
      continue;
    }
    const DmaRequest request = pending_.top();
    pending_.pop();
    transfer(request);
  }
}

void DmaQueue::transfer(const DmaRequest& request) {
  const DmaTransfer& t = *request.transfer;
  const std::int64_t hbm_bytes = t.hbm_read.value + t.hbm_written.value;
  const std::int64_t at_once = descriptors_per_chunk(t, shared_.engines.count());
  std::int64_t end = now_ps();
  std::int64_t hbm_sent = 0;
  for (std::int64_t sent = 0; sent < t.descriptors;) {
    const std::int64_t n = std::min(at_once, t.descriptors - sent);
    sent += n;
    const std::int64_t hbm_due = sent == t.descriptors ? hbm_bytes : hbm_bytes / t.descriptors * sent;
    end = std::max(end, chunk(request, n, hbm_due - hbm_sent, sent == n));
    hbm_sent = hbm_due;
    if (end - now_ps() > kBacklog) wait(duration_ps(end - now_ps() - kBacklog));
  }
  shared_.hbm_read += t.hbm_read.value;
  shared_.hbm_written += t.hbm_written.value;
  complete(request, end);
}

std::int64_t DmaQueue::chunk(const DmaRequest& request, std::int64_t descriptors, std::int64_t hbm_bytes, bool first) {
  const std::int64_t now = now_ps();
  const DmaTransfer& t = *request.transfer;
  const DmaEngines::Slot slot = shared_.engines.serve(now, descriptors, t.descriptor_time.value);
  std::int64_t end = slot.end;
  if (hbm_bytes > 0) {
    sc_core::sc_time delay = duration_ps(slot.begin - now);
    payload_.set_data_length(static_cast<unsigned>(hbm_bytes));
    hbm->b_transport(payload_, delay);
    end = std::max(end, now + static_cast<std::int64_t>(delay.value()));
  }
  // Chunks of one group overlap on the engines; the track shows their union.
  const std::int64_t begin = std::max(slot.begin, busy_until_);
  busy_until_ = std::max(busy_until_, end);
  shared_.meter->record(track_, request.kernel, std::min(begin, busy_until_), busy_until_, first ? t.bytes.value : 0);
  return end;
}

void DmaQueue::complete(const DmaRequest& request, std::int64_t end) {
  last_end_ = std::max(last_end_, end);  // a ring completes in order
  const std::int64_t visible = last_end_ + shared_.config.completion_latency.value;
  for (std::uint32_t u = 0; u < request.num_updates; ++u) {
    const auto& update = request.updates[u];
    (*shared_.semaphores)[update.id].post(visible, update.value);
  }
  shared_.last_completion = std::max(shared_.last_completion, visible);
}

}  // namespace trellis::sim
