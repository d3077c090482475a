#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/op_record.h"
#include "device/driver/record/rank_recorder.h"
#include "device/driver/timing/step_stream.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"

/// Where recorded operations become graphs, programs and simulated time. Plain C++ (no LibTorch):
/// device/aten feeds it.
namespace trellis::device {

struct SessionOptions {
  std::string instance = sim::kTrainingInstance;
  int nodes = 1;
  int logical_core_size = 0;  ///< physical cores per logical core; 0: the instance's own
  std::vector<std::string> hardware = {};   ///< sim::LoadOptions::overrides
  bool calibrated = true;                   ///< sim::LoadOptions::calibrated
  std::string software = sim::kNoSoftware;  ///< sim::LoadOptions::software
  bool reads_forward = false;  ///< the training software's host reads a value of each micro-batch's
                               ///< forward pass before it goes on
  std::vector<std::string> slow = {};  ///< sim::read_slow_parts
  int world_size = 1;
  std::vector<RankAxis> axes = {};  ///< how traces name ranks, next to their numbers
  sim::RankFold fold;  ///< not empty: of the world's ranks only the representatives run, one device
                       ///< index each
  int first_rank = 0;  ///< of those that run in this process
  int process_ranks = 0;  ///< how many do, one device index each; 0: all
  bool shape_only = false;
  bool estimate_unknown = false;  ///< simulate_step() estimates what the compiler does not know,
                                  ///< and lists it, instead of refusing it
  bool record = true;             ///< off: operations run, nothing is recorded or simulated
  bool replay =
      false;  ///< ranks may repeat periods without executing them; needs shape_only and record
  bool unlimited_memory = false;  ///< allocations past a core's capacity are given and reported in
                                  ///< memory_report(); needs shape_only
};

/// The machine that `options` name. Throws ConfigError when it is unknown.
[[nodiscard]] sim::SystemConfig load_system(const SessionOptions& options);

/// The process-wide emulator: one recorder per rank, the program cache and the simulator.
class Session {
 public:
  /// `before`: a session whose machine, with what it has timed, goes on when it is the same one.
  explicit Session(const SessionOptions& options, const Session* before = nullptr);
  ~Session();
  [[nodiscard]] const SessionOptions& options() const { return options_; }
  [[nodiscard]] const sim::SystemConfig& system() const;
  [[nodiscard]] int ranks() const;  ///< that run in this process
  RankRecorder& rank(int rank);     ///< by device index
  /// Device index of a rank of the world; of −1 (none): −1. Throws Error when another rank is
  /// for it.
  [[nodiscard]] int index_of(int world_rank) const;
  void end_step(int rank, std::int64_t step);
  /// Steps that ended before belong to no simulation that begins now: a rank that ends none has
  /// done nothing.
  void forget_steps();
  /// Compiles what is new, times it, runs the cluster; schema trellis.step_report/1.
  nlohmann::json simulate_step(std::int64_t step);
  void write_trace(const std::filesystem::path& path, const std::string& format);
  nlohmann::json memory_report();
  /// Report of one rank, or (−1) of all together; schema trellis.portability/1.
  nlohmann::json portability_report(int rank = -1);

  // A job of several processes has a session in each (plugin.h: give_step, give_accounts). Texts
  // of another version of this program throw Error.
  /// The record of these ranks in the step that ended last, without the graphs that did not change
  /// since it was given before.
  std::string give_step(const std::vector<int>& ranks);
  void take_step(std::string_view bytes);
  std::string give_accounts(const std::vector<int>& ranks);
  void take_accounts(std::string_view bytes);

 private:
  /// Warns once. Steps that run the graphs of the step before are not compared again.
  void warn_of_divergence();

  struct Impl;
  SessionOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::device
