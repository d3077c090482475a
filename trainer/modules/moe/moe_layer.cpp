#include "trainer/modules/moe/moe_layer.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "trainer/config/simulated_routing.h"
#include "trainer/parallel_layers/mappings.h"
#include "trainer/parallel_layers/sequence_parallel.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {
namespace {

ModelSection shared_mlp(const ModelSection& config) {
  ModelSection mlp = config;
  mlp.ffn_hidden_size = config.ffn_hidden_size * config.moe->num_shared_experts;
  return mlp;
}

std::int64_t total_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

}  // namespace

struct MoeLayer::Arrivals {
  RowExchange exchange;
  std::vector<std::int64_t> counts;     ///< by own expert, of all members
  std::vector<std::int64_t> computed;   ///< the same in whole blocks
  std::vector<std::int64_t> by_expert;  ///< places, by expert, of rows that arrive by member
  std::vector<std::int64_t> by_member;  ///< the inverse; one past the last row where there is none
};

MoeLayer::MoeLayer(const ModuleContext& context, const std::string& path,
                   const ModelSection& config, const ModuleNames& names, int layer)
    : moe_(*config.moe),
      layer_(layer),
      tp_(context.tp()),
      ep_(context.parallel->get_expert_model_parallel_group()),
      sequence_parallel_(context.sequence_parallel),
      shape_only_(context.shape_only),
      reduce_dtype_(context.reduce_dtype),
      recompute_(RecomputePlan::of(config)),
      position_(context.position),
      shuffle_(context, path + ".token_shuffle"),
      router_(context, path + ".router", config),
      experts_(context, path + ".expert_mlps.mlp_op", config),
      scope_(context.scope(path)) {
  if (moe_.num_shared_experts > 0)
    shared_.emplace(context, path + ".shared_experts", shared_mlp(config), names);
}

at::Tensor MoeLayer::forward(const at::Tensor& input,
                             const std::shared_ptr<RouterRecord>& record) const {
  const Scope scope = scope_.enter();
  at::Tensor output = maybe_checkpoint(
      recompute_.mlp, position_, {input},
      [this, record](const std::vector<at::Tensor>& inputs) { return run(inputs[0], record); });
  if (shared_) output = output + shared_->forward(input);
  return scope_.leave(output);
}

at::Tensor MoeLayer::run(const at::Tensor& input,
                         const std::shared_ptr<RouterRecord>& record) const {
  const at::Tensor whole = sequence_parallel_ ? gather_from_sequence_parallel_region(input, tp_)
                                              : copy_to_tensor_model_parallel_region(input, tp_);
  const at::Tensor tokens = whole.reshape({-1, whole.size(-1)});
  const TokenShuffle::Order order = shuffle_.order(tokens.size(0));
  const at::Tensor mixed =
      shuffle_.put_back(mix(shuffle_.shuffle(tokens, order), record), order).view(whole.sizes());
  return sequence_parallel_ ? reduce_scatter_to_sequence_parallel_region(mixed, tp_, reduce_dtype_)
                            : reduce_from_tensor_model_parallel_region(mixed, tp_, reduce_dtype_);
}

at::Tensor MoeLayer::mix(const at::Tensor& tokens,
                         const std::shared_ptr<RouterRecord>& record) const {
  const Choice choice = router_.forward(tokens, layer_, record);
  const std::int64_t count = tokens.size(0);
  const std::int64_t capacity =
      moe_.dropless ? 0
      : moe_.capacity_factor
          ? expert_capacity(count, moe_.top_k, *moe_.capacity_factor, moe_.num_experts)
          : count;
  const DispatchPlan plan = plan_dispatch(choice.experts, moe_.num_experts, capacity);
  Layer& layer = record->layers[layer_];
  layer.assigned = plan.assigned;
  layer.kept = plan.kept;
  const at::Tensor picks = capacity > 0 ? run_with_capacity(tokens, plan, layer)
                                        : run_dropless(tokens, choice.experts, plan, layer);
  // A pick after the other: the sum over a short inner dimension would be slow.
  const std::vector<at::Tensor> results = picks.unbind(0);
  const std::vector<at::Tensor> weights =
      weights_of(choice, plan).to(picks.scalar_type()).t().unsqueeze(2).unbind(0);
  at::Tensor sum = results[0] * weights[0];
  for (std::size_t i = 1; i < results.size(); ++i) sum = sum + results[i] * weights[i];
  return sum;
}

