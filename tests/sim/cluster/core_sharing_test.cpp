#include "sim/cluster/core_sharing.h"
#include "sim/config/load_system.h"

#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

class CoreSharingRules : public ::testing::Test {
 protected:
  /// A second that asks for this share of the HBM of each core.
  void enter(std::uint32_t comm, const CommPhase& phase) {
    sharing_.enter_phase(comm, phase.alone, phase.loads);
  }
  [[nodiscard]] CommPhase phase(double share, const std::vector<int>& cores) const {
    CommPhase phase{1'000'000'000'000, {}};
    for (const int core : cores)
      phase.loads.push_back({machine_.hbm_of(core), static_cast<std::int64_t>(share * hbm_)});
    return phase;
  }

  const SystemConfig system_ = load_system("trn1.32xlarge");
  const CommMachine machine_{system_};
  const double hbm_ = system_.chip.hbm_bandwidth.value / 2;
  CoreSharing sharing_{system_, machine_};
};

TEST_F(CoreSharingRules, NothingIsStretchedAlone) {
  sharing_.start_segment(3, {hbm_, 0});
  EXPECT_EQ(sharing_.stretch_of_core(3), 1);
  enter(7, phase(1, {4, 5}));
  EXPECT_EQ(sharing_.stretch_of_comm(7), 1);
  EXPECT_EQ(sharing_.stretch_of_core(4), 1);
}

TEST_F(CoreSharingRules, TheExcessStretchesAllAlike) {
  sharing_.start_segment(3, {0.8 * hbm_, 0});
  enter(7, phase(0.7, {2, 3}));
  EXPECT_NEAR(sharing_.stretch_of_core(3), 1.5, 1e-9);
  EXPECT_NEAR(sharing_.stretch_of_comm(7), 1.5, 1e-9);
  enter(8, phase(0.5, {3}));
  EXPECT_NEAR(sharing_.stretch_of_core(3), 2, 1e-9);
  enter(7, phase(0.1, {2, 3}));  // its next phase asks for less
  EXPECT_NEAR(sharing_.stretch_of_core(3), 1.4, 1e-9);
  sharing_.leave(8);
  EXPECT_EQ(sharing_.stretch_of_core(3), 1);
}

TEST_F(CoreSharingRules, ACommunicationIsAsSlowAsItsSlowestCore) {
  enter(7, phase(0.6, {0, 1, 2}));
  sharing_.start_segment(0, {0.5 * hbm_, 0});
  sharing_.start_segment(2, {0.9 * hbm_, 0});
  EXPECT_NEAR(sharing_.stretch_of_comm(7), 1.5, 1e-9);
  sharing_.end_segment(2);
  EXPECT_NEAR(sharing_.stretch_of_comm(7), 1.1, 1e-9);
}

TEST_F(CoreSharingRules, DmaEnginesAreSharedToo) {
  const double engines = system_.chip.core.dma.engine_rate.value * system_.chip.core.dma.engines;
  CommPhase half{1'000'000'000'000, {{machine_.dma_of(0), static_cast<std::int64_t>(engines / 2)}}};
  enter(1, half);
  sharing_.start_segment(0, {0, engines});
  EXPECT_NEAR(sharing_.stretch_of_core(0), 1.5, 1e-9);
}

}  // namespace
}  // namespace trellis::sim
