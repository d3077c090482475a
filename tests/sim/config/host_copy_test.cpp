#include "sim/config/host_copy.h"
#include "sim/config/load_system.h"

#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

/// Neuron driver: a descriptor of 64 KB takes about 4 us on Trn1, 2 us on Trn2.
TEST(HostCopy, MovesAtThePcieRateAfterItsLatency) {
  for (const auto& [instance, us] :
       {std::pair{"trn1.32xlarge", 4.0}, std::pair{"trn2.48xlarge", 2.0}}) {
    const ChipConfig chip = load_system(instance, 1).chip;
    EXPECT_EQ(host_copy_time(Bytes(0), chip), chip.host_write_latency);
    EXPECT_NEAR(to_seconds(host_copy_time(Bytes(64 << 10), chip) - chip.host_write_latency) * 1e6,
                us, 0.1 * us)
        << instance;
  }
}

TEST(HostCopy, ManyCopiesShareTheEngines) {
  const ChipConfig chip = load_system("trn2.48xlarge", 1).chip;
  const Bytes large(1 << 30);
  EXPECT_EQ(host_copy_time(large, chip, chip.host_dma_engines), host_copy_time(large, chip));
  const double alone = to_seconds(host_copy_time(large, chip));
  EXPECT_NEAR(to_seconds(host_copy_time(large, chip, 2 * chip.host_dma_engines)), 2 * alone,
              0.01 * alone);
}

}  // namespace
}  // namespace trellis::sim
