#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/run_report.h"

namespace trellis::trainer {

/// One step, as it is logged everywhere.
struct StepLog {
  std::int64_t step = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  std::optional<double> parameter_norm, val_loss;
  std::int64_t validation_batches = 0;
  double validation_s = 0;  ///< of all of them
  double data_wait_s = 0;   ///< of rank 0, for its samples
  double backward_s = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t sequences = 0;             ///< of this step
  bool skipped = false;                   ///< its gradients were not finite and changed nothing
  std::map<std::string, double> scalars;  ///< the trainer's, by tag
  std::map<std::string, double> metrics;  ///< those of them that the loss gives: rewards, …
  bool has_loss = true;                   ///< false in shape-only runs: there are no numbers
  double host_s = 0;                      ///< validation included
  std::optional<analysis::SimulatedRates> simulated;
};

/// A pass over the test data, after `step` steps.
struct TestLog {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t batches = 0;
  double host_s = 0;  ///< of all of them
};

/// Logging that a run's configuration asks for. metrics.jsonl holds everything, whatever is chosen
/// here.
struct ProgressOptions {
  /// lines on stderr and scalars of TensorBoard; also of the first step, the last, and those that
  /// validate
  int log_every_n_steps = 1;
  bool enable_progress_bar = true;  ///< lines on stderr at all
  bool tensorboard = true;
  bool log_step_timing = true;     ///< TensorBoard: train_step_timing, train_backward_timing,
                                   ///< validation_step_timing, test_step_timing, in seconds
  bool log_gradient_norm = false;  ///< TensorBoard: gradient_norm
  std::function<void(const std::string& line)> log_line =
      {};  ///< gets the lines of stderr too, also when there are none there
};

/// Writes each step to stderr, metrics.jsonl and TensorBoard events. metrics.jsonl has no figures
/// of the host, so that equal runs write equal bytes. An event file has a wall time in each record,
/// which the format asks for, and NxDT's scalars of the host (throughput, *_timing). Plain C++, so
/// that fmt is not LibTorch's.
class Progress {
 public:
  Progress(const analysis::RunFacts& facts, const std::filesystem::path& directory,
           const ProgressOptions& options);
  ~Progress();
  /// `step_report`: null on a device that times itself. Returns the step's scalars by tag: the
  /// trainer's and those of the host's and the simulated time.
  std::map<std::string, double> step(const StepLog& log, const nlohmann::json& step_report);
  void test(const TestLog& log);
  /// Host time of each step so far.
  [[nodiscard]] const std::vector<analysis::HostFacts::Step>& host_steps() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::trainer
