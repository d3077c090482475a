#include "sim/config/load_system.h"

#include <algorithm>
#include <optional>

#include "base/nearest.h"
#include "sim/config/instance_advice.h"  // pair: advice reads the other instances
#include "sim/config/instance_reader.h"
#include "sim/config/load_software.h"
#include "sim/config/logical_core.h"
#include "sim/config/overlay.h"
#include "sim/config/parameter_reader.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxNodes =
    16384;  ///< every core and link of a cluster is an entry of a table: some 40 KB an instance

TensorEngineConfig read_tensor(ParameterReader r) {
  TensorEngineConfig c;
  c.clock = r.read<Hertz>("clock");
  c.min_cycles = r.read<double>("min_cycles");
  c.overhead_cycles = r.read<double>("overhead_cycles");
  c.stationary_cycles = r.read<double>("stationary_cycles");
  c.stationary_fixed_cycles = r.read<double>("stationary_fixed_cycles");
  c.fp32_passes = r.read<double>("fp32_passes");
  c.fp32_transpose_passes = r.read<double>("fp32_transpose_passes");
  c.transpose_interval = r.read<double>("transpose_interval");
  c.fixed_cycles = r.read<double>("fixed_cycles");
  c.ramp_time = r.read<Picoseconds>("ramp_time");
  c.ramp_start = r.read<double>("ramp_start");
  c.clock_window = r.read_new<Picoseconds>("clock_window", {});
  c.clock_up = r.read_new<double>("clock_up", 0);
  c.clock_down = r.read_new<double>("clock_down", 0);
  c.fill_time = r.read_new<Picoseconds>("fill_time", {});
  c.wait_time = r.read_new<Picoseconds>("wait_time", {});
  c.fp32_overhead_cycles = r.read_new<double>("fp32_overhead_cycles", c.overhead_cycles);
  c.fp32_stationary_passes = r.read_new<double>("fp32_stationary_passes", c.fp32_passes);
  c.fp8_passes = r.read_new<double>("fp8_passes", 1);
  c.few_rows_passes = r.read_new<double>("few_rows_passes", 0);
  c.few_columns_passes = r.read_new<double>("few_columns_passes", 0);
  c.activity_limit = r.read_new<double>("activity_limit", 1);
  c.activity_burst = r.read_new<Picoseconds>("activity_burst", {});
  r.reject_unknown();
  return c;
}

EngineConfig read_engine(ParameterReader r) {
  EngineConfig c;
  c.clock = r.read<Hertz>("clock");
  c.elements_per_cycle = r.read<double>("elements_per_cycle");
  c.bf16_speedup = r.read<double>("bf16_speedup");
  c.fp8_speedup = r.read<double>("fp8_speedup");
  c.fixed_cycles = r.read<double>("fixed_cycles");
  c.dependent_cycles = r.read<double>("dependent_cycles");
  c.min_cycles = r.read<double>("min_cycles");
  c.interval_cycles = r.read_new<double>("interval_cycles", 0);
  c.psum_interval_cycles = r.read_new<double>("psum_interval_cycles", c.interval_cycles);
  c.copy_fixed_cycles = r.read_new<double>("copy_fixed_cycles", c.fixed_cycles);
  c.copy_interval_cycles = r.read_new<double>("copy_interval_cycles", c.interval_cycles);
  c.fp32_speedup = r.read_new<double>("fp32_speedup", 1);
  c.pointer_cycles = r.read_new<double>("pointer_cycles", 0);
  r.reject_unknown();
  return c;
}

InstructionCosts read_costs(ParameterReader r) {
  InstructionCosts c;
  c.vector_gpsimd_share_sbuf = r.read<bool>("vector_gpsimd_share_sbuf");
  c.vector_scalar_share_psum = r.read<bool>("vector_scalar_share_psum");
  c.fast_stride = r.read<Bytes>("fast_stride");
  c.vector_reciprocal_passes = r.read<double>("vector_reciprocal_passes");
  c.read_accumulator_cycles = r.read<double>("read_accumulator_cycles");
  c.dynamic_address_cycles = r.read<double>("dynamic_address_cycles");
  c.batch_aggregate_passes = r.read<double>("batch_aggregate_passes");
  c.exponential_rate = r.read<double>("exponential_rate");
  c.quantize_rate = r.read<double>("quantize_rate");
  c.random_rate = r.read<double>("random_rate");
  c.gpsimd_rsqrt_passes = r.read<double>("gpsimd_rsqrt_passes");
  c.top_k_passes = r.read<double>("top_k_passes");
  c.gather_overhead = r.read<double>("gather_overhead");
  c.gather_width = r.read<double>("gather_width");
  r.reject_unknown();
  return c;
}

