#include "trainer/files/checkpoint/plan/transfer_plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "base/check.h"

namespace trellis::checkpoint {

int TransferPlan::rank_of(const std::string& id) const {
  const auto found =
      std::lower_bound(items.begin(), items.end(), id,
                       [](const Item& item, const std::string& key) { return item.id < key; });
  TRELLIS_CHECK(found != items.end() && found->id == id, "the plan has no " + id);
  return found->rank;
}

std::vector<std::string> TransferPlan::items_of(int rank) const {
  std::vector<std::string> ids;
  for (const Item& item : items) {
    if (item.rank == rank) ids.push_back(item.id);
  }
  return ids;
}

std::vector<std::int64_t> TransferPlan::bytes_per_rank(int ranks) const {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks), 0);
  for (const Item& item : items) bytes.at(static_cast<std::size_t>(item.rank)) += item.bytes;
  return bytes;
}

std::string TransferPlan::to_string() const {
  std::string text;
  for (const Item& item : items) {
    text += "rank " + std::to_string(item.rank) + "  " + std::to_string(item.bytes) + " B  " +
            item.id + "\n";
  }
  return text;
}

ContentHash TransferPlan::hash() const {
  ContentHasher hasher;
  for (const Item& item : items) {
    hasher.text(item.id);
    hasher.value(item.bytes);
    hasher.value(item.rank);
  }
  return hasher.finish();
}

TransferPlan distribute(std::vector<Transfer> transfers) {
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    const auto key = [](const Transfer& transfer) {
      return std::tuple(transfer.across_groups, transfer.holders.size(), -transfer.bytes);
    };
    return std::pair(key(a), std::string_view(a.id)) < std::pair(key(b), std::string_view(b.id));
  });
  std::map<int, std::int64_t> load;
  TransferPlan plan;
  for (const Transfer& transfer : transfers) {
    TRELLIS_CHECK(!transfer.holders.empty(), "no rank holds " + transfer.id);
    const int rank = *std::min_element(
        transfer.holders.begin(), transfer.holders.end(),
        [&](int a, int b) { return std::pair(load[a], a) < std::pair(load[b], b); });
    load[rank] += transfer.bytes;
    plan.items.push_back({transfer.id, transfer.bytes, rank});
  }
  std::sort(plan.items.begin(), plan.items.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return plan;
}

}  // namespace trellis::checkpoint
