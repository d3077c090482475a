#include <gtest/gtest.h>

#include <utility>

#include "device/kernels/catalogue.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"

namespace trellis::device {
namespace {

/// Every kernel of the catalogue, in its default size: loops that are skipped and loops that are
/// executed take the same time.
TEST(KernelFastForward, EqualsStepByStep) {
  for (const auto& [instance, traces] : {std::pair{"trn1.32xlarge", false},
                                         {"trn2.48xlarge", false},
                                         {"trn2.48xlarge", true},
                                         {"trn3-gen1", false}}) {
    const sim::SystemConfig system = sim::load_system(
        instance, {.logical_core_size = 1, .overrides = {}, .instruction_traces = traces});
    sim::Simulator simulator(system);
    for (const KernelSpec& spec : kernel_catalogue()) {
      KernelRequest request;
      request.name = spec.name;
      const auto program = build_kernel(complete(request, system), system).program;
      EXPECT_EQ(simulator.time_program(program),
                simulator.time_program(program, {.fast_forward = false, .neighbour_load = {}}))
          << instance << (traces ? ", numbers of traces: " : ": ") << spec.name;
    }
  }
}

}  // namespace
}  // namespace trellis::device
