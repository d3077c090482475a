#include "trainer/modules/moe/dispatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "runtime/calls/call_place.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// With a row of zeros at the end, which index size(0) selects.
at::Tensor padded(const at::Tensor& rows) {
  return at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
}

at::Tensor selected(const at::Tensor& rows, const at::Tensor& index) {
  return padded(rows).index_select(0, index);
}

class SelectRowsBackward final : public Derivative {
 public:
  SelectRowsBackward(at::Tensor inverse, std::int64_t copies)
      : inverse_(std::move(inverse)), copies_(copies) {}

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor rows = selected(grads[0], inverse_);
    if (copies_ == 1) return {rows};
    return {rows.view({-1, copies_, rows.size(1)}).sum(1)};
  }
  at::Tensor inverse_;
  std::int64_t copies_;
};

at::Tensor exchanged(const at::Tensor& rows, const ParallelGroup& group,
                     const RowExchange& exchange) {
  at::Tensor input = rows.contiguous();
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  if (!exchange.received.empty())
    sizes[0] = std::accumulate(exchange.received.begin(), exchange.received.end(), std::int64_t{0});
  at::Tensor output = at::empty(sizes, rows.options());
  std::vector<std::int64_t> received = exchange.received, sent = exchange.sent;
  const runtime::CallSite here;
  group.group->all_to_all_single(output, input, received, sent)->wait();
  return output;
}

class ExchangeBackward final : public Derivative {
 public:
  ExchangeBackward(ParallelGroup group, RowExchange back)
      : group_(std::move(group)), back_(std::move(back)) {}

 private:
  Tensors backward(Tensors grads) override { return {exchanged(grads[0], group_, back_)}; }
  ParallelGroup group_;
  RowExchange back_;
};

}  // namespace

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, double factor,
                             std::int64_t experts) {
  const double share = static_cast<double>(tokens * top_k) * factor / static_cast<double>(experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(share)));
}

namespace {

/// The inverse of `pick_slot`.
at::Tensor picks_of_slots(const at::Tensor& pick_slot, std::int64_t slots) {
  const std::int64_t picks = pick_slot.size(0);
  return at::full({slots + 1}, picks, pick_slot.options())
      .scatter(0, pick_slot, at::arange(picks, pick_slot.options()))
      .narrow(0, 0, slots);
}

}  // namespace

DispatchPlan plan_dispatch(const at::Tensor& experts, std::int64_t num_experts,
                           std::int64_t capacity) {
  DispatchPlan plan;
  plan.tokens = experts.size(0);
  plan.top_k = experts.size(1);
  plan.capacity = capacity;
  const std::int64_t picks = plan.tokens * plan.top_k;
  plan.slots = capacity > 0 ? num_experts * capacity : picks;
  const at::Tensor mask =
      at::zeros({plan.tokens, num_experts}, experts.options()).scatter(1, experts, 1);
  const at::Tensor places = mask.cumsum(0);
  plan.assigned = mask.sum(0);
  const at::Tensor place = places.gather(1, experts) - 1;
  if (capacity > 0) {
    plan.kept = plan.assigned.clamp_max(capacity);
    plan.pick_slot = at::where(place.lt(capacity), experts * capacity + place, plan.slots);
  } else {
    plan.kept = plan.assigned;
    const at::Tensor first = plan.assigned.cumsum(0) - plan.assigned;
    plan.pick_slot = first.index_select(0, experts.reshape(-1)).view(experts.sizes()) + place;
  }
  plan.pick_slot = plan.pick_slot.reshape(-1);
  plan.slot_pick = picks_of_slots(plan.pick_slot, plan.slots);
  return plan;
}

std::int64_t rows_of_blocks(std::int64_t rows, std::int64_t block) {
  return (rows + block - 1) / block * block;
}

DispatchPlan in_blocks(DispatchPlan plan, const at::Tensor& experts,
                       const std::vector<std::int64_t>& counts, std::int64_t block) {
  std::vector<std::int64_t> shifts;  // of each expert's first slot
  std::int64_t shift = 0;
  for (const std::int64_t count : counts) {
    shifts.push_back(shift);
    shift += rows_of_blocks(count, block) - count;
  }
  if (shift == 0) return plan;
  const at::Tensor on_device = at::tensor(shifts, at::kLong).to(experts.device());
  plan.slots += shift;
  plan.pick_slot = plan.pick_slot + on_device.index_select(0, experts.reshape(-1));
  plan.slot_pick = picks_of_slots(plan.pick_slot, plan.slots);
  return plan;
}

at::Tensor select_rows(const at::Tensor& input, const at::Tensor& index, const at::Tensor& inverse,
                       std::int64_t copies) {
  at::Tensor output;
  {
    BelowAutograd below;
    output = selected(input, index);
  }
  if (needs_derivative({input}))
    attach(c10::make_intrusive<SelectRowsBackward>(inverse, copies), {input}, {output});
  return output;
}

at::Tensor to_slots(const at::Tensor& tokens, const DispatchPlan& plan) {
  return select_rows(tokens, plan.slot_pick.div(plan.top_k, "floor"), plan.pick_slot, plan.top_k);
}

at::Tensor from_slots(const at::Tensor& slots, const DispatchPlan& plan) {
  const std::int64_t picks = plan.tokens * plan.top_k;
  const at::TensorOptions numbers = plan.pick_slot.options();
  const at::Tensor place =
      at::arange(picks, numbers).view({plan.top_k, plan.tokens}).t().reshape(-1);
  const at::Tensor place_of_pick = at::cat({place, at::full({1}, picks, numbers)});
  return select_rows(slots, plan.pick_slot.view({plan.tokens, plan.top_k}).t().reshape(-1),
                     place_of_pick.index_select(0, plan.slot_pick))
      .view({plan.top_k, plan.tokens, slots.size(1)});
}

at::Tensor exchange_rows(const at::Tensor& rows, const ParallelGroup& group,
                         const RowExchange& exchange) {
  if (group.size == 1) return rows;
  at::Tensor output;
  {
    BelowAutograd below;
    output = exchanged(rows, group, exchange);
  }
  if (needs_derivative({rows})) {
    const RowExchange back{exchange.received, exchange.sent};
    attach(c10::make_intrusive<ExchangeBackward>(group, back), {rows}, {output});
  }
  return output;
}

}  // namespace trellis::trainer
