#include "sim/systemc/network.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "sim/config/load_system.h"
#include "sim/systemc/kernel_thread.h"
#include "sim/systemc/time.h"

namespace trellis::sim {
namespace {

/// Notes what the network says; `on_phase` may answer with a factor or change others.
struct Notes final : CommListener {
  std::map<std::uint32_t, std::int64_t> ends;
  std::map<std::uint32_t, int> times_ended;
  std::map<int, std::int64_t> woken;
  std::function<double(std::uint32_t)> on_phase = [](std::uint32_t) { return 1.0; };

  double phase_began(std::uint32_t comm, const CommPhase&) override { return on_phase(comm); }
  void comm_ended(std::uint32_t comm, std::int64_t end) override {
    ends[comm] = end;
    ++times_ended[comm];
  }
  void rank_due(int rank, std::uint32_t) override { woken[rank] = now_ps(); }
};

/// The module alone, on its kernel: link 0 of a Trn1 node, at 1 byte per nanosecond for easy
/// figures.
class NetworkModule : public ::testing::Test {
 protected:
  void run(const std::function<void(Network&)>& use) {
    KernelThread::instance().run([&] {
      auto* network = new Network("network");  // SystemC keeps modules until the end
      network->configure(machine_);
      elaborate_once();
      network->reset(notes_);
      base_ = now_ps();
      use(*network);
      run_until_idle();
      used_ = network->usage();
    });
  }
  static SystemConfig slow_links() {
    SystemConfig system = load_system("trn1.32xlarge");
    system.instance.on_chip.bandwidth = BytesPerSecond(1e9);
    return system;
  }
  static CommProfile phases(int count, std::int64_t alone, std::int64_t bytes) {
    return {std::vector<CommPhase>(static_cast<std::size_t>(count), {alone, {{0, bytes}}}), 0};
  }

  const CommMachine machine_{slow_links()};
  Notes notes_;
  std::int64_t base_ = 0;
  std::vector<Network::Usage> used_;
};

TEST_F(NetworkModule, PhasesFollowEachOther) {
  const CommProfile profile = phases(3, 1000, 1);  // 1 byte: 1,000 ps
  run([&](Network& network) { network.start(0, profile, base_ + 500); });
  EXPECT_EQ(notes_.ends[0], base_ + 3500);
  ASSERT_EQ(used_.size(), 1u);
  EXPECT_EQ(used_[0].bytes.value, 3);
  EXPECT_EQ(used_[0].busy.value, 3000);
}

TEST_F(NetworkModule, TwoOnOneLinkTakeTurns) {
  const CommProfile profile = phases(4, 1000, 1);
  run([&](Network& network) {
    network.start(0, profile, base_);
    network.start(1, profile, base_ + 500);
  });
  EXPECT_EQ(notes_.ends[0], base_ + 7000);
  EXPECT_EQ(notes_.ends[1], base_ + 8000);
}

TEST_F(NetworkModule, EqualOnesThatBeginTogetherEndTogether) {
  const CommProfile profile = phases(4, 1000, 1);
  run([&](Network& network) {
    for (const std::uint32_t comm : {2u, 0u, 1u}) network.start(comm, profile, base_);
  });
  for (const std::uint32_t comm : {0u, 1u, 2u}) EXPECT_EQ(notes_.ends[comm], base_ + 12000);
  EXPECT_EQ(used_[0].bytes.value, 12);
}

TEST_F(NetworkModule, OneThatIsChangedAtTheEndOfItsPhaseEndsOnce) {
  const CommProfile profile = phases(1, 1000, 0);
  const CommProfile longer = phases(2, 1000, 0);
  run([&](Network& network) {
    notes_.on_phase = [&](std::uint32_t comm) {
      if (comm == 0)
        network.set_stretch(1, 2);  // at its end, too, when comm 0 begins its second phase
      return 1.0;
    };
    network.start(0, longer, base_);
    network.start(1, profile, base_);
  });
  EXPECT_EQ(notes_.ends[0], base_ + 2000);
  EXPECT_EQ(notes_.ends[1], base_ + 1000);
  EXPECT_EQ(notes_.times_ended[1], 1);
}

TEST_F(NetworkModule, AFactorStretchesWhatIsLeft) {
  const CommProfile profile = phases(1, 1000, 1);
  const CommProfile other = phases(1, 100, 0);
  run([&](Network& network) {
    notes_.on_phase = [&](std::uint32_t comm) {
      if (comm == 1) network.set_stretch(0, 3);  // 400 ps into its phase
      return 1.0;
    };
    network.start(0, profile, base_);
    network.start(1, other, base_ + 400);
  });
  EXPECT_EQ(notes_.ends[0], base_ + 400 + 3 * 600);
}

TEST_F(NetworkModule, RanksAreWokenInTime) {
  run([&](Network& network) {
    network.wake_rank(5, 1, base_ + 700);
    network.wake_rank(6, 1, base_ + 200);
  });
  EXPECT_EQ(notes_.woken[5], base_ + 700);
  EXPECT_EQ(notes_.woken[6], base_ + 200);
}

}  // namespace
}  // namespace trellis::sim
