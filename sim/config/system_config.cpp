#include "sim/config/system_config.h"

#include <algorithm>
#include <optional>

#include "base/nearest.h"
#include "sim/config/logical_core.h"
#include "sim/config/parameter_reader.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

TensorEngineConfig read_tensor(ParameterReader r) {
  TensorEngineConfig c;
  c.clock = r.read<Hertz>("clock");
  c.min_cycles = r.read<double>("min_cycles");
  c.stationary_cycles = r.read<double>("stationary_cycles");
  c.fp32_passes = r.read<double>("fp32_passes");
  c.fp32_transpose_passes = r.read<double>("fp32_transpose_passes");
  c.fp8_factor = r.read<double>("fp8_factor");
  c.fixed_cycles = r.read<double>("fixed_cycles");
  c.ramp_time = r.read<Picoseconds>("ramp_time");
  c.ramp_start = r.read<double>("ramp_start");
  r.reject_unknown();
  return c;
}

EngineConfig read_engine(ParameterReader r) {
  EngineConfig c;
  c.clock = r.read<Hertz>("clock");
  c.elements_per_cycle = r.read<double>("elements_per_cycle");
  c.bf16_speedup = r.read<double>("bf16_speedup");
  c.fixed_cycles = r.read<double>("fixed_cycles");
  c.min_cycles = r.read<double>("min_cycles");
  r.reject_unknown();
  return c;
}

DmaConfig read_dma(ParameterReader r) {
  DmaConfig c;
  c.engines = r.read<int>("engines");
  c.engine_rate = r.read<BytesPerSecond>("engine_rate");
  c.descriptor_floor = r.read<Picoseconds>("descriptor_floor");
  c.fixed_latency = r.read<Picoseconds>("fixed_latency");
  c.completion_latency = r.read<Picoseconds>("completion_latency");
  c.trigger_time = r.read<Picoseconds>("trigger_time");
  r.reject_unknown();
  return c;
}

CoreConfig read_core(ParameterReader r) {
  CoreConfig c;
  c.sbuf = r.read<Bytes>("sbuf");
  c.psum = r.read<Bytes>("psum");
  c.limits.max_moving = r.read<int>("max_moving");
  c.limits.semaphores = r.read<int>("semaphores");
  c.semaphore_latency = r.read<Picoseconds>("semaphore_latency");
  c.activation_table_load = r.read<Picoseconds>("activation_table_load");
  c.tensor = read_tensor(r.section("tensor"));
  c.vector = read_engine(r.section("vector"));
  c.scalar = read_engine(r.section("scalar"));
  c.gpsimd = read_engine(r.section("gpsimd"));
  c.dma = read_dma(r.section("dma"));
  r.reject_unknown();
  c.limits.sbuf_bytes_per_partition = c.sbuf.value / c.limits.partitions;
  c.limits.psum_bytes_per_partition = c.psum.value / c.limits.partitions;
  return c;
}

ChipConfig read_chip(ParameterReader r) {
  ChipConfig c;
  c.physical_cores = r.read<int>("physical_cores");
  c.cores_per_hbm_stack = r.read<int>("cores_per_hbm_stack");
  c.hbm = r.read<Bytes>("hbm");
  c.hbm_bandwidth = r.read<BytesPerSecond>("hbm_bandwidth");
  c.peak_bf16_core = r.read<FlopsPerSecond>("peak_bf16_core");
  c.peak_fp32_core = r.read<FlopsPerSecond>("peak_fp32_core");
  r.reject_unknown();
  return c;
}

LaunchConfig read_launch(ParameterReader r) {
  LaunchConfig c;
  c.program_launch = r.read<Picoseconds>("program_launch");
  c.program_start = r.read<Picoseconds>("program_start");
  c.collective_start = r.read<Picoseconds>("collective_start");
  r.reject_unknown();
  return c;
}

/// What all instances of a generation share.
struct Interconnect {
  LinkConfig on_chip;
  Picoseconds neuron_link_latency, efa_latency;
};

Interconnect read_interconnect(ParameterReader r) {
  Interconnect c;
  c.on_chip.bandwidth = r.read<BytesPerSecond>("on_chip_bandwidth");
  c.on_chip.latency = r.read<Picoseconds>("on_chip_latency");
  c.neuron_link_latency = r.read<Picoseconds>("neuron_link_latency");
  c.efa_latency = r.read<Picoseconds>("efa_latency");
  r.reject_unknown();
  return c;
}

