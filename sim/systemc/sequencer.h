#pragma once

#include <systemc>
#include <vector>

#include "sim/neuron_core/turn.h"
#include "sim/systemc/engine.h"

namespace trellis::sim {

/// Lets the engines of the machine act in the order of their next times: the one process by which
/// engines live. It goes on by itself until a DMA queue, another process of the kernel, may act
/// first, so that every semaphore and port is final when an engine looks at it.
class Sequencer final : public sc_core::sc_module, public Turn {
 public:
  explicit Sequencer(const sc_core::sc_module_name& name);

  /// Takes on engines that have been started. They live until the run is over.
  void start(std::vector<Engine*> engines);

 private:
  void advance();
  void wake(std::int64_t time) override;
  /// The engine that acts next, null when none does; sets `limit_`.
  [[nodiscard]] Engine* next();

  std::vector<Engine*> engines_;  ///< by number
  sc_core::sc_event wake_;
};

}  // namespace trellis::sim
