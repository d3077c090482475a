#include "sim/describe/totals.h"

#include <cmath>

namespace trellis::sim {
namespace {

constexpr double kGiB = 0x1p30;
constexpr double kMiB = 0x1p20;
const double kNone = std::nan("");

}  // namespace

std::vector<Total> totals(const SystemConfig& s) {
  const InstanceConfig& instance = s.instance;
  const CoreConfig& core = s.chip.core;
  std::vector<Total> all;
  const auto per_chip = [&](const char* key, const char* unit, double chip) {
    if (chip > 0)
      all.push_back({key, unit, chip, chip * instance.chips, chip * instance.chips * s.nodes});
  };
  const auto per_instance = [&](const char* key, const char* unit, double value) {
    if (value > 0) all.push_back({key, unit, kNone, value, value * s.nodes});
  };
  per_chip("chips", "", 1);
  per_chip("physical_cores", "", s.chip.physical_cores);
  per_chip("logical_cores", "", s.logical_cores_per_chip());
  per_chip("dma_engines", "", core.dma.engines * s.logical_cores_per_chip());
  per_chip("dma_bandwidth", "TB/s", s.chip.peaks.dma.value * 1e-12);
  per_chip("cc_cores", "", s.chip.peaks.cc_cores);
  per_chip("sbuf", "MiB", static_cast<double>(core.sbuf.value * s.logical_cores_per_chip()) / kMiB);
  per_chip("hbm_stacks", "",
           static_cast<double>(s.chip.physical_cores) / s.chip.cores_per_hbm_stack);
  per_chip("hbm", "GiB", static_cast<double>(s.chip.hbm.value) / kGiB);
  per_chip("hbm_bandwidth", "TB/s", s.chip.hbm_bandwidth.value * 1e-12);
  per_chip("peak_bf16", "PFLOPS", s.chip.peaks.bf16.value * 1e-15);
  per_chip("peak_fp32", "PFLOPS", s.chip.peaks.fp32.value * 1e-15);
  per_chip("peak_fp8", "PFLOPS", s.chip.peaks.fp8.value * 1e-15);
  per_chip("peak_mx", "PFLOPS", s.chip.peaks.mx.value * 1e-15);
  per_chip("peak_sparse", "PFLOPS", s.chip.peaks.sparse.value * 1e-15);
  if (instance.neuron_link_per_chip.value > 0)
    all.push_back(
        {"neuron_link", "GB/s", instance.neuron_link_per_chip.value * 1e-9, kNone, kNone});
  per_chip("efa", "Gbps", instance.efa.bandwidth.value * 8e-9 * instance.efa_nics / instance.chips);
  per_instance("vcpus", "", instance.vcpus);
  per_instance("host_memory", "GiB", static_cast<double>(instance.host_memory.value) / kGiB);
  return all;
}

std::vector<CoreFigure> core_figures(const SystemConfig& s) {
  const CoreConfig& core = s.chip.core;
  return {
      {"peak_bf16", s.peak_per_logical_core().value * 1e-12, "TFLOPS"},
      {"hbm", static_cast<double>(s.hbm_per_logical_core().value) / kGiB, "GiB"},
      {"hbm_bandwidth", s.chip.hbm_bandwidth.value / s.logical_cores_per_chip() * 1e-9, "GB/s"},
      {"dma_bandwidth", core.dma.engine_rate.value * core.dma.engines * 1e-9, "GB/s"},
      {"sbuf", static_cast<double>(core.sbuf.value) / kMiB, "MiB"},
      {"psum", static_cast<double>(core.psum.value) / kMiB, "MiB"},
  };
}

}  // namespace trellis::sim
