#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "sim/config/software_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// How well a hardware number is known; a prediction carries the worst tag of what it used.
enum class Evidence { kSpec, kMeasured, kCalibrated, kEstimated };
[[nodiscard]] std::string_view name(Evidence);

/// One number of sim/configs/*.yaml as written, for `describe` and for provenance.
struct Parameter {
  std::string key;    ///< dotted, e.g. "core.tensor.clock"
  std::string value;  ///< with its unit
  std::string source;
  Evidence evidence = Evidence::kEstimated;
  std::string range;         ///< estimated ones: plausible range, "" otherwise
  bool from_traces = false;  ///< read off instruction traces: its source says so, or it is of the
                             ///< section `instruction_traces`
};

struct EngineConfig {
  Hertz clock;
  double elements_per_cycle = 128;  ///< lanes at base rate
  double bf16_speedup = 1;          ///< widest perf mode for bf16 and fp16 operands in SBUF
  double fp8_speedup = 1;           ///< the same for fp8
  double fixed_cycles = 64;         ///< from the last datum to the visible result
  double dependent_cycles = 0;  ///< a reader of that result on the same engine starts so much later
  double min_cycles = 64;       ///< minimum initiation interval
  // Read off instruction traces; 0 and 1: as if there were no such thing.
  double interval_cycles = 0;  ///< between the data of one instruction and those of the next one
  double psum_interval_cycles = 0;  ///< the same when the data come from PSUM
  double copy_fixed_cycles = 0;     ///< fixed_cycles of copies and casts
  double copy_interval_cycles = 0;  ///< interval_cycles of copies and casts
  double fp32_speedup = 1;          ///< perf mode of fp32 between places in SBUF
  double pointer_cycles = 0;        ///< operand that is a column: its address is looked up first
};

/// Costs of single instructions beyond their engine's rate, and the paths that engines share.
struct InstructionCosts {
  bool vector_gpsimd_share_sbuf = true;  ///< false: only VectorE's perf modes borrow GpSimd's path
  bool vector_scalar_share_psum = true;  ///< false: they collide on equal banks only
  Bytes fast_stride = Bytes(16);         ///< a wider innermost stride halves VectorE's rate
  double vector_reciprocal_passes = 8;
  double read_accumulator_cycles = 64;  ///< instructions with a second result that is a sum
  double dynamic_address_cycles = 600;  ///< least data cycles of a register-addressed copy
  double batch_aggregate_passes = 13.0 / 3;
  double exponential_rate = 4;  ///< VectorE, elements per lane and cycle; v4
  double quantize_rate = 4;     ///< as above
  double random_rate = 1;       ///< 32-bit words per lane and cycle
  double gpsimd_rsqrt_passes = 4;
  double top_k_passes = 4;      ///< cycles for each element of a group of 16 partitions
  double gather_overhead = 28;  ///< LocalGather: cycles that an index costs in addition to its data
  double gather_width = 4;      ///< cycles that one element of it takes
};

struct TensorEngineConfig {
  Hertz clock;
  double min_cycles = 64;  ///< a matmul of fewer columns costs as much, if its weights have as many
  double overhead_cycles =
      8;  ///< between two instructions that stream through the array; fp32 takes two of them
  double stationary_cycles = 32;         ///< load of 128 columns, hidden by the running matmul
  double stationary_fixed_cycles = 160;  ///< until a load's operand is read and its semaphores move
  double fp32_passes = 4;
  double fp32_transpose_passes = 4;
  double transpose_interval =
      1;  ///< time factor of transposes; < 1: they overlap (background transpose)
  double fixed_cycles = 64;  ///< pipeline fill of a dependent use of the result
  Picoseconds ramp_time;     ///< dI/dt throttle; 0: none
  double ramp_start = 1.0;   ///< allowed utilisation at the start of a busy phase
  // Read off instruction traces; 0: as if there were no such thing.
  Picoseconds
      clock_window;       ///< the clock has two states, `ramp_start` of the rate and all of it,
                          ///< and changes at the ends of windows of this length only; 0: the ramp
  double clock_up = 0;    ///< the array did so much of a full window's work: the high state next
  double clock_down = 0;  ///< it did less than that: the low one
  Picoseconds fill_time;  ///< an instruction reaches the array so long after it is issued
  Picoseconds wait_time;  ///< a semaphore reaches this engine so much later than others
  double fp32_overhead_cycles = 0;    ///< overhead_cycles of fp32 instructions
  double fp32_stationary_passes = 0;  ///< of a load of fp32 weights, both halves
  // Read off intervals of instructions (benchmarks/published/intervals.yaml).
  double fp8_passes = 1;
  double few_rows_passes = 0;     ///< more passes as rows of K get fewer: all of them at none; not
                                  ///< of fp32
  double few_columns_passes = 0;  ///< the same for columns of the weights
  double activity_limit = 1;      ///< share of the time that the array may work
  Picoseconds activity_burst;     ///< after a pause it works as long without a limit
};

