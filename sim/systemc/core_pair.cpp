#include "sim/systemc/core_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "sim/neuron_core/resolved_queue.h"
#include "sim/systemc/time.h"

namespace trellis::sim {
namespace {

void reject_pair_instructions(const isa::Program& program) {
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const auto& queue : program.segments[s].queues) {
      for (const auto& i : queue) {
        if (i.opcode != isa::Opcode::kCoreBarrier && i.opcode != isa::Opcode::kSendRecv) continue;
        throw ConfigError(
            fmt::format("program \"{}\", segment {}: {} meets the pair's other core, but the "
                        "program runs alone: time both programs as a pair",
                        program.name, s, isa::name(i.opcode)));
      }
    }
  }
}

void check_pair(const SystemConfig& system, const isa::Program& first, const isa::Program& second) {
  if (system.instance.logical_core_size != 1 || system.chip.cores_per_hbm_stack != 2) {
    throw ConfigError(fmt::format(
        "{}: a pair is two physical cores on one HBM stack; expected logical core size 1 and 2 "
        "cores per stack, got {} and {}",
        system.instance.name, system.instance.logical_core_size, system.chip.cores_per_hbm_stack));
  }
  if (first.segments.size() != second.segments.size()) {
    throw ConfigError(
        fmt::format("pair of \"{}\" and \"{}\": both cores need the same segments, got {} and {}",
                    first.name, second.name, first.segments.size(), second.segments.size()));
  }
}

}  // namespace

CorePair::CorePair(const sc_core::sc_module_name& name) : sc_module(name) {
  cores_[0] = std::make_unique<NeuronCore>("core0", nullptr, stack_, sequencer_);
  cores_[1] = std::make_unique<NeuronCore>("core1", cores_[0].get(), stack_, sequencer_);
}

void CorePair::configure(const SystemConfig& system) {
  system_ = system;
  for (auto& core : cores_) core->configure(system.chip.core);
}

/// The stack serves its cores alike: what the neighbour does not ask for is free, and it never
/// takes more than its share.
BytesPerSecond CorePair::bandwidth_with_neighbour(BytesPerSecond neighbour_load) const {
  const double stack = system_.hbm_stack_bandwidth().value;
  if (neighbour_load.value == 0) return BytesPerSecond(stack);
  if (system_.chip.cores_per_hbm_stack <= system_.instance.logical_core_size) {
    throw ConfigError(
        fmt::format("{}: no neighbour shares an HBM stack with a core of logical size {}; expected "
                    "no neighbour load, got {}",
                    system_.instance.name, system_.instance.logical_core_size,
                    fmt::format("{:.1f} GB/s", neighbour_load.value / 1e9)));
  }
  return BytesPerSecond(
      std::max(stack - neighbour_load.value, stack / system_.chip.cores_per_hbm_stack));
}

CoreTiming CorePair::time(const isa::Program& program, const TimeOptions& options) {
  reject_pair_instructions(program);
  elaborate_once();
  stack_.configure(bandwidth_with_neighbour(options.neighbour_load));
  const isa::Program* const programs[] = {&program};
  CoreTiming timing;
  timing.segments.reserve(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s)
    timing.segments.push_back(std::move(time_segment(programs, s, options)[0]));
  return timing;
}

PairTiming CorePair::time_both(const isa::Program& first, const isa::Program& second,
                               const TimeOptions& options) {
  check_pair(system_, first, second);
  elaborate_once();
  stack_.configure(system_.hbm_stack_bandwidth());
  const isa::Program* const programs[] = {&first, &second};
  PairTiming timing;
  for (std::size_t s = 0; s < first.segments.size(); ++s) {
    auto segments = time_segment(programs, s, options);
    timing.duration += std::max(segments[0].duration, segments[1].duration);
    for (std::size_t c = 0; c < 2; ++c) timing.cores[c].segments.push_back(std::move(segments[c]));
  }
  return timing;
}

void CorePair::start(Programs programs, const Queues& queues, bool fast_forward, std::int64_t now) {
  stack_.reset(now);
  std::vector<Engine*> engines;
  std::vector<RepeatingCore*> cores;
  for (std::size_t c = 0; c < programs.size(); ++c) {
    NeuronCore* peer = programs.size() == 2 ? cores_[1 - c].get() : nullptr;
    cores_[c]->start(queues[c], peer, fast_forward ? &fast_forward_ : nullptr,
                     programs[c]->kernels.size(), now);
    cores.push_back(cores_[c].get());
    for (Engine* engine : cores_[c]->engines()) engines.push_back(engine);
  }
  fast_forward_.start(engines, cores);
  sequencer_.start(engines);
}

std::vector<SegmentTiming> CorePair::time_segment(Programs programs, std::size_t index,
                                                  const TimeOptions& options) {
  for (const auto& core : cores_) {
    core->meter().keep_pieces(options.pieces);
    core->keep_instructions(options.instructions);
    core->set_clock_grid(options.clock_grid.value);
  }
  Queues queues;
  for (std::size_t c = 0; c < programs.size(); ++c)
    queues[c] = resolve_segment(*programs[c], programs[c]->segments[index], cores_[c]->config(),
                                c == 0 ? options.given : std::vector<GivenTransfer>());
  const std::int64_t now = now_ps();
  start(programs, queues, options.fast_forward && !options.pieces && !options.instructions, now);
  run_until_idle();
  check_finished(programs, index);
  std::vector<SegmentTiming> timings;
  for (std::size_t c = 0; c < programs.size(); ++c) {
    timings.push_back(cores_[c]->usage());
    timings.back().duration = Picoseconds(cores_[c]->end() - now);
  }
  return timings;
}

void CorePair::check_finished(Programs programs, std::size_t segment) const {
  std::string waiting;
  for (std::size_t c = 0; c < programs.size(); ++c) {
    const std::string text = cores_[c]->waiting();
    if (!text.empty() && programs.size() == 2) waiting += fmt::format("\n core {}:", c);
    waiting += text;
  }
  if (waiting.empty()) return;
  throw Error(ExitCode::kInternal,
              fmt::format("deadlock in program \"{}\", segment {}: every engine that is left waits "
                          "for something that never comes{}",
                          programs[0]->name, segment, waiting));
}

}  // namespace trellis::sim
