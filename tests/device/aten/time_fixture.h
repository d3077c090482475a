#pragma once

#include <cstdlib>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>

#include "device/aten/state/observer.h"
#include "device/aten/state/rank_state.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/session.h"
#include "device/driver/timing/rank_clock.h"

/// Two devices with a session for them, so that time passes on them. One test case per process:
/// a device is configured once.
namespace trellis::device::testing {

inline at::Device neuron(int index = 0) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

class TimedDevice : public ::testing::Test {
 protected:
  explicit TimedDevice(bool several_streams = false) {
    setenv("NEURON_RT_ENABLE_HOST_CC", several_streams ? "1" : "0", 1);
    session = new Session({.instance = "trn2.48xlarge",
                           .world_size = 2});  // never destroyed: tensors outlive the test
    install_scope_observer();
    configure_devices({{&session->rank(0), false}, {&session->rank(1), false}});
    at::set_num_threads(1);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    bind_this_thread(0);
  }

  static at::Tensor ones(std::int64_t n, at::ScalarType type = at::kFloat) {
    return at::ones({n, n}, at::TensorOptions(type).device(neuron()));
  }

  static c10::Event mark(c10::Stream stream,
                         c10::EventFlag flag = c10::EventFlag::BACKEND_DEFAULT) {
    c10::Event event(c10::kPrivateUse1, flag);
    event.record(stream);
    return event;
  }

  RankRecorder& recorder() { return session->rank(0); }
  /// Names of the finished graphs, in order.
  std::vector<std::string> graphs() {
    std::vector<std::string> names;
    for (const GraphInstance& i : recorder().impl().step.instances)
      names.push_back(recorder().impl().graphs[i.graph].name);
    return names;
  }

  Session* session = nullptr;
};

}  // namespace trellis::device::testing
