#pragma once

#include <map>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trellis::runtime::testing {

/// Gloo's process groups, the baseline. A group of Gloo's knows its members by number only, so one
/// set of sockets serves every group of a size: groups are made once per process and lent to
/// program after program.
class GlooGroups {
 public:
  /// The members of the `nth` group of `size` members; call it from one thread. Each member speaks
  /// on a separate thread.
  const std::vector<c10::intrusive_ptr<c10d::Backend>>& lend(int size, int nth);

 private:
  std::map<std::pair<int, int>, std::vector<c10::intrusive_ptr<c10d::Backend>>> groups_;
};

}  // namespace trellis::runtime::testing
