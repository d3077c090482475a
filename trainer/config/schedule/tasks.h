#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trellis::trainer {

enum class TaskKind : std::uint8_t {
  kForwardPreprocess,  ///< receive the input activation
  kForwardStep,
  kForwardPostprocess,  ///< send the output activation
  kBackwardPreprocess,  ///< receive the output's gradient
  kBackwardStep,
  kBackwardPostprocess,  ///< send the input's gradient
  kReduceGrads,          ///< once, last
};

/// One thing a pipeline rank does.
struct Task {
  TaskKind kind = TaskKind::kReduceGrads;
  int microbatch = -1;  ///< −1 for kReduceGrads
  int chunk = 0;        ///< which of the rank's virtual stages
  bool operator==(const Task&) const = default;
  [[nodiscard]] bool is_forward() const { return kind <= TaskKind::kForwardPostprocess; }
};

/// True if two tasks are parts of one pass: the same micro-batch through the same chunk, in the
/// same direction.
[[nodiscard]] inline bool same_pass(const Task& a, const Task& b) {
  return a.microbatch == b.microbatch && a.chunk == b.chunk && a.is_forward() == b.is_forward();
}

/// "ForwardStep(2)", "BackwardStep(2, chunk 1)"
[[nodiscard]] std::string to_string(const Task& task);
/// The steps of a list on one line: "F0 F1 B0 B1"; with chunks after a dot: "F0.0 F0.1 B0.1 B0.0".
[[nodiscard]] std::string steps_text(const std::vector<Task>& tasks, bool with_chunks = false);

/// The sizes that a schedule follows from.
struct PipelineShape {
  int num_microbatches = 1;
  int num_ranks = 1;   ///< PP
  int num_chunks = 1;  ///< VPP: virtual stages of each rank
  [[nodiscard]] int num_stages() const { return num_ranks * num_chunks; }
  /// Stage s of the model lives on rank s mod PP.
  [[nodiscard]] int stage(int rank, int chunk) const { return chunk * num_ranks + rank; }
  [[nodiscard]] int rank_of(int stage) const { return stage % num_ranks; }
  [[nodiscard]] int chunk_of(int stage) const { return stage / num_ranks; }
  bool operator==(const PipelineShape&) const = default;
};

}  // namespace trellis::trainer
