#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/world.h"
#include "trainer/checkpoint/plan/read_plan.h"
#include "trainer/checkpoint/plan/transfer_plan.h"
#include "trainer/checkpoint/state/live_state.h"

namespace trellis::checkpoint {

/// Something that is read as a whole: a stored tensor, or a piece of a large one.
struct LoadItem {
  std::string id;  ///< unique
  std::int64_t bytes = 0;
};

/// What fills a tensor of training. Items are the `tensor` of the copies.
struct LoadCopy {
  const LiveTensor* into = nullptr;
  PartReads reads;
};

/// The part of `tensor` at `offset`; shares its memory.
[[nodiscard]] at::Tensor box_of(at::Tensor tensor, const Shape& offset, const Shape& shape);

/// Copies a part of a stored tensor, whose content `stored` is, into the tensor of training.
void copy_step(const CopyStep& step, const at::Tensor& stored, const LiveTensor& into);

/// What fills each of `wanted`, by source_key()'s rules; elements that nothing fills become zero.
/// Throws ConfigError, with `address`, that names every tensor which the index does not have.
[[nodiscard]] std::vector<LoadCopy> plan_copies(
    const std::vector<LiveTensor>& wanted, const SourceIndex& index,
    const std::function<DType(std::size_t item)>& dtype_of, const std::string& address);

/// Who reads an item that several ranks of a process need: one of them, or each of them.
enum class Readers { kOne, kEach };

/// Ranks that load the same items: each is read by one of those that need it, and taken by the
/// others in waves of bounded size. The ranks of a process share one: processes read separately.
class SharedLoad {
 public:
  SharedLoad(std::vector<LoadItem> items, int world_size);

  /// The content of an item, on the CPU; called by several threads at once.
  using Read = std::function<at::Tensor(std::size_t item)>;
  /// Collective. Throws what it throws.
  void load(runtime::RankContext& rank, const std::vector<LoadCopy>& copies, const Read& read,
            Readers readers = Readers::kOne);
  /// Who reads what; of the last load by one of the ranks.
  [[nodiscard]] const TransferPlan& plan() const { return plan_; }

 private:
  void plan_waves();
  void read_wave(int rank, const std::vector<std::size_t>& wave, const Read& read);
  static void take(const std::map<std::size_t, at::Tensor>& contents,
                   const std::vector<LoadCopy>& copies);

  std::vector<LoadItem> items_;
  std::vector<std::set<std::size_t>> wanted_;  ///< items, by rank
  std::vector<std::vector<std::size_t>> waves_;
  TransferPlan plan_;
  std::mutex mutex_;
  std::map<std::size_t, at::Tensor> read_;  ///< of the present wave
};

}  // namespace trellis::checkpoint
