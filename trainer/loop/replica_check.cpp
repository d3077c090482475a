#include "trainer/loop/replica_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/content_hash.h"
#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kWords = 4;  ///< of 32 bits in a hash: what the device keeps exactly

using Weights = std::vector<const Parameter*>;

/// int32 [1 + weights, kWords]: the rank, then a hash of each weight.
at::Tensor hashes_of(const Weights& weights, int rank) {
  at::Tensor hashes = at::zeros({1 + std::ssize(weights), kWords}, at::TensorOptions(at::kInt));
  auto* words = hashes.mutable_data_ptr<std::int32_t>();
  words[0] = rank;
  for (const Parameter* weight : weights) {
    const at::Tensor& held = weight->is_fully_sharded() ? weight->shard : weight->tensor;
    const at::Tensor host = held.detach().cpu().contiguous();
    ContentHasher hasher;
    hasher.bytes(host.const_data_ptr(), host.nbytes());
    const ContentHash hash = hasher.finish();
    words += kWords;
    std::memcpy(words, &hash.high, sizeof hash.high);
    std::memcpy(words + 2, &hash.low, sizeof hash.low);
  }
  return hashes;
}

/// The rows that the members of a group sent.
class Gathered {
 public:
  Gathered(const at::Tensor& hashes, int members) : hashes_(hashes), members_(members) {}

  [[nodiscard]] std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (int member = 0; member < members_; ++member) ranks.push_back(row(member, 0)[0]);
    return ranks;
  }

  /// Ranks whose hash of a weight is not that of most; all of them when none has most.
  [[nodiscard]] std::vector<int> odd_ones(std::int64_t weight) const {
    std::map<std::vector<std::int32_t>, std::vector<int>> by_hash;
    for (int member = 0; member < members_; ++member) {
      const std::int32_t* hash = row(member, 1 + weight);
      by_hash[{hash, hash + kWords}].push_back(row(member, 0)[0]);
    }
    if (by_hash.size() == 1) return {};
    const auto most = std::ranges::max_element(
        by_hash, {}, [](const auto& entry) { return entry.second.size(); });
    const bool decides = 2 * most->second.size() > static_cast<std::size_t>(members_);
    std::vector<int> odd;
    for (auto entry = by_hash.begin(); entry != by_hash.end(); ++entry) {
      if (!decides || entry != most)
        odd.insert(odd.end(), entry->second.begin(), entry->second.end());
    }
    std::ranges::sort(odd);
    return odd;
  }

 private:
  [[nodiscard]] const std::int32_t* row(int member, std::int64_t index) const {
    return hashes_.const_data_ptr<std::int32_t>() +
           (member * hashes_.size(0) / members_ + index) * kWords;
  }

  at::Tensor hashes_;
  int members_;
};

/// Texts of the weights that differ in the group.
void compare(const Weights& weights, const ParallelGroup& group, const runtime::RankContext& rank,
             std::vector<std::string>& texts) {
  if (group.size == 1 || weights.empty()) return;
  const at::Tensor mine = hashes_of(weights, rank.rank()).to(rank.device());
  const Gathered all(all_gather(mine, group).cpu().contiguous(), group.size);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::vector<int> odd = all.odd_ones(static_cast<std::int64_t>(i));
    if (!odd.empty())
      texts.push_back(fmt::format("{} on rank {} (of the copies on ranks {})", weights[i]->name,
                                  fmt::join(odd, ", "), fmt::join(all.ranks(), ", ")));
  }
}

}  // namespace

void refuse_without_replicas(const RunConfig& config) {
  if (config.distributed_strategy.fsdp) {
    if (config.distributed_strategy.data_parallel_replicate_size > 1) return;
    throw ConfigError(
        "--check-replicas: fully sharded weights (distributed_strategy.fsdp) have no copies to "
        "compare: expected data_parallel_replicate_size above 1; set it, leave the option out, or "
        "set fsdp to false");
  }
  if (config.dp() * config.cp() > 1) return;
  throw ConfigError(
      "--check-replicas: no rank holds a copy of another one's weights: expected data or context "
      "parallelism above 1; leave it out");
}

void check_replicas(const ParameterList& parameters, const ParallelState& parallel,
                    const runtime::RankContext& rank, std::int64_t step) {
  const at::NoGradGuard no_grad;
  const Scope scope("phase=check");
  Weights dense, experts;
  for (const Parameter& parameter : parameters)
    (parameter.experts.is_stacked() ? experts : dense).push_back(&parameter);
  std::vector<std::string> texts;
  const ParallelGroup& copies = parallel.get_fsdp_replica_group();
  compare(dense, copies.size > 1 ? copies : parallel.get_zero1_sharding_group(), rank, texts);
  compare(experts, copies.size > 1 ? copies : parallel.get_expert_data_parallel_group(), rank,
          texts);
  if (texts.empty()) return;
  throw Error(ExitCode::kParity,
              fmt::format("step {}: copies of weights differ: {}\n  what to do: memory or a core "
                          "changed bits, because equal operations give equal ones: go on from the "
                          "last checkpoint, without that core",
                          step, fmt::join(texts, "; ")));
}

}  // namespace trellis::trainer
