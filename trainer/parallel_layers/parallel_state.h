#pragma once

#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// One axis of the rank mesh, seen from one rank. `group` is null when size is 1: such an axis never communicates.
struct ParallelGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  int rank = 0;
  int size = 1;
};

/// Global ranks of the axis through `rank`, in member order.
/// The mesh is row-major [PP, DP, TP] with TP fastest: rank = (pp·DP + dp)·TP + tp. Eight ranks with TP 2, PP 2, DP 2:
///
///            dp 0      dp 1
///   pp 0   [0 1]     [2 3]      tp groups: {0 1} {2 3} {4 5} {6 7}
///   pp 1   [4 5]     [6 7]      dp groups: {0 2} {1 3} {4 6} {5 7}    pp groups: {0 4} {1 5} {2 6} {3 7}
struct RankMesh {
  int tp = 1, pp = 1, dp = 1;
  [[nodiscard]] int tp_rank(int rank) const { return rank % tp; }
  [[nodiscard]] int dp_rank(int rank) const { return rank / tp % dp; }
  [[nodiscard]] int pp_rank(int rank) const { return rank / (tp * dp); }
  [[nodiscard]] int rank(int pp_rank, int dp_rank, int tp_rank) const { return (pp_rank * dp + dp_rank) * tp + tp_rank; }
  [[nodiscard]] std::vector<int> tp_ranks(int rank) const;
  [[nodiscard]] std::vector<int> dp_ranks(int rank) const;
  [[nodiscard]] std::vector<int> pp_ranks(int rank) const;
};

/// Which ranks this rank computes with. A value: copies share the process groups.
class ParallelState {
 public:
  /// A single rank.
  ParallelState() = default;
  ParallelState(ParallelGroup tensor, ParallelGroup pipeline, ParallelGroup data)
      : tensor_(std::move(tensor)), pipeline_(std::move(pipeline)), data_(std::move(data)) {}

  /// Builds the groups of `rank`; every rank of the world must call it. Throws ConfigError when tp·pp does not divide the world.
  static ParallelState initialize_model_parallel(runtime::RankContext& rank, int tensor_model_parallel_size,
                                                 int pipeline_model_parallel_size);

  [[nodiscard]] const ParallelGroup& get_tensor_model_parallel_group() const { return tensor_; }
  [[nodiscard]] int get_tensor_model_parallel_rank() const { return tensor_.rank; }
  [[nodiscard]] int get_tensor_model_parallel_size() const { return tensor_.size; }
  [[nodiscard]] const ParallelGroup& get_pipeline_model_parallel_group() const { return pipeline_; }
  [[nodiscard]] int get_pipeline_model_parallel_rank() const { return pipeline_.rank; }
  [[nodiscard]] int get_pipeline_model_parallel_size() const { return pipeline_.size; }
  [[nodiscard]] const ParallelGroup& get_data_parallel_group() const { return data_; }
  [[nodiscard]] int get_data_parallel_rank() const { return data_.rank; }
  [[nodiscard]] int get_data_parallel_size() const { return data_.size; }
  [[nodiscard]] bool is_pipeline_first_stage() const { return pipeline_.rank == 0; }
  [[nodiscard]] bool is_pipeline_last_stage() const { return pipeline_.rank == pipeline_.size - 1; }

 private:
  ParallelGroup tensor_;
  ParallelGroup pipeline_;
  ParallelGroup data_;
};

}  // namespace trellis::trainer
