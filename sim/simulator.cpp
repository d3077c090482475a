#include <atomic>
#include <optional>

#include "base/error.h"
#include "sim/cluster/cluster_run.h"
#include "sim/kernel/kernel_thread.h"
#include "sim/neuron_core/neuron_core.h"
#include "sim/sim.h"

namespace trellis::sim {
namespace {

/// Everything that SystemC elaborates. Built once, on the kernel's thread, and configured anew by each Simulator.
struct Model {
  NeuronCore core{"core"};
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
  explicit Impl(const SystemConfig& config) : system(config), topology(system) {
    KernelThread::instance().run([this] {
      model().core.configure(system);
      model().network.configure(topology);
    });
  }

  const SystemConfig system;
  const Topology topology;
};

Simulator::Simulator(const SystemConfig& config) {
  if (simulator_exists.exchange(true)) {
    throw Error(ExitCode::kInternal, "a Simulator exists already in this process: SystemC has one kernel, so destroy the other one first");
  }
  try {
    impl_ = std::make_unique<Impl>(config);
  } catch (...) {
    simulator_exists = false;
    throw;
  }
}

Simulator::~Simulator() { simulator_exists = false; }

CoreTiming Simulator::time_program(const isa::Program& program) {
  CoreTiming timing;
  KernelThread::instance().run([&] { timing = model().core.time(program); });
  return timing;
}

ClusterTiming Simulator::run_cluster(const ClusterJob& job) {
  ClusterTiming timing;
  KernelThread::instance().run([&] { timing = ClusterRun(impl_->system, impl_->topology, model().network, job).run(); });
  return timing;
}

}  // namespace trellis::sim
