#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/checkpoint/engine/file_stream.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/files/checkpoint/formats/native/gate_pass.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/plan/read_plan.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {

/// Reads a checkpoint into any layout. The ranks of a process share one. Every file is checked
/// against the manifest: load() throws when one differs, and training must not go on with what it
/// has read by then.
class Loader {
 public:
  /// `most_readers`: ranks of the process that read at the same time; 0: all. Throws ConfigError:
  /// no checkpoint there, an incomplete one, a damaged manifest.
  Loader(std::shared_ptr<Storage> storage, std::string tag, int world_size, int most_readers = 0);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const std::string& tag() const { return tag_; }
  /// State of a training in addition to its tensors (user_content.pt).
  [[nodiscard]] Value user_content() const;
  /// A file of one value; none: the checkpoint has no such file. Throws DamagedCheckpoint when it
  /// is not what was saved.
  [[nodiscard]] std::optional<Value> value_of(const std::string& file) const;
  /// The tensors that the checkpoint has.
  [[nodiscard]] const SourceIndex& index() const { return index_; }
  [[nodiscard]] DType dtype_of(std::size_t piece) const { return stored_of(piece).dtype; }

  /// Collective: fills the tensors. Each file is read by one rank of those that need it, in
  /// whichever process: once, from front to back, and compared with its hash on the way. An item
  /// that is a whole tensor of training is read directly into its memory; the other ranks take it
  /// from there, in waves of bounded size. A weight that the checkpoint has in fewer bits than
  /// wanted, or not at all, comes from its masters; masters and moving averages that it does not
  /// have from the weights. Throws ConfigError with every tensor that is missing, or that has
  /// another shape; DamagedCheckpoint for a file that is missing or has a wrong hash. With
  /// Readers::kEach every rank reads all that it needs.
  void load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
            Readers readers = Readers::kOne);
  /// Which rank read which file in the last load.
  [[nodiscard]] const TransferPlan& plan() const { return shared_->plan(); }

 private:
  /// Consecutive bytes of a stored tensor.
  struct Piece {
    std::size_t tensor = 0;
    Box box;
    std::int64_t first_byte = 0;
  };
  /// A file that a rank reads.
  using StreamKey = std::pair<int, std::string>;
  /// Runs `work`. A ConfigError from it is thrown as DamagedCheckpoint, because it is about the
  /// files.
  template <typename Work>
  auto reading(const Work& work) const;
  void make_pieces(int world_size);
  [[nodiscard]] const StoredTensor& stored_of(std::size_t piece) const {
    return manifest_.tensors[pieces_[piece].tensor];
  }
  [[nodiscard]] FileStream& stream_of(int rank, const StoredTensor& stored);
  [[nodiscard]] std::int64_t offset_of(int rank, std::size_t piece);
  [[nodiscard]] at::Tensor read(int rank, std::size_t piece, at::Tensor content);
  /// Throws ConfigError when it is not what was saved.
  void close(int rank, const std::string& path);

  std::shared_ptr<Storage> storage_;
  std::string tag_, address_;
  Manifest manifest_;
  SourceIndex index_;
  std::vector<Piece> pieces_;
  std::unique_ptr<SharedLoad> shared_;
  std::mutex mutex_;
  std::map<StreamKey, std::unique_ptr<FileStream>> streams_;
  Gate gate_;  ///< of those that read at the same time
};

}  // namespace trellis::checkpoint::native
