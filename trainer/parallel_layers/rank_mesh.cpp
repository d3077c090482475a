#include "trainer/parallel_layers/rank_mesh.h"

#include <array>
#include <cstdint>

#include "base/error.h"

namespace trellis::trainer {
namespace {

/// Coordinates of a rank that all members of its group share; −1 where the axis has fewer.
std::array<int, 4> shared_coordinates(const RankMesh& mesh, ParallelAxis axis, int rank) {
  const int tp = mesh.tp_rank(rank), cp = mesh.cp_rank(rank), dp = mesh.dp_rank(rank),
            pp = mesh.pp_rank(rank);
  const bool middle = pp != 0 && pp != mesh.pp - 1;
  switch (axis) {
    case ParallelAxis::kTensor: return {pp, dp, cp, -1};
    case ParallelAxis::kPipeline: return {dp, cp, tp, -1};
    case ParallelAxis::kData: return {pp, cp, tp, -1};
    case ParallelAxis::kContext: return {pp, dp, tp, -1};
    case ParallelAxis::kExpert: return {pp, mesh.edp_rank(rank), tp, -1};
    case ParallelAxis::kExpertData: return {pp, mesh.ep_rank(rank), tp, -1};
    case ParallelAxis::kZero1Sharding: return {pp, tp, -1, -1};
    case ParallelAxis::kFsdpSharding: return {pp, mesh.fsdp_replica(rank), tp, -1};
    case ParallelAxis::kExpertFsdpSharding:
      return {pp, mesh.fsdp_replica(rank), mesh.ep_rank(rank), tp};
    case ParallelAxis::kFsdpReplicas: return {pp, dp % (mesh.dp / mesh.fsdp_replicas), cp, tp};
    case ParallelAxis::kEmbedding: return {middle ? pp : 0, dp, cp, tp};
    case ParallelAxis::kWorld: break;
  }
  return {-1, -1, -1, -1};
}

std::string text(std::int64_t number) { return std::to_string(number); }

std::string rule(const std::string& what, const std::string& expected, std::int64_t got) {
  return "distributed_strategy: " + what + ": expected " + expected + ", got " + text(got);
}

void check_positive(const char* name, int value, std::vector<std::string>& problems) {
  if (value < 1) problems.push_back(rule(name, "a size of at least 1", value));
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += (all.empty() ? "" : "\n") + line;
  return all;
}

}  // namespace

ReplicaOrder replica_order_of(const std::string& hardware) {
  if (hardware == "trn1" || hardware == "inf2") return ReplicaOrder::kInterleaved;
  if (hardware == "trn2" || hardware == "trn3") return ReplicaOrder::kAdjacent;
  throw ConfigError(
      "the order of key/value copies is not known for this hardware: expected trn1, inf2, trn2 or "
      "trn3, got \"" +
      hardware + "\"");
}

const char* name_of(ParallelAxis axis) {
  static constexpr const char* kNames[] = {"tp",    "pp",       "dp",        "cp",
                                           "ep",    "edp",      "zero1",     "fsdp",
                                           "efsdp", "replicas", "embedding", "world"};
  return kNames[static_cast<int>(axis)];
}

std::vector<int> RankMesh::ranks(ParallelAxis axis, int of) const {
  const std::array<int, 4> own = shared_coordinates(*this, axis, of);
  std::vector<int> members;
  for (int other = 0; other < world_size(); ++other) {
    if (shared_coordinates(*this, axis, other) == own) members.push_back(other);
  }
  return members;
}

std::vector<int> RankMesh::kv_shared_ranks(int of, int multiplier, ReplicaOrder order) const {
  const bool adjacent = order == ReplicaOrder::kAdjacent;
  const int sets = tp / multiplier, own = tp_rank(of),
            first = adjacent ? own / multiplier * multiplier : own % sets;
  std::vector<int> ranks;
  for (int copy = 0; copy < multiplier; ++copy)
    ranks.push_back(of - own + first + copy * (adjacent ? 1 : sets));
  return ranks;
}

std::vector<int> RankMesh::token_shuffle_ranks(int of, int size) const {
  const std::vector<int> all = dp_ranks(of);
  const int first = dp_rank(of) / size * size;
  return {all.begin() + first, all.begin() + first + size};
}

std::vector<std::vector<int>> RankMesh::replica_groups(ParallelAxis axis) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_size(); ++rank) {
    std::vector<int> group = ranks(axis, rank);
    if (group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

std::string replica_groups_text(const std::vector<std::vector<int>>& groups) {
  std::string all = "[";
  for (const auto& group : groups) {
    all += all.size() > 1 ? ", [" : "[";
    for (std::size_t i = 0; i < group.size(); ++i)
      all += (i > 0 ? ", " : "") + std::to_string(group[i]);
    all += "]";
  }
  return all + "]";
}

RankMesh make_rank_mesh(const ParallelSizes& sizes, int world) {
  std::vector<std::string> problems;
  check_positive("tensor_model_parallel_size", sizes.tensor_model_parallel_size, problems);
  check_positive("pipeline_model_parallel_size", sizes.pipeline_model_parallel_size, problems);
  check_positive("context_parallel_size", sizes.context_parallel_size, problems);
  check_positive("expert_model_parallel_size", sizes.expert_model_parallel_size, problems);
  check_positive("kv_replicator", sizes.kv_size_multiplier, problems);
  check_positive("token_shuffle_group_size", sizes.token_shuffle_group_size, problems);
  check_positive("data_parallel_replicate_size", sizes.data_parallel_replicate_size, problems);
  if (!problems.empty()) throw ConfigError(joined(problems));

  const std::int64_t tp = sizes.tensor_model_parallel_size, pp = sizes.pipeline_model_parallel_size,
                     cp = sizes.context_parallel_size;
  const std::int64_t ep = sizes.expert_model_parallel_size, multiplier = sizes.kv_size_multiplier,
                     shuffle = sizes.token_shuffle_group_size,
                     copies = sizes.data_parallel_replicate_size;
  const std::int64_t replica = tp * pp * cp, rest = world / (tp * pp);
  if (world < 1 || world % replica != 0) {
    const std::string expected =
        "a multiple of " + text(tp) + " · " + text(pp) + " · " + text(cp) + " = " + text(replica);
    problems.push_back(rule("the world size must be a multiple of tensor_model_parallel_size · "
                            "pipeline_model_parallel_size · "
                            "context_parallel_size",
                            expected, world) +
                       " ranks; change trainer.devices, trainer.num_nodes or the parallel sizes");
  } else {
    if (rest / cp % copies != 0) {
      problems.push_back(rule("data_parallel_replicate_size must divide the data parallel size",
                              "a divisor of " + text(rest / cp), copies));
    } else if (rest / copies % ep != 0) {
      problems.push_back(
          rule("expert_model_parallel_size must divide the ranks of a stage that hold the same "
               "dense weights",
               "a divisor of data · context parallel size" +
                   (copies > 1 ? " / data_parallel_replicate_size" : std::string()) + " = " +
                   text(rest / copies),
               ep));
    }
    if (rest / cp % shuffle != 0) {
      problems.push_back(rule("token_shuffle_group_size must divide the data parallel size",
                              "a divisor of " + text(rest / cp), shuffle));
    }
  }
  if (tp % multiplier != 0) {
    problems.push_back(rule("kv_replicator must divide tensor_model_parallel_size",
                            "a divisor of " + text(tp), multiplier));
  }
  if (!problems.empty()) throw ConfigError(joined(problems));
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  return {size(tp), size(pp), size(rest / cp), size(cp), size(ep), size(copies)};
}

}  // namespace trellis::trainer