/// Transfers whose descriptors are generated: as static ones, where no trace was read.
void read_generated(ParameterReader& r, DmaConfig& c) {
  const auto time = [&](const char* key, Picoseconds none) {
    return r.read_new<Picoseconds>(key, none);
  };
  c.hardware_trigger = time("hardware_trigger", c.trigger_time);
  c.hardware_load_latency = time("hardware_load_latency", c.fixed_latency);
  c.hardware_store_latency = time("hardware_store_latency", c.fixed_latency);
  c.software_next = time("software_next", c.software_generation);
  c.software_trigger = time("software_trigger", {});
  c.software_load_latency = time("software_load_latency", c.software_latency);
  c.software_store_latency = time("software_store_latency", c.software_latency);
  c.generated_descriptor = time("generated_descriptor", {});
  c.generated_rate = r.read_new<BytesPerSecond>("generated_rate", {});
  c.generated_completion = time("generated_completion", c.completion_latency);
  c.generated_backlog = r.read_new<Bytes>("generated_backlog", {});
  c.generated_drain = r.read_new<BytesPerSecond>("generated_drain", {});
}

DmaConfig read_dma(ParameterReader r) {
  DmaConfig c;
  c.engines = r.read<int>("engines");
  c.engine_rate = r.read<BytesPerSecond>("engine_rate");
  c.descriptor_floor = r.read<Picoseconds>("descriptor_floor");
  c.semaphore_write = r.read<Picoseconds>("semaphore_write");
  c.transpose_rate_hbm = r.read<double>("transpose_rate_hbm");
  c.transpose_rate_sbuf = r.read<double>("transpose_rate_sbuf");
  c.accumulate_rate = r.read<double>("accumulate_rate");
  c.trigger_time = r.read<Picoseconds>("trigger_time");
  c.fixed_latency = r.read<Picoseconds>("fixed_latency");
  c.software_latency = r.read<Picoseconds>("software_latency");
  c.completion_latency = r.read<Picoseconds>("completion_latency");
  c.hardware_generators = r.read<int>("hardware_generators");
  c.hardware_generation = r.read<Picoseconds>("hardware_generation");
  c.software_generation = r.read<Picoseconds>("software_generation");
  c.software_descriptor = r.read_new<Picoseconds>("software_descriptor", {});
  c.packet = r.read<Bytes>("packet");
  c.collective_packet = r.read<Bytes>("collective_packet");
  c.packet_descriptors = r.read<int>("packet_descriptors");
  c.queued_packets = r.read<int>("queued_packets");
  for (int q = 0; q < isa::kNumDmaQueues; ++q) {
    c.priority[static_cast<std::size_t>(q)] =
        r.read<int>("priority_" + std::string(isa::name(static_cast<isa::DmaQueue>(q))));
  }
  read_generated(r, c);
  c.hbm_interleave = r.read<Bytes>("hbm_interleave");
  c.hbm_strided_efficiency = r.read<double>("hbm_strided_efficiency");
  r.reject_unknown();
  return c;
}

CompilerRules read_compiler(ParameterReader r) {
  CompilerRules c;
  c.fused_attention = r.read<bool>("fused_attention");
  c.batched_products = r.read<bool>("batched_products");
  c.rounding_casts = r.read<bool>("rounding_casts");
  c.fused_random = r.read<bool>("fused_random");
  c.paired_windows = r.read<bool>("paired_windows");
  c.narrow_values = r.read<bool>("narrow_values");
  c.fused_results = r.read<bool>("fused_results");
  c.fused_optimizer = r.read<bool>("fused_optimizer");
  c.dead_code_elimination = r.read<bool>("dead_code_elimination");
  c.overlapped_tp = r.read<bool>("overlapped_tp");
  r.reject_unknown();
  return c;
}

PlanningConfig read_planning(ParameterReader r) {
  PlanningConfig c;
  c.product_time = r.read<Picoseconds>("product_time");
  c.product_block_time = r.read<Picoseconds>("product_block_time");
  c.product_panel_time = r.read<Picoseconds>("product_panel_time");
  c.product_panels_ahead = r.read<double>("product_panels_ahead");
  c.product_transfer_share = r.read<double>("product_transfer_share");
  c.product_cut_gain = r.read<double>("product_cut_gain");
  c.chain_unit_cycles = r.read<double>("chain_unit_cycles");
  c.chain_latency_cycles = r.read<double>("chain_latency_cycles");
  c.chain_lag_gain = r.read<double>("chain_lag_gain");
  c.chain_scalar_pass = r.read<double>("chain_scalar_pass");
  r.reject_unknown();
  return c;
}

