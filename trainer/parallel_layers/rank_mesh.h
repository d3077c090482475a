#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

/// How the copies of a key/value head lie over the TP ranks.
enum class ReplicaOrder {
  kAdjacent,     ///< neighbours hold the same heads (trn2)
  kInterleaved,  ///< neighbours hold different heads; the whole list is repeated (trn1)
};

/// "trn1" and "inf2": interleaved; "trn2" and "trn3": adjacent. Throws ConfigError for any other
/// name.
[[nodiscard]] ReplicaOrder replica_order_of(const std::string& hardware);

/// Which ranks form one group. The dense view of a rank is [PP, DP, CP, TP]; the expert view of the
/// same ranks is [PP, expert DP, EP, TP].
enum class ParallelAxis {
  kTensor,              ///< tp
  kPipeline,            ///< pp
  kData,                ///< dp
  kContext,             ///< cp
  kExpert,              ///< ep: neighbours in the expert view
  kExpertData,          ///< edp: what holds the same experts
  kZero1Sharding,       ///< dp × cp: what holds the same dense weights
  kFsdpSharding,        ///< of these, those of one copy of fully sharded weights
  kExpertFsdpSharding,  ///< the same of experts
  kFsdpReplicas,        ///< the ranks with the same shards, one of each copy
  kEmbedding,  ///< first and last pipeline stage, which hold a tied embedding; other stages:
               ///< themselves
  kWorld,
};
inline constexpr ParallelAxis kParallelAxes[] = {
    ParallelAxis::kTensor,        ParallelAxis::kPipeline,     ParallelAxis::kData,
    ParallelAxis::kContext,       ParallelAxis::kExpert,       ParallelAxis::kExpertData,
    ParallelAxis::kZero1Sharding, ParallelAxis::kFsdpSharding, ParallelAxis::kExpertFsdpSharding,
    ParallelAxis::kFsdpReplicas,  ParallelAxis::kEmbedding,    ParallelAxis::kWorld};
/// As texts and process groups name it: "tp", "pp", "dp", "cp", "ep", "edp", "zero1", "fsdp",
/// "efsdp", "replicas", "embedding", "world".
[[nodiscard]] const char* name_of(ParallelAxis axis);

/// The ranks as a row-major mesh with TP fastest: rank = ((pp·DP + dp)·CP + cp)·TP + tp. Eight
/// ranks with TP 2, PP 2, DP 2:
///
///            dp 0      dp 1
///   pp 0   [0 1]     [2 3]      tp groups: {0 1} {2 3} {4 5} {6 7}
///   pp 1   [4 5]     [6 7]      dp groups: {0 2} {1 3} {4 6} {5 7}
///                               pp groups: {0 4} {1 5} {2 6} {3 7}
///
/// Experts re-use the DP × CP ranks of a stage: rank = ((pp·EDP + edp)·EP + ep)·TP + tp with EDP ·
/// EP = DP · CP.
struct RankMesh {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  /// Copies of fully sharded weights: of consecutive data-parallel ranks each.
  int fsdp_replicas = 1;
  [[nodiscard]] int world_size() const { return pp * dp * cp * tp; }
  [[nodiscard]] int edp() const { return dp * cp / ep; }

  [[nodiscard]] int tp_rank(int rank) const { return rank % tp; }
  [[nodiscard]] int cp_rank(int rank) const { return rank / tp % cp; }
  [[nodiscard]] int dp_rank(int rank) const { return rank / (tp * cp) % dp; }
  [[nodiscard]] int pp_rank(int rank) const { return rank / (tp * cp * dp); }
  [[nodiscard]] int ep_rank(int rank) const { return rank / tp % ep; }
  [[nodiscard]] int edp_rank(int rank) const { return rank / (tp * ep) % edp(); }
  [[nodiscard]] int fsdp_replica(int rank) const { return dp_rank(rank) / (dp / fsdp_replicas); }
  [[nodiscard]] int rank(int pp_rank, int dp_rank, int tp_rank, int cp_rank = 0) const {
    return ((pp_rank * dp + dp_rank) * cp + cp_rank) * tp + tp_rank;
  }

  /// Global ranks of the group through `rank`, in member order.
  [[nodiscard]] std::vector<int> ranks(ParallelAxis axis, int rank) const;
  [[nodiscard]] std::vector<int> tp_ranks(int rank) const {
    return ranks(ParallelAxis::kTensor, rank);
  }
  [[nodiscard]] std::vector<int> dp_ranks(int rank) const {
    return ranks(ParallelAxis::kData, rank);
  }
  [[nodiscard]] std::vector<int> pp_ranks(int rank) const {
    return ranks(ParallelAxis::kPipeline, rank);
  }
  /// The `multiplier` ranks of the TP group of `rank` that hold the same key/value heads. REQUIRES:
  /// multiplier divides tp.
  [[nodiscard]] std::vector<int> kv_shared_ranks(int rank, int multiplier,
                                                 ReplicaOrder order) const;
  /// The consecutive `size` members of the DP group of `rank` among which tokens are shuffled.
  /// REQUIRES: size divides dp.
  [[nodiscard]] std::vector<int> token_shuffle_ranks(int rank, int size) const;

  /// All groups of an axis, by their first rank: Neuron's replica groups.
  [[nodiscard]] std::vector<std::vector<int>> replica_groups(ParallelAxis axis) const;
  bool operator==(const RankMesh&) const = default;
};

/// "[[0, 1], [2, 3]]", as Neuron's collectives take their replica groups.
[[nodiscard]] std::string replica_groups_text(const std::vector<std::vector<int>>& groups);

/// Parallel sizes of a run; data parallelism gets the ranks that remain.
struct ParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  int context_parallel_size = 1;
  int expert_model_parallel_size = 1;
  int kv_size_multiplier = 1;  ///< copies of each key/value head, one number for all layers
  int token_shuffle_group_size = 1;
  int data_parallel_replicate_size = 1;  ///< copies of fully sharded weights
  ReplicaOrder kv_replica_order = ReplicaOrder::kAdjacent;
};

/// Throws one ConfigError with every rule that a world of `world_size` ranks breaks; sizes are
/// never clamped.
[[nodiscard]] RankMesh make_rank_mesh(const ParallelSizes& sizes, int world_size);

}  // namespace trellis::trainer
