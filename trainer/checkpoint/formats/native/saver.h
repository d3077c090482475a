#pragma once

#include <functional>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/world.h"
#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/checkpoint/plan/transfer_plan.h"

namespace trellis::checkpoint::native {

/// What rank 0 adds to a save.
struct SaveHead {
  std::string tag;
  Manifest manifest;  ///< without files and tensors
  Value user_content;
  std::function<void()> complete;  ///< when the checkpoint is; on the thread that ends the save
};

/// Writes checkpoints of a run in NxD's layout. All ranks share one and call save() together. A
/// file
/// "<tag>-unfinished" is next to the folder until the save is complete: a folder with it, or
/// without `done`, is none.
class Saver {
 public:
  /// `async`: save() returns when the tensors are copied to the host, another thread writes them.
  Saver(std::shared_ptr<Storage> storage, int world_size, bool async);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Collective. `shards`: the parts of all tensors of this rank, for validation. The tag, the
  /// jobs' names and the shards are a function of the run: they are planned and validated once.
  /// Waits for a save that is still under way; its error is thrown here, on rank 0. Throws
  /// OutputError when a file cannot be written; the checkpoint is then incomplete.
  void save(runtime::RankContext& rank, std::vector<FileJob> jobs,
            const std::vector<ShardedTensor>& shards, const std::function<SaveHead()>& head);
  /// Until no save is under way. Throws the error of the last one. Of rank 0.
  void wait();
  /// Who writes what; none before the first save.
  [[nodiscard]] const std::optional<TransferPlan>& plan() const { return plan_; }

 private:
  struct Written {
    std::map<std::string, StoredFile> files;
    std::vector<StoredTensor> tensors;
  };
  void begin(const SaveHead& head);
  void make_plan();
  [[nodiscard]] Written write(const std::vector<FileJob>& jobs) const;
  void finish();
  void start_thread();

  std::shared_ptr<Storage> storage_;
  bool async_;
  std::optional<TransferPlan> plan_;
  SaveHead head_;
  // By rank; each writes its own place, every rank reads after a barrier.
  std::vector<std::vector<FileJob>> jobs_;
  std::vector<std::vector<ShardedTensor>> shards_;
  std::vector<Written> written_;
  std::jthread thread_;
  std::exception_ptr error_;
};

}  // namespace trellis::checkpoint::native