/// [tokens, k]: 0 for what was dropped; of sum 1 when they are normalised, over what was kept.
at::Tensor MoeLayer::weights_of(const Choice& choice, const DispatchPlan& plan) const {
  at::Tensor weights = choice.affinities;
  if (plan.capacity > 0)
    weights =
        weights * plan.pick_slot.lt(plan.slots).view(weights.sizes()).to(weights.scalar_type());
  if (moe_.normalize_top_k_affinities) {
    const at::Tensor sum = weights.sum(1, /*keepdim=*/true);
    weights = weights / (sum + sum.eq(0).to(sum.scalar_type()));
  }
  return moe_.routed_scaling_factor == 1 ? weights : weights * moe_.routed_scaling_factor;
}

at::Tensor MoeLayer::run_experts(const at::Tensor& slots, const DispatchPlan& plan) const {
  const std::int64_t own = experts_.count(), h = slots.size(1), c = plan.capacity;
  const at::Tensor arrived = exchange_rows(slots, ep_)
                                 .view({ep_.size, own, c, h})
                                 .transpose(0, 1)
                                 .reshape({own, ep_.size * c, h});
  announce(planned_rows(plan));
  const at::Tensor done = experts_.forward(arrived)
                              .view({own, ep_.size, c, h})
                              .transpose(0, 1)
                              .reshape({ep_.size * own * c, h});
  return exchange_rows(done, ep_);
}

/// Without data, of a rank's tokens: those of simulated_shares.
std::vector<std::int64_t> MoeLayer::planned_counts(std::int64_t tokens) const {
  return picks_of_experts(shares_of_layer(moe_, layer_), moe_.num_experts, tokens, moe_.top_k);
}

/// Records the computed rows of this rank's experts, for the report.
void MoeLayer::note_rows(const std::vector<std::int64_t>& computed, Layer& layer) const {
  layer.computed.assign(static_cast<std::size_t>(moe_.num_experts), 0);
  std::ranges::copy(computed, layer.computed.begin() + ep_.rank * std::ssize(computed));
}

/// Announces the tokens of this rank's experts, which compute them next, to tools that watch the
/// run.
void MoeLayer::announce(const std::vector<std::int64_t>& tokens) const {
  const auto first = static_cast<std::size_t>(ep_.rank * experts_.count());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    count_for_tools("expert " + std::to_string(first + i), tokens[i]);
}

at::Tensor MoeLayer::run_with_capacity(const at::Tensor& tokens, const DispatchPlan& plan,
                                       Layer& layer) const {
  const auto own = static_cast<std::size_t>(experts_.count());
  note_rows(std::vector<std::int64_t>(own, ep_.size * plan.capacity), layer);
  return from_slots(run_experts(to_slots(tokens, plan), plan), plan);
}

/// Rows of this rank's experts; empty with data, when no one on the host knows how many slots are
/// filled.
std::vector<std::int64_t> MoeLayer::planned_rows(const DispatchPlan& plan) const {
  if (!shape_only_) return {};
  std::vector<std::int64_t> rows;
  const std::vector<std::int64_t> planned = planned_counts(plan.tokens);
  for (std::int64_t i = 0; i < experts_.count(); ++i) {
    const auto expert = static_cast<std::size_t>(ep_.rank * experts_.count() + i);
    rows.push_back(ep_.size * std::min(plan.capacity, planned[expert]));
  }
  return rows;
}