struct DmaConfig {
  int engines = 16;
  BytesPerSecond engine_rate;      ///< practical, per engine
  Picoseconds descriptor_floor;    ///< least time of one descriptor on an engine
  Picoseconds semaphore_write;     ///< every engine ends its part of a transfer with one
  double transpose_rate_hbm = 0;   ///< of engine_rate, when a transfer transposes on its way from
                                   ///< HBM; 0: the core has no such mode
  double transpose_rate_sbuf = 0;  ///< the same inside SBUF
  double accumulate_rate = 0.5;    ///< of engine_rate, when a transfer adds to its destination

  Picoseconds trigger_time;         ///< the issuing engine is busy for this long
  Picoseconds fixed_latency;        ///< trigger → first data
  Picoseconds software_latency;     ///< the same when GpSimd made the descriptors
  Picoseconds completion_latency;   ///< last data → semaphore visible
  int hardware_generators = 0;      ///< Sync's and Scalar's, or none
  Picoseconds hardware_generation;  ///< a generator is busy for this long per transfer
  Picoseconds software_generation;  ///< GpSimd is, or for `software_descriptor` each, if longer
  Picoseconds software_descriptor;
  // Read off instruction traces: transfers whose descriptors are generated.
  Picoseconds hardware_trigger;  ///< trigger_time of these; the generator then adds nothing
  Picoseconds hardware_load_latency, hardware_store_latency;  ///< fixed_latency, to and from SBUF
  Picoseconds software_next;     ///< software_generation right after another one
  Picoseconds software_trigger;  ///< and then the instruction itself
  Picoseconds software_load_latency, software_store_latency;
  Picoseconds generated_descriptor;  ///< of one on an engine, in addition to its bytes; no floor
  BytesPerSecond generated_rate;     ///< engine_rate
  Picoseconds generated_completion;  ///< completion_latency
  Bytes generated_backlog;           ///< bytes under way beyond which a trigger by hardware waits
  BytesPerSecond generated_drain;    ///< rate at which they get fewer

  Bytes packet;  ///< a ring holds its engine for this long (or for packet_descriptors) before the
                 ///< next one's turn
  Bytes collective_packet;
  int packet_descriptors = 64;
  int queued_packets = 2;  ///< a ring has at most so many packets on an engine
  std::array<int, isa::kNumDmaQueues>
      priority{};  ///< class of a ring group: 0 first, 3 last; equal classes take turns

  Bytes
      hbm_interleave;  ///< rows that lie at a distance and are shorter use a part of HBM's channels
  double hbm_strided_efficiency = 1;  ///< the smallest such part
  BytesPerSecond hbm_rate;            ///< of the core's stack, from the chip's numbers

  /// The part of the channels that rows of `row_bytes` use when they lie at a distance.
  [[nodiscard]] double hbm_part(double row_bytes) const {
    return std::clamp(row_bytes / static_cast<double>(hbm_interleave.value), hbm_strided_efficiency,
                      1.0);
  }
};

/// Rules of the graph compiler beyond lowering operations one by one
/// (device/compiler/README.md). They are among the machine's numbers because they decide a
/// program's time as these do: `--set core.compiler.fused_attention=false` shows what one is worth.
struct CompilerRules {
  bool fused_attention = true;   ///< explicit attention whose scores no one keeps stays on chip
  bool batched_products = true;  ///< small products of a batch share transfers and PSUM banks
  bool rounding_casts = true;    ///< stochastic rounding is a mode of the cast, not arithmetic
  bool fused_random = true;      ///< random masks are drawn where they are used
  bool paired_windows = true;  ///< element-wise kernels work on two windows alternately, so that no
                               ///< engine waits for another one
  bool narrow_values =
      true;  ///< operations on bf16 tensors keep bf16 between their steps; sums stay fp32
  bool fused_optimizer = false;  ///< the operations of an optimizer's update share kernels too
  bool dead_code_elimination =
      true;  ///< what a recomputation makes and no one reads is not computed, collectives included
  bool overlapped_tp = false;  ///< a core computes while a collective over tensor-parallel ranks
                               ///< moves, where the data allow it
  bool fused_results = true;  ///< what follows a product (a sum, a GELU, its derivative) is done on
                              ///< its way out of PSUM
};