OperationPasses read_passes(ParameterReader r) {
  OperationPasses c;
  c.copy = r.read<double>("copy");
  c.scan = r.read<double>("scan");
  c.select = r.read<double>("select");
  c.function = r.read<double>("function");
  c.normal = r.read<double>("normal");
  c.search = r.read<double>("search");
  c.sort = r.read<double>("sort");
  c.attention = r.read<double>("attention");
  c.convolution = r.read<double>("convolution");
  c.convolution_backward = r.read<double>("convolution_backward");
  c.complex = r.read<double>("complex");
  c.unknown = r.read<double>("unknown");
  r.reject_unknown();
  return c;
}

CoreConfig read_core(ParameterReader r) {
  CoreConfig c;
  c.sbuf = r.read<Bytes>("sbuf");
  c.psum = r.read<Bytes>("psum");
  c.limits.core_version = r.read<int>("version");
  c.limits.max_moving = r.read<int>("max_moving");
  c.limits.semaphores = r.read<int>("semaphores");
  c.semaphore_latency = r.read<Picoseconds>("semaphore_latency");
  c.core_barrier = r.read<Picoseconds>("core_barrier");
  c.control_time = r.read_new<Picoseconds>("control_time", {});
  c.issue_ahead = r.read_new<bool>("issue_ahead", false);
  c.activation_table_load = r.read<Picoseconds>("activation_table_load");
  c.tensor = read_tensor(r.section("tensor"));
  c.vector = read_engine(r.section("vector"));
  c.scalar = read_engine(r.section("scalar"));
  c.gpsimd = read_engine(r.section("gpsimd"));
  c.costs = read_costs(r.section("costs"));
  c.dma = read_dma(r.section("dma"));
  c.compiler = read_compiler(r.section("compiler"));
  c.planning = read_planning(r.section("planning"));
  c.passes = read_passes(r.section("passes"));
  r.reject_unknown();
  c.limits.sbuf_bytes_per_partition = c.sbuf.value / c.limits.partitions;
  c.limits.psum_bytes_per_partition = c.psum.value / c.limits.partitions;
  c.limits.hardware_dma_generators = c.dma.hardware_generators;
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
  c.peaks = {r.read<FlopsPerSecond>("peak_bf16"),
             r.read<FlopsPerSecond>("peak_fp32"),
             r.read_or<FlopsPerSecond>("peak_fp8", {}),
             r.read_or<FlopsPerSecond>("peak_sparse", {}),
             r.read_or<FlopsPerSecond>("peak_mx", {}),
             r.read<BytesPerSecond>("peak_dma_bandwidth"),
             r.read<int>("cc_cores")};
  c.host_dma_engines = r.read<int>("host_dma_engines");
  c.host_dma_rate = r.read<BytesPerSecond>("host_dma_rate");
  c.host_write_latency = r.read<Picoseconds>("host_write_latency");
  r.reject_unknown();
  return c;
}

CollectiveConfig read_collectives(ParameterReader r) {
  CollectiveConfig c;
  c.step_time = r.read<Picoseconds>("step_time");
  c.message_time = r.read<Picoseconds>("message_time");
  c.exchange_time = r.read<Picoseconds>("exchange_time");
  c.ready_time = r.read<Picoseconds>("ready_time");
  c.core_rate = r.read<BytesPerSecond>("core_rate");
  c.hbm_efficiency = r.read<double>("hbm_efficiency");
  c.efa_efficiency = r.read<double>("efa_efficiency");
  c.single_step_max = r.read<Bytes>("single_step_max");
  c.mesh_max = r.read<Bytes>("mesh_max");
  c.rdh_max = r.read<Bytes>("rdh_max");
  r.reject_unknown();
  return c;
}

LaunchConfig read_launch(ParameterReader r) {
  LaunchConfig c;
  c.program_launch = r.read<Picoseconds>("program_launch");
  c.program_start = r.read<Picoseconds>("program_start");
  c.benchmark_overhead = r.read<Picoseconds>("benchmark_overhead");
  c.collective_start = r.read<Picoseconds>("collective_start");
  c.profiled_start = r.read_new<Picoseconds>("profiled_start", c.program_start);
  c.profiled_end = r.read_new<Picoseconds>("profiled_end", {});
  r.reject_unknown();
  return c;
}

