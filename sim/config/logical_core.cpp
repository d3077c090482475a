#include "sim/config/logical_core.h"

namespace trellis::sim {
namespace {

EngineConfig faster(EngineConfig engine, double factor) {
  engine.clock = engine.clock * factor;
  engine.fixed_cycles *= factor;  // the same latency in time
  return engine;
}

}  // namespace

CoreConfig to_logical_core(const CoreConfig& physical, int size) {
  const double factor = size;
  CoreConfig core = physical;
  core.tensor.clock = core.tensor.clock * factor;
  core.tensor.fixed_cycles *= factor;
  core.vector = faster(core.vector, factor);
  core.scalar = faster(core.scalar, factor);
  core.gpsimd = faster(core.gpsimd, factor);
  core.dma.engines *= size;
  core.dma.trigger_time = Picoseconds(core.dma.trigger_time.value / size);  // both cores start transfers
  core.sbuf = core.sbuf * size;
  core.psum = core.psum * size;
  core.limits.sbuf_bytes_per_partition *= size;
  core.limits.psum_bytes_per_partition *= size;
  return core;
}

}  // namespace trellis::sim
