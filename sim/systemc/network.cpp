#include "sim/systemc/network.h"

#include <algorithm>
#include <cmath>

#include "sim/systemc/time.h"

namespace trellis::sim {

void StretchedWork::begin(std::int64_t now, std::int64_t duration, double factor) {
  stretch = factor;
  end = now + std::llround(static_cast<double>(duration) * factor);
  ++version;
}

void StretchedWork::retime(std::int64_t now, double factor) {
  end = now + std::llround(static_cast<double>(end - now) / stretch * factor);
  stretch = factor;
  ++version;
}

Network::Network(const sc_core::sc_module_name& name) : sc_module(name) {
  SC_HAS_PROCESS(Network);
  SC_METHOD(step);
  sensitive << next_;
  dont_initialize();
}

void Network::configure(const CommMachine& machine) {
  machine_ = &machine;
  servers_.clear();
}

ByteServer& Network::server(ResourceId id) {
  ByteServer& each = servers_[static_cast<std::size_t>(id)];
  if (!each.ready) each.server.configure(machine_->rate(id)), each.ready = true;
  return each;
}

void Network::reset(CommListener& listener) {
  listener_ = &listener;
  due_ = {};
  running_.clear();
  servers_.clear();  // free since time zero
  began_ = now_ps();
}

void Network::start(std::uint32_t comm, const CommProfile& profile, std::int64_t time) {
  if (comm >= running_.size()) running_.resize(comm + 1);
  running_[comm] = {&profile, 0, false, {}};
  wake({time, true, comm, 0});
}

void Network::set_stretch(std::uint32_t comm, double factor) {
  StretchedWork& work = running_[comm].work;
  if (!running_[comm].in_phase || factor == work.stretch) return;
  work.retime(now_ps(), factor);
  wake({work.end, true, comm, work.version});
}

void Network::wake(const Due& due) {
  due_.push(due);
  next_.notify(duration_ps(due.time - now_ps()));
}

void Network::step() {
  while (!due_.empty() && due_.top().time <= now_ps()) {
    while (!due_.empty() && due_.top().time <= now_ps()) {
      const Due due = due_.top();
      due_.pop();
      if (!due.is_comm) {
        listener_->rank_due(static_cast<int>(due.id), due.version);
      } else if (due.version == running_[due.id].work.version) {
        running_[due.id].in_phase = false;
        now_due_.push_back(due.id);
      }
    }
    next_phases();
  }
  if (!due_.empty()) next_.notify(duration_ps(due_.top().time - now_ps()));
}

void Network::next_phases() {
  std::vector<std::uint32_t> due;
  due.swap(now_due_);
  asked_.clear();
  for (const std::uint32_t comm : due) {
    const Running& running = running_[comm];
    if (running.next_phase == running.profile->phases.size()) continue;
    const auto& loads = running.profile->phases[running.next_phase].loads;
    asked_.insert(asked_.end(), loads.begin(), loads.end());
  }
  serve(now_ps());
  for (const std::uint32_t comm : due) {
    if (running_[comm].next_phase == running_[comm].profile->phases.size()) {
      listener_->comm_ended(comm, now_ps());
    } else {
      begin_phase(comm);
    }
  }
}

/// Each server takes what is asked of it as one piece.
void Network::serve(std::int64_t now) {
  std::sort(asked_.begin(), asked_.end(),
            [](const auto& a, const auto& b) { return a.resource < b.resource; });
  for (std::size_t i = 0; i < asked_.size();) {
    const ResourceId resource = asked_[i].resource;
    std::int64_t bytes = 0;
    for (; i < asked_.size() && asked_[i].resource == resource; ++i) bytes += asked_[i].bytes;
    ByteServer& each = server(resource);
    const std::int64_t end = each.server.finish_time(now, bytes),
                       duration = each.server.duration(bytes);
    each.busy += duration;
    each.bytes += bytes;
    if (machine_->is_link(resource)) each.history.add(end - duration - began_, end - began_, bytes);
  }
}

void Network::begin_phase(std::uint32_t comm) {
  Running& running = running_[comm];
  const CommPhase& phase = running.profile->phases[running.next_phase++];
  const std::int64_t now = now_ps();
  std::int64_t end = now + phase.alone;
  for (const auto& load : phase.loads) end = std::max(end, server(load.resource).server.free_at());
  running.in_phase = true;
  running.work.begin(now, end - now, listener_->phase_began(comm, phase));
  wake({running.work.end, true, comm, running.work.version});
}

std::vector<Network::Usage> Network::usage() const {
  std::vector<Usage> used;
  servers_.for_each([&](std::size_t id, const ByteServer& each) {
    if (each.bytes > 0)
      used.push_back(
          {static_cast<ResourceId>(id), Picoseconds(each.busy), Bytes(each.bytes), &each.history});
  });
  return used;
}

}  // namespace trellis::sim
