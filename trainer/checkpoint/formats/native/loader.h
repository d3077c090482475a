#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/world.h"
#include "trainer/checkpoint/containers/torch_file.h"
#include "trainer/checkpoint/formats/native/manifest.h"
#include "trainer/checkpoint/plan/read_plan.h"
#include "trainer/checkpoint/plan/transfer_plan.h"
#include "trainer/checkpoint/storage/storage.h"
#include "trainer/checkpoint/state/live_state.h"

namespace trellis::checkpoint::native {

/// Reads a checkpoint into any layout. All ranks share one. Every file is checked against the
/// manifest before its content is used.
class Loader {
 public:
  /// Throws ConfigError: no checkpoint there, an incomplete one, a damaged manifest.
  Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  /// What else training needs.
  [[nodiscard]] Value user_content() const;

  /// Collective: fills the tensors. Each stored tensor is read by one of the ranks that want it,
  /// and taken by the others in waves of bounded size. A weight that the checkpoint has in fewer
  /// bits than wanted, or not at all, comes from its masters; masters and moving averages that it
  /// does not have from the weights. Throws ConfigError with every tensor that is missing, or that
  /// has another shape or a wrong hash.
  void load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted);
  /// Who reads what; of the last load.
  [[nodiscard]] const TransferPlan& plan() const { return plan_; }

 private:
  struct Copies {
    const LiveTensor* into = nullptr;
    PartReads reads;
  };
  [[nodiscard]] std::string key_of(const ShardedPart& part) const;
  [[nodiscard]] std::vector<Copies> plan_copies(const std::vector<LiveTensor>& wanted) const;
  void plan_waves();
  void check_files(const runtime::RankContext& rank);
  [[nodiscard]] at::Tensor read(std::size_t tensor);
  [[nodiscard]] std::shared_ptr<const TorchFileReader> reader_of(const std::string& file);

  std::shared_ptr<Storage> storage_;
  std::string tag_, address_;
  Manifest manifest_;
  SourceIndex index_;
  std::vector<std::set<std::size_t>> wanted_;  ///< stored tensors, by rank
  std::vector<std::vector<std::size_t>> waves_;
  TransferPlan plan_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const TorchFileReader>> readers_;
  std::map<std::size_t, at::Tensor> read_;  ///< of the present wave
};

}  // namespace trellis::checkpoint::native
