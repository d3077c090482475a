#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trainer/config/schedule/tasks.h"

namespace trellis::trainer {

/// NxD's pipeline timeline (`trace_file_path`): when each task of a rank ran on the host, as
/// Chrome-trace events that chrome://tracing and ui.perfetto.dev show. The pipeline ranks of one
/// group write to one file: rank 0 begins it, each adds its events after every pass. Process:
/// pipeline rank; thread: virtual stage; times in microseconds of the host's clock, which differ
/// from run to run.
class PipelineTimeline {
 public:
  /// `title`: what the rank holds. Throws ConfigError when the file cannot be written.
  PipelineTimeline(std::filesystem::path file, int pipeline_rank, const std::string& title);
  void begin() { start_ = Clock::now(); }
  void end(const Task& task);
  void end_pass();

 private:
  using Clock = std::chrono::steady_clock;
  void append(const std::string& text, bool replace = false) const;

  std::filesystem::path file_;
  int rank_;
  std::int64_t pass_ = 0;
  Clock::time_point start_;
  std::string events_;  ///< of this pass
};

}  // namespace trellis::trainer