/// The compiler's estimates when it chooses between plans. The simulated program decides how long a
/// plan takes.
struct PlanningConfig {
  Picoseconds product_time;  ///< of a matrix product, in addition to what is counted
  Picoseconds product_block_time, product_panel_time;
  double product_panels_ahead = 0;    ///< panels in whose time the next block arrives
  double product_transfer_share = 0;  ///< of the counted time of transfers, where only they count
  double product_cut_gain = 0;        ///< K is cut further when it takes less than this share
  double chain_unit_cycles = 0;       ///< of Vector: the shortest instruction
  double chain_latency_cycles = 0;    ///< from one engine's result to another one's start
  double chain_lag_gain = 0;     ///< a longer lag of the second window takes less than this share
  double chain_scalar_pass = 0;  ///< a pass of Scalar or GpSimd, in passes of Vector
};

/// Passes over all elements on GpSimd that operations without an executable lowering cost, by kind.
struct OperationPasses {
  double copy = 0, scan = 0, select = 0, function = 0, normal = 0, search = 0, sort = 0;
  double attention = 0, convolution = 0, convolution_backward = 0;
  double complex = 0;  ///< of an element-wise operation on complex numbers
  double unknown = 0;
};

struct CoreConfig {
  CompilerRules compiler;
  PlanningConfig planning;
  OperationPasses passes;
  TensorEngineConfig tensor;
  EngineConfig vector, scalar, gpsimd;
  InstructionCosts costs;
  Picoseconds activation_table_load;
  Picoseconds semaphore_latency;  ///< engine → engine
  Picoseconds core_barrier;       ///< the later core of a pair reaches it → both go on
  Picoseconds control_time;       ///< an instruction that only waits or posts holds its engine
  bool issue_ahead = false;       ///< what does not need an engine's data path runs while it works
  DmaConfig dma;
  Bytes sbuf;
  Bytes psum;
  isa::Limits limits;
};

/// Peak rates of the chip's data sheet; for totals. Programs are judged by the cores' peaks, which
/// are 3 to 7 % lower, and DMA by its practical rate.
struct ChipPeaks {
  FlopsPerSecond bf16, fp32;
  FlopsPerSecond fp8, sparse, mx;  ///< 0: not published, or the chip has none
  BytesPerSecond dma;
  int cc_cores = 0;  ///< processors that step collectives
};

struct ChipConfig {
  std::string generation;  ///< "trn1", "trn2", "trn3"
  int physical_cores = 2;
  int cores_per_hbm_stack = 1;
  Bytes hbm;  ///< whole chip
  BytesPerSecond hbm_bandwidth;
  FlopsPerSecond peak_bf16_core;  ///< MFU denominator, per physical core
  FlopsPerSecond peak_fp32_core;
  ChipPeaks peaks;
  CoreConfig core;
  int host_dma_engines = 0;        ///< in addition to those of the cores
  BytesPerSecond host_dma_rate;    ///< PCIe, one engine
  Picoseconds host_write_latency;  ///< a host tensor write of a few bytes, from call to return
};

struct LinkConfig {
  BytesPerSecond bandwidth;  ///< one direction
  Picoseconds latency;       ///< per hop
};

/// How the chips of an instance are wired.
enum class Fabric : std::uint8_t {
  kTorus,   ///< chip to chip, rows × columns with wrap-around; over the instances of an UltraServer
            ///< equal chips form rings
  kSwitch,  ///< every chip has a port into its server's switch and one into the switch of its rack
};

struct InstanceConfig {
  std::string name;  ///< "trn1.32xlarge"
  int chips = 1;
  int logical_core_size = 1;  ///< LNC
  Fabric fabric = Fabric::kTorus;
  int torus_rows = 1, torus_columns = 1;  ///< kTorus
  LinkConfig neuron_link;  ///< kTorus: chip → neighbour · kSwitch: chip → the server's switch
  LinkConfig on_chip;      ///< core → core of one chip
  int rack_nodes = 1;      ///< kSwitch: instances whose chips share the second switch
  LinkConfig rack_link;    ///< kSwitch: chip → the rack's switch
  Picoseconds switch_latency;
  int ultraserver_nodes = 1;  ///< instances that form an UltraServer
  /// Chip → the same chip of another instance of the UltraServer: the two next to it (kTorus),
  /// those of other racks (kSwitch).
  LinkConfig ultraserver_link;
  bool has_efa = true;  ///< no: collectives do not leave the instance, a run has one node
  int efa_nics = 1;     ///< per instance; each serves chips / efa_nics chips
  LinkConfig efa;       ///< one NIC
  BytesPerSecond neuron_link_per_chip;  ///< as printed on the data sheet, both directions of all
                                        ///< links; 0: none
  int vcpus = 0;
  Bytes host_memory;
  std::vector<int> numa_node_0;  ///< chips next to the first NUMA node; empty: not published
};

/// Between instances, outside of an UltraServer.
struct NetworkConfig {
  double oversubscription = 1;  ///< bandwidth of an instance's NICs over that of its link into the
                                ///< network; 1: never in the way
  double multi_node_stretch = 1;  ///< programs of a run on several instances take so many times
                                  ///< longer
};

