#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// How well a hardware number is known; a prediction carries the worst tag of what it used.
enum class Evidence { kSpec, kMeasured, kCalibrated, kEstimated };
[[nodiscard]] std::string_view name(Evidence);

/// One number of sim/configs/*.yaml as written, for `describe` and for provenance.
struct Parameter {
  std::string key;     ///< dotted, e.g. "core.tensor.clock"
  std::string value;   ///< with its unit
  std::string source;
  Evidence evidence = Evidence::kEstimated;
  std::string range;   ///< estimated ones: plausible range, "" otherwise
};

struct EngineConfig {
  Hertz clock;
  double elements_per_cycle = 128;    ///< lanes at base rate
  double bf16_speedup = 1;            ///< widest perf mode for 2-byte SBUF operands (Vector on v3/v4)
  double fixed_cycles = 64;           ///< issue cost of an independent instruction on top of the data cycles
  double min_cycles = 64;             ///< minimum initiation interval
};

struct TensorEngineConfig {
  Hertz clock;
  double min_cycles = 64;        ///< a multiply-moving of fewer columns costs as much
  double stationary_cycles = 32; ///< load of 128 columns, hidden behind the running matmul
  double fp32_passes = 4;
  double fp32_transpose_passes = 4;
  double fp8_factor = 1;         ///< time factor against bf16
  double fixed_cycles = 64;      ///< pipeline fill of a dependent use of the result
  Picoseconds ramp_time;         ///< dI/dt throttle; 0: none
  double ramp_start = 1.0;       ///< allowed utilisation at the start of a busy phase
};

struct DmaConfig {
  int engines = 16;
  BytesPerSecond engine_rate;      ///< practical, per engine
  Picoseconds descriptor_floor;    ///< least time of one descriptor on an engine
  Picoseconds fixed_latency;       ///< trigger → first data
  Picoseconds completion_latency;  ///< last data → semaphore visible
  Picoseconds trigger_time;        ///< the issuing engine is busy for this long
};

struct CoreConfig {
  TensorEngineConfig tensor;
  EngineConfig vector, scalar, gpsimd;
  Picoseconds activation_table_load;
  Picoseconds semaphore_latency;  ///< engine → engine
  DmaConfig dma;
  Bytes sbuf;
  Bytes psum;
  isa::Limits limits;
};

struct ChipConfig {
  std::string generation;  ///< "trn1", "trn2", "trn3"
  int physical_cores = 2;
  int cores_per_hbm_stack = 1;
  Bytes hbm;               ///< whole chip
  BytesPerSecond hbm_bandwidth;
  FlopsPerSecond peak_bf16_core;  ///< MFU denominator, per physical core
  FlopsPerSecond peak_fp32_core;
  CoreConfig core;
};

struct LinkConfig {
  BytesPerSecond bandwidth;  ///< one direction
  Picoseconds latency;       ///< per hop
};

struct InstanceConfig {
  std::string name;          ///< "trn1.32xlarge"
  int chips = 1;
  int logical_core_size = 1; ///< LNC
  int torus_rows = 1, torus_columns = 1;
  LinkConfig neuron_link;    ///< chip → neighbour
  LinkConfig on_chip;        ///< core → core of one chip
  LinkConfig efa;            ///< one rank's share between instances
  int ultraserver_nodes = 1; ///< instances whose equal chips form a ring of their own
  LinkConfig ultraserver_link;  ///< chip → the same chip of the neighbouring instance of the UltraServer
  Bytes host_memory;
};

struct LaunchConfig {
  Picoseconds program_launch;   ///< host → device per program when the queue runs dry
  Picoseconds program_start;    ///< device side start and stop of one program
  Picoseconds collective_start; ///< trigger → first byte of a collective
};

/// Everything that the simulator needs to know about one kind of machine. Immutable after load.
struct SystemConfig {
  ChipConfig chip;
  InstanceConfig instance;
  LaunchConfig launch;
  int nodes = 1;
  std::vector<Parameter> parameters;

  [[nodiscard]] int logical_cores_per_chip() const { return chip.physical_cores / instance.logical_core_size; }
  [[nodiscard]] int logical_cores_per_node() const { return instance.chips * logical_cores_per_chip(); }
  [[nodiscard]] int logical_cores() const { return nodes * logical_cores_per_node(); }
  [[nodiscard]] Bytes hbm_per_logical_core() const { return Bytes(chip.hbm.value / logical_cores_per_chip()); }
  /// bf16 peak of one logical core: the MFU denominator.
  [[nodiscard]] FlopsPerSecond peak_per_logical_core() const { return chip.peak_bf16_core * static_cast<double>(instance.logical_core_size); }
  [[nodiscard]] Evidence worst_evidence() const;
};

/// Names of all instances in the shipped configurations.
[[nodiscard]] std::vector<std::string> instance_names();
/// Loads the shipped configuration of an instance. Throws ConfigError with the nearest names when it is unknown.
[[nodiscard]] SystemConfig load_system(const std::string& instance, int nodes = 1);
/// Where sim/configs lies: $TRELLIS_CONFIG_DIR, beside the binary, or the source tree.
[[nodiscard]] std::filesystem::path config_directory();

}  // namespace trellis::sim
