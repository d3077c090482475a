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
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {

/// Reads a checkpoint into any layout. The ranks of a process share one. Every file is checked
/// against the manifest before its content is used.
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
  [[nodiscard]] const TransferPlan& plan() const { return shared_.plan(); }

 private:
  void check_files(const runtime::RankContext& rank, const std::set<std::size_t>& tensors);
  [[nodiscard]] at::Tensor read(std::size_t tensor);
  [[nodiscard]] std::shared_ptr<const TorchFileReader> reader_of(const std::string& file);

  std::shared_ptr<Storage> storage_;
  std::string tag_, address_;
  Manifest manifest_;
  SourceIndex index_;
  SharedLoad shared_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const TorchFileReader>> readers_;
};

}  // namespace trellis::checkpoint::native