at::Tensor MoeLayer::run_dropless(const at::Tensor& tokens, const at::Tensor& experts,
                                  const DispatchPlan& plan, Layer& layer) const {
  const Arrivals found = arrivals(plan);
  note_rows(found.computed, layer);
  if (ep_.size == 1) {
    const DispatchPlan blocks = in_blocks(plan, experts, found.counts, block_of(plan));
    const at::Tensor slots = to_slots(tokens, blocks);
    announce(found.counts);
    return from_slots(experts_.forward(slots, found.computed), blocks);
  }
  const auto on_device = [&](const std::vector<std::int64_t>& numbers) {
    return at::tensor(numbers, at::kLong).to(tokens.device());
  };
  const at::Tensor by_expert = on_device(found.by_expert), by_member = on_device(found.by_member);
  const at::Tensor arrived = exchange_rows(to_slots(tokens, plan), ep_, found.exchange);
  const at::Tensor rows = select_rows(arrived, by_member, by_expert);
  announce(found.counts);
  const at::Tensor done = experts_.forward(rows, found.computed);
  return from_slots(exchange_rows(select_rows(done, by_expert, by_member), ep_,
                                  {found.exchange.received, found.exchange.sent}),
                    plan);
}

/// Rows of a block: no more than an expert can get, which picks a token once.
std::int64_t MoeLayer::block_of(const DispatchPlan& plan) const {
  return std::min<std::int64_t>(moe_.block_size, plan.tokens * ep_.size);
}

/// The ranks exchange their counts; the host reads them, because they are sizes. Without data they
/// are those of moe_.simulated_shares, on each rank.
MoeLayer::Arrivals MoeLayer::arrivals(const DispatchPlan& plan) const {
  const std::int64_t own = experts_.count(), experts = own * ep_.size;
  at::Tensor sent = plan.kept,
             received = ep_.size == 1 ? sent : exchange_rows(plan.kept.view({experts, 1}), ep_);
  if (!shape_only_) sent = sent.cpu(), received = received.cpu();
  const std::vector<std::int64_t> planned =
      shape_only_ ? planned_counts(plan.tokens) : std::vector<std::int64_t>();
  const auto count_of = [&](const at::Tensor& counts, std::int64_t member, std::int64_t expert,
                            std::int64_t global) {
    if (shape_only_) return planned[static_cast<std::size_t>(global)];
    return counts.const_data_ptr<std::int64_t>()[member * own + expert];
  };
  Arrivals result;
  result.counts.assign(static_cast<std::size_t>(own), 0);
  std::vector<std::vector<std::int64_t>> arrived;
  for (std::int64_t member = 0; member < ep_.size; ++member) {
    std::vector<std::int64_t> row;
    std::int64_t out = 0;
    for (std::int64_t expert = 0; expert < own; ++expert) {
      out += count_of(sent, member, expert, member * own + expert);
      row.push_back(count_of(received, member, expert, ep_.rank * own + expert));
      result.counts[static_cast<std::size_t>(expert)] += row.back();
    }
    result.exchange.sent.push_back(out);
    result.exchange.received.push_back(total_of(row));
    arrived.push_back(std::move(row));
  }
  const std::int64_t block = block_of(plan), rows = total_of(result.counts);
  std::vector<std::int64_t> next;  // where the next row of an expert goes
  for (const std::int64_t count : result.counts) {
    next.push_back(total_of(result.computed));
    result.computed.push_back(rows_of_blocks(count, block));
  }
  result.by_expert.resize(static_cast<std::size_t>(rows));
  result.by_member.assign(static_cast<std::size_t>(total_of(result.computed)), rows);
  std::int64_t place = 0;
  for (const std::vector<std::int64_t>& row : arrived) {
    for (std::size_t expert = 0; expert < row.size(); ++expert) {
      for (std::int64_t i = 0; i < row[expert]; ++i, ++place) {
        result.by_expert[static_cast<std::size_t>(place)] = next[expert];
        result.by_member[static_cast<std::size_t>(next[expert]++)] = place;
      }
    }
  }
  return result;
}

}  // namespace trellis::trainer