/// Two documents that disagree about this generation, and which one these numbers follow.
struct Contradiction {
  std::string item, first, second, taken;
};

struct LaunchConfig {
  Picoseconds program_launch;      ///< host → device per program when the queue runs dry
  Picoseconds program_start;       ///< device side start and stop of one program
  Picoseconds benchmark_overhead;  ///< what one execution in a benchmark's timing loop costs beyond
                                   ///< what the device's profiler sees
  Picoseconds collective_start;    ///< trigger → first byte of a collective
  Picoseconds profiled_start;      ///< a profile's begin → the first instruction of its program
  Picoseconds profiled_end;        ///< the last one's end → the profile's
};

/// Collective communication by the CC-cores: what a plan costs in addition to the bandwidth of its
/// links.
struct CollectiveConfig {
  Picoseconds
      step_time;  ///< a round's handshake: semaphores seen by the CC-core, next DMA rings started
  Picoseconds message_time;   ///< a member issues the messages of a round one after the other
  Picoseconds exchange_time;  ///< partners of recursive halving and doubling agree on a round
  Picoseconds ready_time;    ///< a mesh over several chips: its members agree that all have arrived
  BytesPerSecond core_rate;  ///< what a physical core's DMA engines send for collectives
  double hbm_efficiency = 1;  ///< share of the chip's HBM bandwidth that collectives reach
  double efa_efficiency = 1;  ///< share of a NIC's line rate
  Bytes single_step_max, mesh_max,
      rdh_max;  ///< thresholds of the selection table (sim/collectives/selection.h)
};

/// Parts that are slower than others of their kind, with the factor by which their work takes
/// longer; all factors are above 1.
struct SlowParts {
  std::map<int, double> cores;  ///< by logical core, counted through the cluster
  std::map<int, double> links;  ///< by number of the link
  std::set<int> down;           ///< links that carry nothing: routes lead around them
  [[nodiscard]] bool empty() const { return cores.empty() && links.empty() && down.empty(); }
  [[nodiscard]] double core(int logical_core) const {
    const auto slow = cores.find(logical_core);
    return slow == cores.end() ? 1 : slow->second;
  }
};

/// Everything that the simulator needs to know about one kind of machine. Immutable after load.
struct SystemConfig {
  ChipConfig chip;
  InstanceConfig instance;
  LaunchConfig launch;
  NetworkConfig network;
  CollectiveConfig collectives;
  SoftwareConfig software;
  int nodes = 1;
  std::vector<Parameter> parameters;
  std::vector<Contradiction> contradictions;
  SlowParts slow;  ///< see read_slow_parts

  [[nodiscard]] int logical_cores_per_chip() const {
    return chip.physical_cores / instance.logical_core_size;
  }
  [[nodiscard]] int logical_cores_per_node() const {
    return instance.chips * logical_cores_per_chip();
  }
  [[nodiscard]] int logical_cores() const { return nodes * logical_cores_per_node(); }
  /// Time of a micro-batch's program in a run of this cluster and software, divided by its time
  /// alone. optimizer_stretch() is the same for a program of the optimizer.
  [[nodiscard]] double program_stretch() const {
    return optimizer_stretch() * software.execution_stretch;
  }
  [[nodiscard]] double optimizer_stretch() const {
    return nodes > 1 ? network.multi_node_stretch : 1;
  }
  /// The bandwidth that the cores of one HBM stack share; one of them alone may use it all.
  [[nodiscard]] BytesPerSecond hbm_stack_bandwidth() const {
    return chip.hbm_bandwidth *
           (static_cast<double>(chip.cores_per_hbm_stack) / chip.physical_cores);
  }
  [[nodiscard]] Bytes hbm_per_logical_core() const {
    return Bytes(chip.hbm.value / logical_cores_per_chip());
  }
  /// bf16 peak of one logical core: the MFU denominator.
  [[nodiscard]] FlopsPerSecond peak_per_logical_core() const {
    return chip.peak_bf16_core * static_cast<double>(instance.logical_core_size);
  }
  [[nodiscard]] Evidence worst_evidence() const;
};

struct LoadOptions {
  int nodes = 1;
  std::optional<int> logical_core_size;  ///< physical cores per logical core instead of the
                                         ///< instance's default; 1 or 2
  bool calibrated = true;  ///< false: published and estimated numbers only, nothing fitted
  std::vector<std::string>
      overrides;  ///< "core.dma.engine_rate=20 GB/s", in order, after the fitted ones
  std::string software = kNoSoftware;  ///< STACK or STACK@RELEASE, as the key `software` has it
  bool instruction_traces = false;     ///< the numbers of the section `instruction_traces` hold
};

/// Where sim/configs lies: $TRELLIS_CONFIG_DIR, next to the binary, or the source tree.
[[nodiscard]] std::filesystem::path config_directory();

}  // namespace trellis::sim