InstanceConfig read_instance(const YamlMap& map, const std::string& instance, const Interconnect& shared, std::vector<Parameter>* out) {
  ParameterReader r(map, "instance.", out);
  InstanceConfig c;
  c.name = instance;
  c.on_chip = shared.on_chip;
  c.chips = r.read<int>("chips");
  c.logical_core_size = r.read<int>("logical_core_size");
  c.torus_rows = r.read<int>("torus_rows");
  c.torus_columns = r.read<int>("torus_columns");
  c.neuron_link = {r.read<BytesPerSecond>("neuron_link_bandwidth"), shared.neuron_link_latency};
  c.efa = {r.read<BytesPerSecond>("efa_per_rank"), shared.efa_latency};
  c.host_memory = r.read<Bytes>("host_memory");
  c.ultraserver_nodes = r.read_or<int>("ultraserver_nodes", 1);
  c.ultraserver_link = {r.read_or<BytesPerSecond>("ultraserver_link_bandwidth", {}), shared.neuron_link_latency};
  r.reject_unknown();
  if (c.torus_rows * c.torus_columns != c.chips) {
    map.problem("chips", "is " + std::to_string(c.chips) + ", the torus has " + std::to_string(c.torus_rows) + " x " + std::to_string(c.torus_columns));
  }
  return c;
}

void check_consistency(const SystemConfig& system, const YamlMap& root) {
  const int cores = system.chip.physical_cores;
  const int size = system.instance.logical_core_size;
  if (size < 1 || cores % size != 0) root.problem("chip", "physical_cores must be a multiple of logical_core_size " + std::to_string(size));
}

/// Reads the whole file, every instance, so that all mistakes are found; returns the system of `instance`.
SystemConfig read_file(const fs::path& file, const std::string& instance) {
  const YamlDocument document = YamlDocument::load(file);
  const YamlMap root = document.root();
  SystemConfig system;
  ParameterReader r(root, "", &system.parameters);
  system.chip = read_chip(r.section("chip"));
  system.chip.generation = root.required<std::string>("generation");
  system.chip.core = read_core(r.section("core"));
  system.launch = read_launch(r.section("launch"));
  const Interconnect shared = read_interconnect(r.section("interconnect"));
  const YamlMap instances = root.map("instances");
  for (const std::string& each : instances.keys()) {
    const bool wanted = each == instance;
    const InstanceConfig config = read_instance(instances.map(each), each, shared, wanted ? &system.parameters : nullptr);
    if (wanted) system.instance = config;
  }
  root.reject_unknown();
  check_consistency(system, root);
  document.problems().throw_if_any();
  return system;
}

std::vector<fs::path> config_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(config_directory())) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> instances_of(const fs::path& file) { return YamlDocument::load(file).root().map("instances").keys(); }

}  // namespace

std::vector<std::string> instance_names() {
  std::vector<std::string> names;
  for (const auto& file : config_files()) {
    for (auto& each : instances_of(file)) names.push_back(std::move(each));
  }
  return names;
}

SystemConfig load_system(const std::string& instance, int nodes) {
  if (nodes < 1) throw ConfigError("instance " + instance + ": expected at least 1 node, got " + std::to_string(nodes));
  for (const auto& file : config_files()) {
    const auto names = instances_of(file);
    if (std::find(names.begin(), names.end(), instance) == names.end()) continue;
    SystemConfig system = read_file(file, instance);
    system.nodes = nodes;
    system.chip.core = to_logical_core(system.chip.core, system.instance.logical_core_size);
    return system;
  }
  const auto known = instance_names();
  std::string list;
  for (const auto& each : known) list += (list.empty() ? "" : ", ") + each;
  const std::string near = nearest_name(instance, known);
  throw ConfigError("unknown instance \"" + instance + "\"" + (near.empty() ? "" : "; did you mean " + near + "?") + " Known: " + list);
}

Evidence SystemConfig::worst_evidence() const {
  Evidence worst = Evidence::kSpec;
  for (const Parameter& parameter : parameters) worst = std::max(worst, parameter.evidence);
  return worst;
}

}  // namespace trellis::sim
