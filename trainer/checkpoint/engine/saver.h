#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/links/process_link.h"
#include "runtime/ranks/world.h"
#include "trainer/checkpoint/engine/copy_queue.h"
#include "trainer/checkpoint/engine/save_messages.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/files/checkpoint/formats/native/gate_pass.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"

namespace trellis::checkpoint::native {

/// Rank 0's contribution to a save.
struct SaveHead {
  std::string tag;
  Manifest manifest;  ///< without files and tensors
  std::optional<Value> user_content;
  std::optional<Value> scheduler = {};
  std::function<void()> complete;  ///< when the checkpoint is; on the thread that ends the save
  /// Called on the same thread, before the marks of completeness. Completes the folder that the
  /// ranks' chunks are part of (`written.chunks`, or chunk_error why some are missing), and adds
  /// its files to the checkpoint.
  std::function<void(Written& written)> chunks = {};
  /// Called when a file could not be written, on the same thread; required. `reason`: as
  /// OutputError has it.
  std::function<void(const std::string& reason)> failed;
};

/// How the ranks save.
struct SaveOptions {
  /// save() returns when the tensors are copied to the host, another thread writes them.
  bool async = false;
  /// Files of which several ranks hold the content are shared out; else the first one writes it.
  bool parallel = true;
  /// All saves have the same files and shards: they are planned and validated once.
  bool constant_structure = true;
  int most_writers = 0;  ///< ranks of a process that write at the same time; 0: all
  /// Limit of a process's copies of tensors that asynchronous saves have not written yet; 0: no
  /// limit. A file larger than the limit is copied when no other copy exists.
  std::int64_t buffer_bytes = 0;
};

/// Writes checkpoints of a run in NxD's layout. The ranks of a process share one; all ranks of the
/// run call save() together. With several processes each writes the files of the ranks
/// that it runs into the folder, which all share. A file "<tag>-unfinished" is next to the folder
/// until the save is complete: a folder with it, or without `done`, is none.
class Saver {
 public:
  /// `link`: the other processes of the run; null: there are none. `name`: of what this one leaves
  /// them, among the savers of a run.
  Saver(std::shared_ptr<Storage> storage, int world_size, SaveOptions options,
        runtime::ProcessLink* link = nullptr, std::string name = "save");
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Sets the options of the next save. Called by the process's first rank, before any rank calls
  /// save().
  void set_options(SaveOptions options) { options_ = options; }
  /// Collective. `shards`: the parts of all tensors of this rank, for validation. Waits for a save
  /// that is still under way; its error is thrown here, on a process's first rank. A file that
  /// cannot be written, such as on a full disk, is no error: the checkpoint stays incomplete, and
  /// the head's `failed` is called.
  void save(runtime::RankContext& rank, std::vector<FileJob> jobs,
            const std::vector<ShardedTensor>& shards, const std::function<SaveHead()>& head);
  /// Waits until this process has no save under way. Throws the error of the last one. Called by a
  /// process's first rank.
  void wait();
  /// Which rank writes which file; none before the first save.
  [[nodiscard]] const std::optional<TransferPlan>& plan() const { return plan_; }
  /// The most bytes that copies of the last asynchronous save took; after wait().
  [[nodiscard]] std::int64_t peak_copied_bytes() const { return queue_ ? queue_->peak_bytes() : 0; }

 private:
  [[nodiscard]] bool is_first() const { return link_ == nullptr || link_->process() == 0; }
  /// Name of the text `what` of this save that `process` leaves for another process, or takes.
  [[nodiscard]] std::string text_name(const char* what, int process) const;
  void begin(const SaveHead& head);
  /// The same in every process.
  void make_plan(runtime::RankContext& rank);
  /// Returns the first process's `said` in every process. Called by each process's first rank.
  [[nodiscard]] std::string from_first(runtime::RankContext& rank, const char* what,
                                       std::string said);
  [[nodiscard]] SaveOffer own_offer();
  [[nodiscard]] std::ptrdiff_t own_files() const;
  /// `error` says what could not be written.
  [[nodiscard]] Written write(const std::vector<FileJob>& jobs) const;
  void write_chunks_of(const FileJob& job, Written& written) const;
  [[nodiscard]] Written write_within_gate(const std::vector<FileJob>& jobs);
  [[nodiscard]] Written take_written();
  void finish();
  void write_marks(Written all);
  void report_written();
  void copy(std::size_t rank);
  void write_copies();
  void start_thread();

  std::shared_ptr<Storage> storage_;
  SaveOptions options_;
  runtime::ProcessLink* link_;
  std::string name_;
  std::optional<TransferPlan> plan_;
  std::int64_t saves_ = 0;
  Durability durability_ = Durability::kAtClose;
  SaveHead head_;
  std::string begin_error_;
  // By rank; each writes its own place, every rank reads after a barrier.
  std::vector<std::vector<FileJob>> jobs_;
  std::vector<std::vector<ShardedTensor>> shards_;
  std::vector<Written> written_;
  Gate gate_;                       ///< of those that write at the same time
  std::optional<CopyQueue> queue_;  ///< of the last asynchronous save
  std::jthread thread_;
  std::exception_ptr error_;
};

}  // namespace trellis::checkpoint::native
