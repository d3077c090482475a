#pragma once

#include <string>
#include <vector>

#include "device/compiler/graph/coverage.h"
#include "device/compiler/graph/flops.h"
#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/unsupported_op.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::device {

/// Data that the graph exchanges with the host: the chip's host DMA engines move them, no program
/// of the core.
struct HostCopy {
  std::int64_t bytes = 0;
  bool to_device = true;   ///< before the program starts; otherwise after it ends
  std::uint32_t node = 0;  ///< of the graph
};

struct CompiledGraph {
  sim::isa::Program program;           ///< kernels[i].node is an index into the graph's nodes
  std::vector<std::string> estimated;  ///< op names that were estimated, sorted, unique
  std::vector<std::string>
      unknown;  ///< of these, the ones that only Estimates other than kKnown let pass
  Coverage coverage;
  std::vector<HostCopy> host_copies;  ///< in the graph's order
};

/// The operations that may be estimated instead of lowered.
enum class Estimates : std::uint8_t {
  kKnown,       ///< those with a row in estimated_passes(); any other without lowering is an
                ///< UnsupportedOp
  kUnknownToo,  ///< an operation without lowering or row as OperationPasses::unknown
  kEverything,  ///< no operation is lowered: for a graph that the lowerings cannot take
};

/// Lowers a graph for one core. Throws UnsupportedOp for an operation that has neither a lowering
/// nor an estimate. The result satisfies validate() for the core's limits (checked here: a
/// violation is our bug).
[[nodiscard]] CompiledGraph compile(const Graph& graph, const sim::CoreConfig& core,
                                    Estimates estimates = Estimates::kKnown);
/// True when the compiler lowers (or, like a view, drops) the operation; false: it estimates or
/// refuses it.
[[nodiscard]] bool has_lowering(const std::string& op);

/// Where an executor binds a graph's buffers: Program slot of each one that outlives the program
/// (numbered as nodes name them), −1: owned.
[[nodiscard]] std::vector<std::int32_t> buffer_slots(const Graph& graph);

}  // namespace trellis::device
