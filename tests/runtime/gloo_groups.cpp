// LibTorch's wheel holds ProcessGroupGloo, not Gloo's headers: those are the system's.
#define USE_C10D_GLOO
#include "tests/runtime/gloo_groups.h"

#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace trellis::runtime::testing {

const std::vector<c10::intrusive_ptr<c10d::Backend>>& GlooGroups::lend(int size, int nth) {
  auto& members = groups_[{size, nth}];
  if (!members.empty()) return members;
  static const auto device = c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  members.resize(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;  // each member's constructor waits for the others
  for (int m = 0; m < size; ++m) {
    threads.emplace_back([&, m] {
      auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
      options->devices = {device};
      members[static_cast<std::size_t>(m)] =
          c10::make_intrusive<c10d::ProcessGroupGloo>(store, m, size, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return members;
}

}  // namespace trellis::runtime::testing
