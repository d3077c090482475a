#pragma once

#include <array>
#include <memory>
#include <span>
#include <systemc>
#include <vector>

#include "sim/systemc/fast_forward.h"
#include "sim/systemc/hbm.h"
#include "sim/systemc/neuron_core.h"
#include "sim/systemc/sequencer.h"

namespace trellis::sim {

/// Two NeuronCores on one HBM stack, of which one or both run. Times one program, or one on each
/// core, at a time: they are started, the kernel runs until nothing is left to do, and the timing
/// is read off.
class CorePair final : public sc_core::sc_module {
 public:
  explicit CorePair(const sc_core::sc_module_name& name);

  void configure(const SystemConfig& system);
  /// Runs every segment of the program on the first core; calls sc_start. Throws Error when a
  /// segment deadlocks.
  [[nodiscard]] CoreTiming time(const isa::Program& program, const TimeOptions& options);
  /// Both cores begin every segment together.
  [[nodiscard]] PairTiming time_both(const isa::Program& first, const isa::Program& second,
                                     const TimeOptions& options);

 private:
  using Programs = std::span<const isa::Program* const>;
  using Queues = std::array<std::vector<ResolvedQueue>, 2>;

  [[nodiscard]] BytesPerSecond bandwidth_with_neighbour(BytesPerSecond neighbour_load) const;
  /// The timing of the segment on each core.
  std::vector<SegmentTiming> time_segment(Programs programs, std::size_t index,
                                          const TimeOptions& options);
  void start(Programs programs, const Queues& queues, bool fast_forward, std::int64_t now);
  void check_finished(Programs programs, std::size_t segment) const;

  SystemConfig system_;
  Hbm stack_{"hbm"};
  Sequencer sequencer_{"sequencer"};
  FastForward fast_forward_;
  std::array<std::unique_ptr<NeuronCore>, 2> cores_;
};

}  // namespace trellis::sim
