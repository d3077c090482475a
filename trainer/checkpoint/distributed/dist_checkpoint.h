#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/distributed/state_dict.h"
#include "trainer/checkpoint/state/load_strictness.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/plan/read_plan.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::distributed {

/// Megatron-core's dist_checkpointing.save and load of one folder (torch_dist): data files
/// `__{rank}_0.distcp`, `.metadata`, `common.pt` and, last, `metadata.json`. The ranks of a process
/// share one; all of them call each member together.
///
///     DistCheckpoint checkpoint(open_place("run/step_5"), world.world_size);
///     run_ranks(world, [&](RankContext& rank) {
///       StateDict state{{"w", Shard{ShardedTensor::from_rank_offsets("w", …), tensor}},
///                       {"step", Value(5)}};
///       checkpoint.save(rank, state);
///       checkpoint.load(rank, state);   // in any other layout too
///     });
class DistCheckpoint {
 public:
  /// The ranks must run in one process.
  DistCheckpoint(Place folder, int world_size);
  ~DistCheckpoint();
  DistCheckpoint(const DistCheckpoint&) = delete;
  DistCheckpoint& operator=(const DistCheckpoint&) = delete;

  /// `parallel`: shards of which several ranks have copies are shared out among these; else the
  /// main replica writes. The content is the same. A checkpoint that is there is replaced. Throws
  /// ConfigError: shards that do not cover each tensor once, with the count tensor; OutputError.
  void save(runtime::RankContext& rank, const StateDict& state, bool parallel = true);
  /// Each chunk is read by one rank that needs it. `strictness`: one of Megatron's eight modes;
  /// what it returns is the result. Throws ConfigError: no complete checkpoint, another shape
  /// without allow_shape_mismatch, and what the mode says.
  KeyDifference load(runtime::RankContext& rank, StateDict& state,
                     const std::string& strictness = "assume_ok_unexpected");
  /// Who wrote which shard at the last save.
  [[nodiscard]] const TransferPlan& plan() const { return plan_; }

 private:
  struct Part;
  [[nodiscard]] Part& part_of(const runtime::RankContext& rank);
  void make_plan(bool parallel);
  void unmark();
  void write(int rank);
  void finish();
  void open();
  [[nodiscard]] std::vector<LoadCopy> plan_load(const std::vector<LiveTensor>& wanted) const;
  [[nodiscard]] at::Tensor read(std::size_t item) const;
  void read_objects(StateDict& state, const LoadStrictness& mode) const;
  void set_common(StateDict& state) const;

  Place folder_;
  int world_size_;
  TransferPlan plan_;
  std::vector<Part> parts_;  ///< by rank; each writes its own, the first one reads all
  NameUnion names_;
  // State of a load; made by the first rank.
  struct Item {
    std::string key;
    std::size_t chunk = 0;
  };
  std::unique_ptr<DcpReader> reader_;
  SourceIndex index_;
  std::vector<Item> items_;
  std::optional<SharedLoad> shared_;
};

}  // namespace trellis::checkpoint::distributed
