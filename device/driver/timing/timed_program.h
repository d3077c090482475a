#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/training_phase.h"
#include "device/compiler/compile.h"
#include "sim/sim.h"

namespace trellis::device {

/// A piece of a graph (PieceCutter), compiled and timed once however many layers, graphs and ranks
/// run it. Only the parts of its program that reports and traces need are kept.
struct TimedPiece {
  std::vector<sim::isa::Kernel> kernels;  ///< `node`: of the piece
  std::int64_t instructions = 0;          ///< as written, loops counted once
  std::vector<std::string> estimated;     ///< as CompiledGraph
  std::vector<std::string> unknown;       ///< as CompiledGraph
  Coverage coverage;
  std::vector<HostCopy> host_copies;              ///< `node`: of the piece
  std::shared_ptr<const sim::CoreTiming> timing;  ///< one segment

  [[nodiscard]] const sim::SegmentTiming& segment() const { return timing->segments.front(); }
};

/// The work of a rank for one graph, after its launch and its copies from the host: pieces and
/// communications, one after the other.
struct TimedProgram {
  struct Step {
    const TimedPiece* piece = nullptr;  ///< null: `comm`
    std::uint32_t node = 0;  ///< of the graph: the first of the piece, or the communication's
    sim::isa::CommPoint comm;
  };
  std::string name;  ///< the graph's
  ContentHash hash;  ///< the graph's
  std::vector<Step> steps;
  std::vector<std::shared_ptr<const TimedPiece>> pieces;  ///< those of the steps
  std::vector<HostCopy> host_copies;                      ///< `node`: of the graph
  std::vector<std::string> estimated;                     ///< names, sorted, unique
  Coverage coverage;

  [[nodiscard]] TrainingPhase phase() const { return training_phase(name); }
};

}  // namespace trellis::device
