#include "trainer/parallel_layers/ring_attention.h"

#include <array>
#include <utility>

#include <ATen/OpMathType.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/calls/call_place.h"
#include "trainer/parallel_layers/derivative.h"
#include "trainer/parallel_layers/fused_attention.h"

namespace trellis::trainer {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// [s, b, n, d] → [b, n, s, d], or back: a permutation of both.
at::Tensor by_heads(const at::Tensor& input) { return input.permute({1, 2, 0, 3}); }
at::Tensor by_sequence(const at::Tensor& input) { return input.permute({2, 0, 1, 3}); }

at::Tensor part_of(const at::Tensor& heads, const RowRange& range) {
  return range.count == heads.size(2) ? heads : heads.narrow(2, range.first, range.count);
}

// ── the ring ──

/// One message under way. Its buffer lives until it has arrived.
class RingMessage {
 public:
  RingMessage() = default;
  static RingMessage send(const at::Tensor& tensor, const ParallelGroup& group, int to) {
    RingMessage message;
    message.tensors_ = {tensor};
    const runtime::CallSite here;
    message.work_ = group.group->send(message.tensors_, to, 0);
    return message;
  }
  static RingMessage receive(const at::Tensor& like, const ParallelGroup& group, int from) {
    RingMessage message;
    message.tensors_ = {at::empty_like(like)};
    const runtime::CallSite here;
    message.work_ = group.group->recv(message.tensors_, from, 0);
    return message;
  }
  /// Undefined when nothing is under way.
  at::Tensor wait() {
    if (!work_) return {};
    work_->wait();
    work_.reset();
    return std::move(tensors_.front());
  }

 private:
  std::vector<at::Tensor> tensors_;
  WorkPtr work_;
};

/// Adds a block's result to that of the blocks before: what both say, weighted by their sums of
/// exponentials.
void merge_block(const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& block_out,
                 const at::Tensor& block_logsumexp) {
  constexpr double kBeta = 1, kLinearFrom = 40;  // e⁻⁴⁰ is less than a rounding in fp64
  const at::Tensor more = block_logsumexp - logsumexp;
  out.addcmul_(block_out.to(out.scalar_type()) - out, at::sigmoid(more).unsqueeze(-1));
  logsumexp.add_(at::softplus(more, kBeta, kLinearFrom));
}

struct Attended {
  at::Tensor out;        ///< [b, n, s, d]
  at::Tensor logsumexp;  ///< [b, n, s]
};

class RingPass {
 public:
  RingPass(const Ring& ring, const at::Tensor& query, const std::vector<at::Tensor>& masks)
      : ring_(ring), query_(by_heads(query)), masks_(masks) {}

  /// `held`: key and value, [2, s, b, n_kv, d] contiguous.
  Attended forward(at::Tensor held) const {
    Attended result;
    const at::ScalarType wide = at::toOpMathType(query_.scalar_type());
    for (std::size_t i = 0; i < ring_.plan.steps.size(); ++i) {
      const RingStep& step = ring_.plan.steps[i];
      auto [sending, receiving] = exchange(step, held);
      const auto [out, logsumexp] = fused_attention(input(i, held));
      if (i == 0) {
        result = {ring_.plan.steps.size() == 1 ? out : out.to(wide), logsumexp};
      } else {
        merge_block(part_of(result.out, step.queries),
                    result.logsumexp.narrow(2, step.queries.first, step.queries.count), out,
                    logsumexp);
      }
      sending.wait();
      held = receiving.wait();
    }
    result.out = result.out.to(query_.scalar_type());
    return result;
  }

