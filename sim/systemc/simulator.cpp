#include <atomic>
#include <memory>
#include <optional>

#include "base/error.h"
#include "sim/cluster/collective_timing.h"
#include "sim/cluster/comm_profiler.h"
#include "sim/cluster/symmetry.h"
#include "sim/collectives/stage_steps.h"
#include "sim/sim.h"
#include "sim/systemc/cluster_run.h"
#include "sim/systemc/core_pair.h"
#include "sim/systemc/kernel_thread.h"

namespace trellis::sim {
namespace {

/// Everything that SystemC elaborates. Built once, on the kernel's thread, and configured again by
/// each Simulator.
struct Model {
  CorePair pair{"pair"};
  Network network{"network"};
};

/// REQUIRES: kernel thread.
Model& model() {
  // Never destroyed: SystemC's own registry outlives no static of ours.
  static auto* the_model = new Model;
  return *the_model;
}

std::atomic<bool> simulator_exists = false;

}  // namespace

struct Simulator::Impl {
  explicit Impl(const SystemConfig& config) : system(config), machine(system) {
    KernelThread::instance().run([this] {
      model().pair.configure(system);
      model().network.configure(machine);
    });
  }

  const SystemConfig system;
  const CommMachine machine;
  CommTraffic traffic{machine};
};

Simulator::Simulator(const SystemConfig& config) {
  if (simulator_exists.exchange(true)) {
    throw Error(ExitCode::kInternal,
                "a Simulator exists already in this process: SystemC has one kernel, so destroy "
                "the other one first");
  }
  try {
    impl_ = std::make_unique<Impl>(config);
  } catch (...) {
    simulator_exists = false;
    throw;
  }
}

Simulator::~Simulator() { simulator_exists = false; }

CoreTiming Simulator::time_program(const isa::Program& program, const TimeOptions& options) {
  CoreTiming timing;
  KernelThread::instance().run([&] { timing = model().pair.time(program, options); });
  return timing;
}

PairTiming Simulator::time_pair(const isa::Program& core0, const isa::Program& core1,
                                const TimeOptions& options) {
  PairTiming timing;
  KernelThread::instance().run([&] { timing = model().pair.time_both(core0, core1, options); });
  return timing;
}

ClusterTiming Simulator::run_cluster(const ClusterJob& job) {
  ClusterTiming timing;
  if (job.fold.empty()) impl_->traffic.bound();
  KernelThread::instance().run([&] {
    timing = ClusterRun(impl_->system, impl_->machine, impl_->traffic, model().network, job).run();
  });

  return timing;
}

Picoseconds Simulator::makespan_without_slow_parts(const ClusterJob& job) {
  SystemConfig system = impl_->system;
  system.slow = {};
  const CommMachine machine(system);
  CommTraffic traffic(machine);
  std::vector<std::size_t> sources;
  const ClusterJob split =
      job.fold.empty() ? job : unfold(job, sim::equal_ranks(job, machine, traffic), sources);
  Picoseconds makespan;
  KernelThread::instance().run([&] {
    const auto configured = [](const CommMachine* of) { model().network.configure(*of); };
    configured(&machine);
    const std::unique_ptr<const CommMachine, decltype(configured)> before(&impl_->machine,
                                                                          configured);
    makespan = ClusterRun(system, machine, traffic, model().network, split).run().makespan;
  });
  return makespan;
}

RankFold Simulator::equal_ranks(const ClusterJob& job) const {
  impl_->traffic.bound();
  return sim::equal_ranks(job, impl_->machine, impl_->traffic);
}

CollectiveTiming Simulator::time_collective(const CollectiveRequest& request) const {
  return sim::time_collective(impl_->machine, request);
}

}  // namespace trellis::sim
