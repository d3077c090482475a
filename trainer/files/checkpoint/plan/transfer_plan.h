#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.h"

namespace trellis::checkpoint {

/// Something that one rank is to write or to read, and who could.
struct Transfer {
  std::string id;  ///< unique: a file, or a tensor in one
  std::int64_t bytes = 0;
  std::vector<int> holders;    ///< ranks that can, ascending; not empty
  bool across_groups = false;  ///< held by more than one group of those among whom work is shared
  bool operator==(const Transfer&) const = default;
};

/// Which rank does each transfer. Data: it prints, compares and hashes.
struct TransferPlan {
  struct Item {
    std::string id;
    std::int64_t bytes = 0;
    int rank = 0;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;  ///< by id

  /// The rank of a transfer. REQUIRES: the plan has it.
  [[nodiscard]] int rank_of(const std::string& id) const;
  [[nodiscard]] std::vector<std::string> items_of(int rank) const;
  /// Bytes of each of `ranks` ranks.
  [[nodiscard]] std::vector<std::int64_t> bytes_per_rank(int ranks) const;
  /// One line per item: "rank 3  4096 B  model/…".
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] ContentHash hash() const;
  bool operator==(const TransferPlan&) const = default;
};

/// Megatron's fully parallel distribution, the same on every rank: transfers in the order of
/// (across groups, fewer holders first, larger first, id) go to the holder with the fewest bytes so
/// far, ties to the lower rank. So the most and the least loaded rank of equal holders differ by
/// the largest transfer at most.
[[nodiscard]] TransferPlan distribute(std::vector<Transfer> transfers);

}  // namespace trellis::checkpoint
