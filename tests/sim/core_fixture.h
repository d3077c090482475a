#pragma once

#include <gtest/gtest.h>

#include <systemc>

#include "sim/systemc/neuron_core.h"

namespace trellis::sim {

/// One elaboration per process: ctest runs each case alone.
class SystemCTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sc_core::sc_get_status() != sc_core::SC_ELABORATION)
      FAIL() << "SystemC elaborates once per process: run one case at a time (ctest)";
  }
};

}  // namespace trellis::sim
