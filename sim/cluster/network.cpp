#include "sim/cluster/network.h"

#include <algorithm>
#include <cmath>

#include "sim/kernel/time.h"

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
  servers_.assign(machine.resource_count(), {});
  for (std::size_t id = 0; id < servers_.size(); ++id) {
    const BytesPerSecond rate = machine.rate(static_cast<ResourceId>(id));
    if (rate.value > 0) servers_[id].server.configure(rate);
  }
}

void Network::reset(CommListener& listener) {
  listener_ = &listener;
  due_ = {};
  running_.clear();
  for (ByteServer& each : servers_) {
    each.server.reset(now_ps());
    each.busy = each.bytes = 0;
  }
}

void Network::start(std::uint32_t comm, const CommProfile& profile, std::int64_t time) {
  if (comm >= running_.size()) running_.resize(comm + 1);
  running_[comm] = {&profile, 0, {}};
  wake({time, true, comm, 0});
}

void Network::set_stretch(std::uint32_t comm, double factor) {
  StretchedWork& work = running_[comm].work;
  if (factor == work.stretch) return;
  work.retime(now_ps(), factor);
  wake({work.end, true, comm, work.version});
}

void Network::wake(const Due& due) {
  due_.push(due);
  next_.notify(duration_ps(due.time - now_ps()));
}

void Network::step() {
  while (!due_.empty() && due_.top().time <= now_ps()) {
    const Due due = due_.top();
    due_.pop();
    if (!due.is_comm) {
      listener_->rank_due(static_cast<int>(due.id), due.version);
    } else if (due.version == running_[due.id].work.version) {
      next_phase(due.id, due.time);
    }
  }
  if (!due_.empty()) next_.notify(duration_ps(due_.top().time - now_ps()));
}

void Network::next_phase(std::uint32_t comm, std::int64_t time) {
  Running& running = running_[comm];
  if (running.next_phase == running.profile->phases.size()) return listener_->comm_ended(comm, time);
  const CommPhase& phase = running.profile->phases[running.next_phase++];
  std::int64_t end = time + phase.alone;
  for (const auto& load : phase.loads) {
    ByteServer& each = servers_[static_cast<std::size_t>(load.resource)];
    end = std::max(end, each.server.finish_time(time, load.bytes));
    each.busy += each.server.duration(load.bytes);
    each.bytes += load.bytes;
  }
  running.work.begin(time, end - time, listener_->phase_began(comm, phase));
  wake({running.work.end, true, comm, running.work.version});
}

std::vector<LinkUsage> Network::usage() const {
  std::vector<LinkUsage> used;
  for (ResourceId id = 0; static_cast<std::size_t>(id) < servers_.size() && machine_->is_link(id); ++id) {
    const ByteServer& each = servers_[static_cast<std::size_t>(id)];
    if (each.bytes > 0) used.push_back({machine_->name(id), Picoseconds(each.busy), Bytes(each.bytes)});
  }
  std::sort(used.begin(), used.end(), [](const LinkUsage& a, const LinkUsage& b) { return a.name < b.name; });
  return used;
}

}  // namespace trellis::sim
