#include "sim/cluster/network.h"

#include <algorithm>

#include "sim/kernel/time.h"

namespace trellis::sim {

Network::Network(const sc_core::sc_module_name& name) : sc_module(name) {
  SC_HAS_PROCESS(Network);
  SC_METHOD(step);
  sensitive << next_;
  dont_initialize();
}

void Network::configure(const Topology& topology) {
  topology_ = &topology;
  links_.assign(topology.link_count(), {});
  for (std::size_t id = 0; id < links_.size(); ++id) {
    const LinkConfig& link = topology.link(static_cast<LinkId>(id));
    if (link.bandwidth.value > 0) links_[id].server.configure(link.bandwidth);
  }
}

void Network::reset(CommListener& listener) {
  listener_ = &listener;
  due_ = {};
  for (Link& link : links_) {
    link.server.reset(now_ps());
    link.busy = link.bytes = 0;
  }
}

void Network::start(std::uint32_t comm, const CommProfile& profile, std::int64_t time) {
  due_.push({time, comm, 0, &profile});
  next_.notify(duration_ps(time - now_ps()));
}

void Network::step() {
  while (!due_.empty() && due_.top().time <= now_ps()) {
    const Due due = due_.top();
    due_.pop();
    run_phase(due);
  }
  if (!due_.empty()) next_.notify(duration_ps(due_.top().time - now_ps()));
}

void Network::run_phase(const Due& due) {
  const auto& phases = due.profile->phases;
  if (phases.empty()) return listener_->comm_ended(due.comm, due.time);
  const CommPhase& phase = phases[due.phase];
  std::int64_t end = due.time + phase.alone;
  for (const auto& load : phase.loads) {
    Link& link = links_[static_cast<std::size_t>(load.link)];
    end = std::max(end, link.server.finish_time(due.time, load.bytes));
    link.busy += link.server.duration(load.bytes);
    link.bytes += load.bytes;
  }
  if (due.phase + 1 == phases.size()) return listener_->comm_ended(due.comm, end);
  due_.push({end, due.comm, due.phase + 1, due.profile});
}

std::vector<LinkUsage> Network::usage() const {
  std::vector<LinkUsage> used;
  for (std::size_t id = 0; id < links_.size(); ++id) {
    const Link& link = links_[id];
    if (link.bytes > 0) used.push_back({topology_->link_name(static_cast<LinkId>(id)), Picoseconds(link.busy), Bytes(link.bytes)});
  }
  std::sort(used.begin(), used.end(), [](const LinkUsage& a, const LinkUsage& b) { return a.name < b.name; });
  return used;
}

}  // namespace trellis::sim
