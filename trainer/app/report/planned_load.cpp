#include "trainer/app/report/planned_load.h"

#include <algorithm>

#include "trainer/config/parameter_count.h"
#include "trainer/config/simulated_routing.h"
#include "trainer/modules/moe/dispatch.h"

namespace trellis::trainer {

namespace {

/// As MoeLayer computes them of a pass of the ranks that share out the experts.
std::vector<std::int64_t> computed_rows(const RunConfig& config, std::int64_t tokens,
                                        const std::vector<std::int64_t>& kept) {
  const MoeSection& moe = *config.model.moe;
  const std::int64_t block = std::min<std::int64_t>(moe.block_size, tokens * config.ep());
  const double factor = moe.capacity_factor.value_or(moe.num_experts);
  const std::int64_t slots =
      config.ep() * expert_capacity(tokens, moe.top_k, factor, moe.num_experts);
  std::vector<std::int64_t> rows;
  for (const std::int64_t count : kept)
    rows.push_back(moe.dropless ? rows_of_blocks(count * config.ep(), block) : slots);
  return rows;
}

}  // namespace

std::vector<analysis::ExpertLoad> planned_load(const RunConfig& config) {
  std::vector<analysis::ExpertLoad> loads;
  if (!config.model.moe) return loads;
  const MoeSection& moe = *config.model.moe;
  const std::int64_t passes = std::int64_t{config.num_microbatches()} * config.dp() * config.cp();
  const std::int64_t tokens = config.tokens_per_step() / passes;
  for (int layer = 0; layer < config.model.num_layers; ++layer) {
    if (!is_moe_layer(config.model, layer)) continue;
    analysis::ExpertLoad load{
        layer,
        picks_of_experts(shares_of_layer(moe, layer), moe.num_experts, tokens, moe.top_k),
        {}};
    load.kept = load.assigned;
    if (!moe.dropless && moe.capacity_factor) {
      const std::int64_t capacity =
          expert_capacity(tokens, moe.top_k, *moe.capacity_factor, moe.num_experts);
      for (std::int64_t& kept : load.kept) kept = std::min(kept, capacity);
    }
    load.computed = computed_rows(config, tokens, load.kept);
    for (std::int64_t& count : load.computed) count *= passes / config.ep();
    for (auto* counts : {&load.assigned, &load.kept}) {
      for (std::int64_t& count : *counts) count *= passes;
    }
    loads.push_back(std::move(load));
  }
  return loads;
}

}  // namespace trellis::trainer