  /// Gradients of query, key and value, each [s, b, heads, d].
  std::vector<at::Tensor> backward(at::Tensor held, const Attended& attended,
                                   const at::Tensor& grad) const {
    const at::ScalarType wide = at::toOpMathType(query_.scalar_type());
    at::Tensor query_grad, own;  // own: of this rank's keys and values
    RingMessage sending_sum;     // until the next block is done: its receiver computes meanwhile
    const at::Tensor like = at::empty_like(held, held.options().dtype(wide));
    for (std::size_t i = 0; i < ring_.plan.steps.size(); ++i) {
      const RingStep& step = ring_.plan.steps[i];
      // In the order in which the previous rank sends: the gradients of its last block, then its
      // present block.
      RingMessage gradients;
      if (i > 0) gradients = RingMessage::receive(like, ring_.group, ring_.plan.previous);
      auto [sending, receiving] = exchange(step, held);
      const auto parts = fused_attention_backward(
          input(i, held), part_of(grad, step.queries), part_of(attended.out, step.queries),
          attended.logsumexp.narrow(2, step.queries.first, step.queries.count));
      if (i == 0) {
        query_grad = parts[0].to(wide);
      } else {
        part_of(query_grad, step.queries).add_(parts[0]);
      }
      const at::Tensor sum = add_block(gradients.wait(), step, parts, like);
      if (!step.sends && i == 0) own = sum;
      const int to = step.sends ? ring_.plan.next : step.owner;
      sending_sum.wait();
      if (step.sends || i > 0) sending_sum = RingMessage::send(sum, ring_.group, to);
      sending.wait();
      held = receiving.wait();
    }
    if (!own.defined())
      own = RingMessage::receive(like, ring_.group, ring_.plan.returned_from).wait();
    sending_sum.wait();
    return {by_sequence(query_grad), own[0], own[1]};
  }

 private:
  struct Exchange {
    RingMessage sending, receiving;
  };
  [[nodiscard]] Exchange exchange(const RingStep& step, const at::Tensor& held) const {
    Exchange exchange;
    if (step.sends) exchange.sending = RingMessage::send(held, ring_.group, ring_.plan.next);
    if (step.receives)
      exchange.receiving = RingMessage::receive(held, ring_.group, ring_.plan.previous);
    return exchange;
  }

  [[nodiscard]] FusedAttention input(std::size_t i, const at::Tensor& held) const {
    const RingStep& step = ring_.plan.steps[i];
    at::Tensor mask = i < masks_.size() ? masks_[i] : at::Tensor();
    if (mask.defined()) mask = mask.to(query_.scalar_type());
    return {part_of(query_, step.queries), part_of(by_heads(held[0]), step.keys),
            part_of(by_heads(held[1]), step.keys), mask, step.causal};
  }

  /// `sum` [2, s, b, n_kv, d], or undefined for the first block, and this rank's part of it.
  static at::Tensor add_block(at::Tensor sum, const RingStep& step,
                              const std::array<at::Tensor, 3>& parts, const at::Tensor& like) {
    const at::Tensor block = at::stack({by_sequence(parts[1]), by_sequence(parts[2])});
    if (!sum.defined()) return block.to(like.scalar_type());
    sum.narrow(1, step.keys.first, step.keys.count).add_(block);
    return sum;
  }

  const Ring& ring_;
  at::Tensor query_;
  const std::vector<at::Tensor>& masks_;
};

class RingAttentionBackward final : public Derivative {
 public:
  RingAttentionBackward(std::shared_ptr<const Ring> ring, std::vector<at::Tensor> masks)
      : ring_(std::move(ring)), masks_(std::move(masks)) {}

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor query = saved(0), held = saved(1);
    const at::Tensor grad = by_heads(grads[0].contiguous());
    auto result = RingPass(*ring_, query, masks_).backward(held, {saved(2), saved(3)}, grad);
    for (at::Tensor& one : result) one = one.to(query.scalar_type());
    return result;
  }

  std::shared_ptr<const Ring> ring_;
  std::vector<at::Tensor> masks_;
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& given_query, const at::Tensor& given_key,
                          const at::Tensor& value, const std::vector<at::Tensor>& masks,
                          const std::shared_ptr<const Ring>& ring) {
  // Under autocast rotated queries and keys are wider than values.
  const at::Tensor query = given_query.to(value.scalar_type()),
                   key = given_key.to(value.scalar_type());
  at::Tensor output, held;
  Attended attended;
  {
    BelowAutograd below;
    held = at::stack({key, value});
    attended = RingPass(*ring, query, masks).forward(held);
    output = by_sequence(attended.out).contiguous();
  }
  if (needs_derivative({query, key, value})) {
    auto node = c10::make_intrusive<RingAttentionBackward>(ring, masks);
    node->save(query);
    node->save(held);
    node->save(by_heads(output.detach()));
    node->save(attended.logsumexp);
    attach(node, {query, key, value}, {output});
  }
  return output;
}

}  // namespace trellis::trainer