void check_consistency(const SystemConfig& system, const YamlMap& root) {
  const int cores = system.chip.physical_cores;
  const int size = system.instance.logical_core_size;
  if (size < 1 || cores % size != 0)
    root.problem("chip",
                 "physical_cores must be a multiple of logical_core_size " + std::to_string(size));
}

/// Only 1 and 2 exist (SDK logical-neuroncore-config.rst), and 2 only where cores share an HBM
/// stack.
void choose_logical_cores(SystemConfig& system, int size) {
  if (size < 1 || size > system.chip.cores_per_hbm_stack) {
    const std::string advice = instance_advice(1, size);
    throw ConfigError(std::string("logical core size: ") + system.instance.name + " has " +
                      (system.chip.cores_per_hbm_stack > 1 ? "1 or 2" : "only 1") + ", got " +
                      std::to_string(size) +
                      (advice.empty() ? "" : "; a machine that has it: " + advice));
  }
  system.instance.logical_core_size = size;
}

/// Reads the whole file, every instance, so that all mistakes are found; returns the system of
/// `instance`.
SystemConfig read_file(const YamlDocument& document, const std::string& instance,
                       const LoadOptions& options) {
  const YamlMap root = document.root();
  SystemConfig system;
  const auto generation = root.required<std::string>("generation");
  Overlay overlay(generation, options);
  overlay.read_traces(root.map("instruction_traces"), options.instruction_traces);
  ParameterReader r(root, "", &system.parameters, &overlay);
  system.chip = read_chip(r.section("chip"));
  system.chip.generation = generation;
  system.chip.core = read_core(r.section("core"));
  system.launch = read_launch(r.section("launch"));
  system.collectives = read_collectives(r.section("collectives"));
  system.network = read_network(r.section("network"));
  system.software = load_software(options.software, system.parameters, overlay);
  const Interconnect shared = read_interconnect(r.section("interconnect"));
  const YamlMap instances = root.map("instances");
  for (const std::string& each : instances.keys()) {
    const bool wanted = each == instance;
    const InstanceConfig config =
        read_instance(instances.map(each), each, shared, wanted ? &system.parameters : nullptr,
                      wanted ? &overlay : nullptr);
    if (wanted) system.instance = config;
  }
  system.contradictions = read_contradictions(root);
  root.reject_unknown();
  if (options.logical_core_size) choose_logical_cores(system, *options.logical_core_size);
  check_consistency(system, root);
  document.problems().throw_if_any();
  overlay.throw_if_any();
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

std::vector<std::string> instances_of(const YamlDocument& document) {
  return document.root().map("instances").keys();
}

/// Those whose name `instance` begins with are first: it is most likely there.
std::vector<fs::path> config_files_for(const std::string& instance) {
  std::vector<fs::path> files = config_files();
  std::stable_partition(files.begin(), files.end(), [&](const fs::path& file) {
    return instance.starts_with(file.stem().string());
  });
  return files;
}

}  // namespace

std::vector<std::string> instance_names() {
  std::vector<std::string> names;
  for (const auto& file : config_files()) {
    for (auto& each : instances_of(YamlDocument::load(file))) names.push_back(std::move(each));
  }
  return names;
}

SystemConfig load_system(const std::string& instance, int nodes) {
  LoadOptions options;
  options.nodes = nodes;
  return load_system(instance, options);
}

SystemConfig load_system(const std::string& instance, const LoadOptions& options) {
  if (options.nodes < 1 || options.nodes > kMaxNodes) {
    throw ConfigError("instance " + instance + ": expected 1 to " + std::to_string(kMaxNodes) +
                      " nodes, got " + std::to_string(options.nodes));
  }
  for (const auto& file : config_files_for(instance)) {
    const YamlDocument document = YamlDocument::load(file);
    const auto names = instances_of(document);
    if (std::find(names.begin(), names.end(), instance) == names.end()) continue;
    SystemConfig system = read_file(document, instance, options);
    system.nodes = options.nodes;
    check_nodes(system);
    system.chip.core = to_logical_core(system.chip.core, system.instance.logical_core_size);
    system.chip.core.dma.hbm_rate = system.hbm_stack_bandwidth();
    return system;
  }
  const auto known = instance_names();
  std::string list;
  for (const auto& each : known) list += (list.empty() ? "" : ", ") + each;
  const std::string near = nearest_name(instance, known);
  throw ConfigError("unknown instance \"" + instance + "\"" +
                    (near.empty() ? "" : "; did you mean " + near + "?") + "; known: " + list);
}

}  // namespace trellis::sim
