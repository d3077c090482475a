#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "trainer/parallel_layers/rank_mesh.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// One axis of the rank mesh, seen from one rank. `group` is null when size is 1: such an axis
/// never communicates.
struct ParallelGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  int rank = 0;
  int size = 1;
};

/// Which ranks this rank computes with. A value: copies share the process groups.
class ParallelState {
 public:
  /// A single rank.
  ParallelState() = default;
  /// The caller's groups; ZeRO-1 shards over `data`.
  ParallelState(ParallelGroup tensor, ParallelGroup pipeline, ParallelGroup data)
      : tensor_(std::move(tensor)),
        pipeline_(std::move(pipeline)),
        data_(std::move(data)),
        expert_data_(data_),
        zero1_sharding_(data_) {}

  /// Builds the groups of `rank`; every rank of the world must call it. Throws ConfigError when the
  /// sizes do not fit the world.
  static ParallelState initialize_model_parallel(runtime::RankContext& rank,
                                                 int tensor_model_parallel_size,
                                                 int pipeline_model_parallel_size);
  static ParallelState initialize_model_parallel(runtime::RankContext& rank,
                                                 const ParallelSizes& sizes);
  /// The same with groups of the expert view.
  [[nodiscard]] ParallelState with_expert_groups(ParallelGroup expert,
                                                 ParallelGroup expert_data) const {
    ParallelState state = *this;
    state.expert_ = std::move(expert);
    state.expert_data_ = std::move(expert_data);
    return state;
  }
  /// The same with other groups of the dense view.
  [[nodiscard]] ParallelState with_dense_groups(ParallelGroup tensor, ParallelGroup pipeline,
                                                ParallelGroup data) const {
    ParallelState state = *this;
    state.tensor_ = std::move(tensor);
    state.pipeline_ = std::move(pipeline);
    if (context_.size == 1) state.zero1_sharding_ = data;
    if (context_.size == 1 && expert_.size == 1) state.expert_data_ = data;
    state.data_ = std::move(data);
    return state;
  }
  /// The same with other groups of context parallelism.
  [[nodiscard]] ParallelState with_context_groups(ParallelGroup context,
                                                  ParallelGroup zero1_sharding) const {
    ParallelState state = *this;
    state.context_ = std::move(context);
    state.zero1_sharding_ = std::move(zero1_sharding);
    return state;
  }
  /// The same with copies of fully sharded weights.
  [[nodiscard]] ParallelState with_fsdp_groups(ParallelGroup sharding,
                                               ParallelGroup expert_sharding,
                                               ParallelGroup replicas) const {
    ParallelState state = *this;
    state.fsdp_sharding_ = std::move(sharding);
    state.expert_fsdp_sharding_ = std::move(expert_sharding);
    state.fsdp_replicas_ = std::move(replicas);
    return state;
  }
  /// A copy of this state with another group of ranks that hold the same key/value heads.
  [[nodiscard]] ParallelState with_kv_shared_group(ParallelGroup group, ReplicaOrder order) const {
    ParallelState state = *this;
    state.kv_shared_ = std::move(group);
    state.kv_replica_order_ = order;
    return state;
  }

  [[nodiscard]] const ParallelGroup& get_tensor_model_parallel_group() const { return tensor_; }
  [[nodiscard]] int get_tensor_model_parallel_rank() const { return tensor_.rank; }
  [[nodiscard]] int get_tensor_model_parallel_size() const { return tensor_.size; }
  [[nodiscard]] const ParallelGroup& get_pipeline_model_parallel_group() const { return pipeline_; }
  [[nodiscard]] int get_pipeline_model_parallel_rank() const { return pipeline_.rank; }
  [[nodiscard]] int get_pipeline_model_parallel_size() const { return pipeline_.size; }
  [[nodiscard]] const ParallelGroup& get_data_parallel_group() const { return data_; }
  [[nodiscard]] int get_data_parallel_rank() const { return data_.rank; }
  [[nodiscard]] int get_data_parallel_size() const { return data_.size; }
  [[nodiscard]] const ParallelGroup& get_context_model_parallel_group() const { return context_; }
  [[nodiscard]] int get_context_model_parallel_rank() const { return context_.rank; }
  [[nodiscard]] int get_context_model_parallel_size() const { return context_.size; }
  [[nodiscard]] const ParallelGroup& get_expert_model_parallel_group() const { return expert_; }
  [[nodiscard]] int get_expert_model_parallel_rank() const { return expert_.rank; }
  [[nodiscard]] int get_expert_model_parallel_size() const { return expert_.size; }
  [[nodiscard]] const ParallelGroup& get_expert_data_parallel_group() const { return expert_data_; }
  /// Over which ZeRO-1 shards dense weights: data × context parallel.
  [[nodiscard]] const ParallelGroup& get_zero1_sharding_group() const { return zero1_sharding_; }
  /// Over which the weights of a parameter and its states are sharded: all ranks that hold them,
  /// or those of one copy.
  [[nodiscard]] const ParallelGroup& get_fsdp_sharding_group(bool of_experts = false) const {
    if (fsdp_replicas_.size == 1) return of_experts ? expert_data_ : zero1_sharding_;
    return of_experts ? expert_fsdp_sharding_ : fsdp_sharding_;
  }
  /// The ranks that have the same shards, one of each copy.
  [[nodiscard]] const ParallelGroup& get_fsdp_replica_group() const { return fsdp_replicas_; }
  /// The consecutive data-parallel ranks among which tokens are shuffled.
  [[nodiscard]] const ParallelGroup& get_token_shuffle_group() const { return token_shuffle_; }
  /// The TP ranks that hold the same key/value heads; a group of one without replication.
  [[nodiscard]] const ParallelGroup& get_kv_shared_group() const { return kv_shared_; }
  [[nodiscard]] ReplicaOrder kv_replica_order() const { return kv_replica_order_; }
  [[nodiscard]] bool is_pipeline_first_stage() const { return pipeline_.rank == 0; }
  [[nodiscard]] bool is_pipeline_last_stage() const { return pipeline_.rank == pipeline_.size - 1; }

  [[nodiscard]] int global_rank() const { return global_rank_; }
  [[nodiscard]] bool is_global_rank_zero() const { return global_rank_ == 0; }
  /// `message` with who says it: "[rank_5_pp1_tp1_dp0_cp0] message".
  [[nodiscard]] std::string rmsg(const std::string& message) const;

 private:
  ParallelGroup tensor_, pipeline_, data_, context_, expert_, expert_data_, zero1_sharding_,
      fsdp_sharding_, expert_fsdp_sharding_, fsdp_replicas_, token_shuffle_, kv_shared_;
  ReplicaOrder kv_replica_order_ = ReplicaOrder::kAdjacent;
  int global_rank_ = 0;
};

}  // namespace trellis::trainer
