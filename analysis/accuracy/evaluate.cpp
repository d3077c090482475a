#include "analysis/accuracy/evaluate.h"

#include <fmt/format.h>

#include "analysis/accuracy/dma_rows.h"
#include "analysis/accuracy/interval_rows.h"
#include "analysis/collectives/collective_sweep.h"
#include "base/error.h"
#include "device/kernels/kernel.h"
#include "sim/config/load_system.h"

namespace trellis::analysis {
namespace {

double in_us(Picoseconds time) { return static_cast<double>(time.value) * 1e-6; }

std::map<std::string, std::int64_t> read_sizes(const YamlMap& sizes) {
  std::map<std::string, std::int64_t> out;
  for (const auto& key : sizes.keys()) out[key] = sizes.required<std::int64_t>(key);
  return out;
}

}  // namespace

void Evaluator::use_machine(const std::string& instance, int nodes, int logical_core_size,
                            bool single_instructions) {
  const std::string machine =
      fmt::format("{}/{}/{}/{}", instance, nodes, logical_core_size, single_instructions);
  if (machine == machine_) return;
  sim::LoadOptions options;
  options.nodes = nodes;
  options.calibrated = calibrated_;
  options.overrides = overrides_;
  options.instruction_traces = single_instructions;
  if (logical_core_size > 0) options.logical_core_size = logical_core_size;
  simulator_.reset();  // one at a time
  system_ = sim::load_system(instance, options);
  simulator_ = std::make_unique<sim::Simulator>(system_);
  machine_ = machine;
}

double Evaluator::time_us(const std::string& subject, const PublishedRow& row) {
  if (subject == "dma") return dma_us(row);
  if (subject == "intervals") return interval_us(row);
  return subject == "kernels" ? kernel_us(row) : collective_us(row);
}

double Evaluator::dma_us(const PublishedRow& row) {
  use_machine(row.instance, 1, 1);
  const std::optional<double> time = dma_row_us(row, system_, *simulator_);
  row.spec.reject_unknown();
  return time.value_or(0);
}

double Evaluator::interval_us(const PublishedRow& row) {
  use_machine(row.instance, 1, 1, true);
  const double time = interval_row_us(row, system_, *simulator_);
  row.spec.reject_unknown();
  return time;
}

double Evaluator::kernel_us(const PublishedRow& row) {
  use_machine(row.instance, 1, 1);
  device::KernelRequest request;
  request.name = row.spec.required<std::string>("kernel");
  request.variant = row.spec.get<std::string>("variant", "");
  request.dtype = row.spec.get<std::string>("dtype", "");
  request.cores = row.spec.get<int>("cores", 1);
  request.sizes = read_sizes(row.spec.map("sizes"));
  const auto measured = row.spec.required<std::string>("measured");
  row.spec.reject_unknown();
  if (measured != "profiler" && measured != "benchmark")
    row.spec.problem("measured", "expected profiler or benchmark, got \"" + measured + "\"");
  try {
    const device::KernelTiming timing = device::time_kernel(request, system_, *simulator_);
    return in_us(measured == "benchmark" ? timing.benchmark_time : timing.device_time);
  } catch (const Error& error) {
    throw Error(error.code(), "row " + row.id + ": " + error.what());
  }
}

double Evaluator::collective_us(const PublishedRow& row) {
  CollectiveSweep request;
  request.op = row.spec.required<std::string>("op");
  request.instance = row.instance;
  request.load.nodes = row.spec.get<int>("nodes", 1);
  request.load.logical_core_size = row.spec.optional<int>("lnc");
  request.load.calibrated = calibrated_;
  request.load.overrides = overrides_;
  request.ranks = row.spec.required<int>("ranks");
  request.dtype = row.spec.required<std::string>("dtype");
  request.min = request.max = row.spec.required<Bytes>("size");
  row.spec.reject_unknown();
  try {
    return in_us(sweep(request).rows.at(0).timing.time);
  } catch (const Error& error) {
    throw Error(error.code(), "row " + row.id + ": " + error.what());
  }
}

}  // namespace trellis::analysis
