#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/files/checkpoint/plan/read_plan.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"

namespace trellis::checkpoint {

/// Something that is read as a whole: a stored tensor, or a piece of a large one.
struct LoadItem {
  std::string id;         ///< unique
  TensorMeta meta;        ///< of its content
  std::string file = {};  ///< not empty: all items of this file are read by one rank
};

/// Where items come from.
struct LoadSource {
  /// The content, on the CPU; called by several threads at once. `place`: memory of training that
  /// is the whole item, to be filled and returned; undefined: there is none.
  std::function<at::Tensor(std::size_t item, const at::Tensor& place)> read;
  /// An item with a file begins there at this byte. A file's items are read in this order.
  std::function<std::int64_t(std::size_t item)> offset = {};
  /// The last item that anyone needs of a file was read.
  std::function<void(std::size_t item)> end = {};
};

/// The copies that fill a tensor of training. Items are the `tensor` of the copies.
struct LoadCopy {
  const LiveTensor* into = nullptr;
  PartReads reads;
};

/// The part of `tensor` at `offset`; shares its memory.
[[nodiscard]] at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape);

/// Copies a part of a stored tensor, whose content `stored` is, into the tensor of training.
void copy_step(const CopyStep& step, const at::Tensor& stored, const LiveTensor& into);

/// Plans the copies that fill each of `wanted`, by source_key()'s rules; elements that nothing
/// fills become zero. Throws ConfigError, with `address`, that names every tensor which the index
/// does not have.
[[nodiscard]] std::vector<LoadCopy> plan_copies(
    const std::vector<LiveTensor>& wanted, const SourceIndex& index,
    const std::function<DType(std::size_t item)>& dtype_of, const std::string& address);

/// Who reads an item that several ranks need: one of them, or each of them.
enum class Readers { kOne, kEach };

/// Ranks that load the same items: each is read by one of those that need it, in whichever process
/// that is, and taken by the others in waves of bounded size. The ranks of a process share one.
class SharedLoad {
 public:
  SharedLoad(std::vector<LoadItem> items, int world_size);

  /// Collective. Throws what the source throws.
  void load(runtime::RankContext& rank, const std::vector<LoadCopy>& copies,
            const LoadSource& source, Readers readers = Readers::kOne);
  /// Which rank read which item, in the last load by one of the ranks.
  [[nodiscard]] const TransferPlan& plan() const { return plan_; }

 private:
  using Places = std::map<std::size_t, at::Tensor>;  ///< by item
  [[nodiscard]] Places places_of(const std::vector<LoadCopy>& copies) const;
  [[nodiscard]] const std::string& reader_key(std::size_t item) const {
    return items_[item].file.empty() ? items_[item].id : items_[item].file;
  }
  void read_alone(int rank, const std::vector<LoadCopy>& copies, const LoadSource& source);
  /// The items that each rank of the world needs.
  void exchange_wishes(runtime::RankContext& rank);
  void plan_readers();
  void exchange_offsets(runtime::RankContext& rank, const LoadSource& source);
  void plan_waves();
  void read_wave(int rank, const std::vector<std::size_t>& wave, const Places& places,
                 const LoadSource& source);
  void exchange_wave(runtime::RankContext& rank, const std::vector<std::size_t>& wave);
  /// The items that ranks of process `to` need and ranks of `from` read, in the order in which
  /// they are sent. `each`: ranks of a process.
  [[nodiscard]] std::vector<std::size_t> parcel(const std::vector<std::size_t>& wave, int each,
                                                int from, int to) const;
  static void take(const std::map<std::size_t, at::Tensor>& contents,
                   const std::vector<LoadCopy>& copies);

  std::vector<LoadItem> items_;
  std::vector<std::set<std::size_t>> wanted_;   ///< items, by rank
  std::map<std::size_t, int> reader_;           ///< by item that anyone needs
  std::map<std::size_t, std::int64_t> offset_;  ///< the same, of those with a file
  std::set<std::size_t> last_;                  ///< of their files
  std::vector<std::vector<std::size_t>> waves_;
  TransferPlan plan_;
  std::mutex mutex_;
  std::map<std::size_t, at::Tensor> read_;  ///< of the present wave
};

}  // namespace trellis::checkpoint
