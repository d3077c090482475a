#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/world.h"
#include "trainer/checkpoint/formats/native/gate_pass.h"
#include "trainer/checkpoint/formats/native/manifest.h"
#include "trainer/checkpoint/formats/native/open_files.h"
#include "trainer/checkpoint/plan/read_plan.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/checkpoint/storage/storage.h"

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
  /// What else training needs.
  [[nodiscard]] Value user_content() const;
  /// A file of one value; none: the checkpoint has no such file. Throws DamagedCheckpoint when it
  /// is not what was saved.
  [[nodiscard]] std::optional<Value> value_of(const std::string& file) const;
  /// The tensors that the checkpoint has.
  [[nodiscard]] const SourceIndex& index() const { return index_; }
  [[nodiscard]] DType dtype_of(std::size_t tensor) const { return manifest_.tensors[tensor].dtype; }

  /// Collective: fills the tensors. Each file is read by one rank of the process. A stored tensor
  /// that a tensor of training has as a whole is read into its place, and the other ranks that need
  /// it copy it from there; all others are read by one of the ranks that need them, and taken by
  /// the others in waves of bounded size. A weight that the checkpoint has in fewer bits than
  /// wanted, or not at all, comes from its masters; masters and moving averages that it does not
  /// have from the weights. Throws ConfigError with every tensor that is missing, or that has
  /// another shape; DamagedCheckpoint for a file that is missing or has a wrong hash. With
  /// Readers::kEach every rank reads all that it needs.
  void load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
            Readers readers = Readers::kOne);
  /// Who reads what; of the last load.
  [[nodiscard]] const TransferPlan& plan() const { return shared_.plan(); }

 private:
  /// What a rank needs: the stored tensors, and the places in its memory that are whole ones.
  struct Wish {
    std::set<std::size_t> tensors;
    std::map<std::size_t, at::Tensor> places;
  };
  /// What it throws is about the files.
  template <typename Work>
  auto reading(const Work& work) const;
  /// The same of the ranks of the process.
  void join_wishes(const std::vector<int>& ranks);
  void fill(runtime::RankContext& rank, std::vector<LoadCopy> copies, Readers readers);
  /// The files of `wish`, or those that are rank `self`'s when `ranks` share them out.
  void read_files(const Wish& wish, const std::vector<int>& ranks, int self);
  void read_file(const std::string& path, const std::vector<std::size_t>& tensors, const Wish& wish,
                 Problems& problems);
  /// Takes the copies whose source is in place out of `copies`.
  void copy_from_places(const Wish& wish, std::vector<LoadCopy>& copies) const;
  [[nodiscard]] at::Tensor read(std::size_t tensor);

  std::shared_ptr<Storage> storage_;
  std::string tag_, address_;
  Manifest manifest_;
  SourceIndex index_;
  SharedLoad shared_;
  OpenFiles files_;
  std::vector<Wish> wishes_;  ///< by rank
  Wish all_;
  Gate gate_;  ///< of those that read at the same time
};

}  // namespace trellis::checkpoint::native
