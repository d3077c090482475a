#include "sim/config/logical_core.h"

namespace trellis::sim {
namespace {

/// Cycles stay, so latencies shrink with them.
EngineConfig faster(EngineConfig engine, double factor) {
  engine.clock = engine.clock * factor;
  return engine;
}

}  // namespace

CoreConfig to_logical_core(const CoreConfig& physical, int size) {
  const double factor = size;
  CoreConfig core = physical;
  core.tensor.clock = core.tensor.clock * factor;
  core.vector = faster(core.vector, factor);
  core.scalar = faster(core.scalar, factor);
  core.gpsimd = faster(core.gpsimd, factor);
  core.semaphore_latency = Picoseconds(core.semaphore_latency.value / size);
  core.activation_table_load = Picoseconds(core.activation_table_load.value / size);
  core.dma.engines *= size;
  // Both cores start transfers.
  core.dma.trigger_time = Picoseconds(core.dma.trigger_time.value / size);
  core.dma.hardware_generation = Picoseconds(core.dma.hardware_generation.value / size);
  core.dma.software_generation = Picoseconds(core.dma.software_generation.value / size);
  core.dma.hardware_trigger = Picoseconds(core.dma.hardware_trigger.value / size);
  core.dma.software_descriptor = Picoseconds(core.dma.software_descriptor.value / size);
  core.dma.software_next = Picoseconds(core.dma.software_next.value / size);
  core.dma.software_trigger = Picoseconds(core.dma.software_trigger.value / size);
  core.dma.generated_backlog = core.dma.generated_backlog * size;
  core.dma.generated_drain = core.dma.generated_drain * factor;
  core.control_time = Picoseconds(core.control_time.value / size);
  core.tensor.fill_time = Picoseconds(core.tensor.fill_time.value / size);
  core.tensor.wait_time = Picoseconds(core.tensor.wait_time.value / size);
  core.sbuf = core.sbuf * size;
  core.psum = core.psum * size;
  core.limits.sbuf_bytes_per_partition *= size;
  core.limits.psum_bytes_per_partition *= size;
  return core;
}

}  // namespace trellis::sim
