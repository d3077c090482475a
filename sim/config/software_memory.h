#pragma once

#include <string>

namespace trellis::sim {

/// sim/configs/software/memory.yaml: what published training software takes from a core's HBM.
struct SoftwareMemory {
  // The published breakdown of one training graph, GiB per core.
  double total = 0, inputs_outputs = 0, scratch = 0, dma_rings = 0;
  double counted_scratch = 0;  ///< what this trainer's operators hold in that run, GiB
  /// Alive between loss and derivative, where these are two graphs: copies of all logits, and of
  /// what the derivative of a micro-batch reads.
  double cut_logits = 0, cut_micro_batches = 0;
  double error = 0;  ///< largest relative error on published runs that fit
  std::string breakdown_source, cut_source;
};

/// Throws ConfigError for a file that is missing or breaks the rules of hardware files.
[[nodiscard]] SoftwareMemory load_software_memory();

}  // namespace trellis::sim
