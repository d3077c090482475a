#pragma once

#include <optional>
#include <semaphore>

namespace trellis::checkpoint::native {

/// A limit of the threads that do something at the same time; none: there is no limit.
using Gate = std::optional<std::counting_semaphore<>>;

/// Holds one place of the gate for as long as it lives.
class GatePass {
 public:
  explicit GatePass(Gate& gate) : gate_(gate) {
    if (gate_) gate_->acquire();
  }
  ~GatePass() {
    if (gate_) gate_->release();
  }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;

 private:
  Gate& gate_;
};

}  // namespace trellis::checkpoint::native
