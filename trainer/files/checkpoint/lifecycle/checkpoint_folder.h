#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"
#include "trainer/files/checkpoint/lifecycle/retention.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

namespace native {
struct Manifest;
}

/// Who saves into a folder: several runs may share one.
struct RunIdentity {
  std::string run;  ///< unique; "": a program that does not say who it is
  /// Checkpoints that name no run are this one's: an earlier start of it saved here.
  bool owns_unnamed = false;
};

/// The checkpoints of a run: tags in one folder, of which each is complete, or the remainder of an
/// interrupted save or deletion. Used by one thread at a time.
class CheckpointFolder {
 public:
  /// The folder need not exist. `suffix`: the end of tags whose remainders belong to this program.
  explicit CheckpointFolder(std::shared_ptr<Storage> storage,
                            std::string suffix = kCheckpointSuffix, RunIdentity self = {});

  /// Complete ones, in the order in which they were saved. A folder whose manifest cannot be read
  /// is left out with a warning.
  [[nodiscard]] const std::vector<KeptCheckpoint>& complete() const { return complete_; }
  /// One that is complete by its marks, that is left out because its manifest cannot be read, and
  /// that is newer than all others by the time of its mark: its number is not known.
  struct Unreadable {
    std::string tag, problem;
  };
  [[nodiscard]] std::optional<Unreadable> newest_unreadable() const;
  /// The newest complete one by its sequence number: clocks may jump.
  [[nodiscard]] std::optional<KeptCheckpoint> newest() const;
  [[nodiscard]] std::int64_t next_sequence() const;
  /// Removes what interrupted saves and deletions of this program left, by their marks; nothing
  /// else: those of other programs and links of the user stay. REQUIRES: no one else writes there.
  void clean_up();
  struct FreeTag {
    std::string tag;
    std::vector<std::string> replaced;  ///< ours of the same name, to be removed after the save
  };
  /// Where a checkpoint of this name is saved: "<name>.ckpt", or "<name>-v1.ckpt", … (Lightning's
  /// form) while that is taken, so that a save never begins with a loss. `last`: with "-last" at
  /// the end of the name.
  [[nodiscard]] FreeTag free_tag(const std::string& name, bool last);
  /// A checkpoint of this tag is complete.
  void add(KeptCheckpoint checkpoint);
  /// Marked as unfinished meanwhile; first the mark of completeness goes. Throws OutputError.
  void remove(const std::string& tag);
  /// Leaves the states of the optimizer out of a complete one: first of its manifest, so that it is
  /// whole at any time. Throws OutputError, and ConfigError as read_manifest.
  void drop_states(const std::string& tag);
  /// Removes what a failed save left, which was never complete. Writes nothing, because the disk
  /// may be full. Throws OutputError.
  void discard(const std::string& tag);
  [[nodiscard]] const std::string& address() const { return storage_->address(); }
  [[nodiscard]] Storage& storage() { return *storage_; }
  [[nodiscard]] const std::shared_ptr<Storage>& shared_storage() const { return storage_; }

 private:
  [[nodiscard]] std::vector<std::string> tags() const;
  [[nodiscard]] bool is_complete(const std::string& tag) const;
  [[nodiscard]] std::int64_t time_of(const std::string& tag) const;
  [[nodiscard]] bool is_own(const native::Manifest& manifest, const std::string& tag) const;
  std::shared_ptr<Storage> storage_;
  std::string suffix_;
  RunIdentity self_;
  std::vector<KeptCheckpoint> complete_;
  std::vector<Unreadable> unreadable_;
};

/// Ends the name of a checkpoint that was set aside.
inline constexpr const char* kDamagedSuffix = ".damaged";
/// True if `tag` names a checkpoint that was set aside.
[[nodiscard]] bool is_set_aside(const std::string& tag);

}  // namespace trellis::checkpoint
