#include "sim/systemc/hbm.h"

#include <gtest/gtest.h>
#include <tlm_utils/simple_initiator_socket.h>

#include "tests/sim/core_fixture.h"

namespace trellis::sim {
namespace {

/// A TLM driver: asks a stack for bytes and reads when they are through.
class Driver final : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<Driver> hbm{"hbm"};
  explicit Driver(const sc_core::sc_module_name& name) : sc_module(name) {}

  std::int64_t ask(std::int64_t at, unsigned bytes) {
    tlm::tlm_generic_payload payload;
    payload.set_data_length(bytes);
    sc_core::sc_time delay = sc_core::sc_time::from_value(static_cast<sc_dt::uint64>(at));
    hbm->b_transport(payload, delay);
    EXPECT_EQ(payload.get_response_status(), tlm::TLM_OK_RESPONSE);
    return static_cast<std::int64_t>(delay.value());
  }
};

class HbmTest : public SystemCTest {
 protected:
  HbmTest() {
    stack_.configure(BytesPerSecond(725e9));
    a_.hbm.bind(stack_.target);
    b_.hbm.bind(stack_.target);
  }
  void SetUp() override {
    SystemCTest::SetUp();
    sc_core::sc_start(sc_core::SC_ZERO_TIME);
  }
  Hbm stack_{"stack"};
  Driver a_{"a"};
  Driver b_{"b"};
};

TEST_F(HbmTest, OneCoreAloneMayUseItAll) {
  EXPECT_NEAR(static_cast<double>(a_.ask(0, 725'000)), 1e6, 1);
}

TEST_F(HbmTest, TwoCoresShareIt) {
  std::int64_t last = 0;
  for (int n = 0; n < 100; ++n) last = std::max(a_.ask(0, 7'250), b_.ask(0, 7'250));
  EXPECT_NEAR(static_cast<double>(last), 2e6, 200);
}

TEST_F(HbmTest, AnIdleStackServesAtOnce) {
  const std::int64_t first = a_.ask(0, 725);
  EXPECT_EQ(b_.ask(first + 5000, 725), first + 5000 + first);
}

}  // namespace
}  // namespace trellis::sim
