#include "trainer/verify/tampered_group.h"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

namespace trellis::trainer {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Done when `inner` is (null: at once); then runs `after` once.
class ThenWork final : public c10d::Work {
 public:
  explicit ThenWork(WorkPtr inner = {}, std::function<void()> after = {})
      : inner_(std::move(inner)), after_(std::move(after)) {}
  bool isCompleted() override { return !inner_ || inner_->isCompleted(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (inner_ && !inner_->wait(timeout)) return false;
    const at::NoGradGuard no_grad;
    if (after_) std::exchange(after_, {})();
    return true;
  }

 private:
  WorkPtr inner_;
  std::function<void()> after_;
};

class TamperedGroup final : public c10d::ProcessGroup {
 public:
  TamperedGroup(const ParallelGroup& inner, Tampering tampering)
      : ProcessGroup(inner.rank, inner.size),
        inner_(inner.group),
        tampering_(std::move(tampering)) {}

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    const bool is_sum = options.reduceOp == c10d::ReduceOp::SUM;
    if (is_sum && leaves_out(tensors)) return c10::make_intrusive<ThenWork>();
    WorkPtr work = inner_->allreduce(tensors, options);
    return is_sum ? scaled(std::move(work), tensors) : work;
  }
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    if (!tampering_.leaves_out_gather) return inner_->all_gather_single(output, input, options);
    keep_own_part(output, input);
    return c10::make_intrusive<ThenWork>();
  }
  WorkPtr all_gather_single_coalesced(std::vector<at::Tensor>& outputs,
                                      std::vector<at::Tensor>& inputs,
                                      const c10d::AllgatherOptions& options) override {
    if (!tampering_.leaves_out_gather)
      return inner_->all_gather_single_coalesced(outputs, inputs, options);
    for (std::size_t i = 0; i < inputs.size(); ++i) keep_own_part(outputs[i], inputs[i]);
    return c10::make_intrusive<ThenWork>();
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    if (leaves_out({input})) {
      take_own_part(output, input);
      return c10::make_intrusive<ThenWork>();
    }
    return scaled(inner_->reduce_scatter_single(output, input, options), {output});
  }
  WorkPtr reduce_scatter_single_coalesced(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    if (leaves_out(inputs)) {
      for (std::size_t i = 0; i < inputs.size(); ++i) take_own_part(outputs[i], inputs[i]);
      return c10::make_intrusive<ThenWork>();
    }
    return scaled(inner_->reduce_scatter_single_coalesced(outputs, inputs, options), outputs);
  }
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    WorkPtr work = inner_->all_to_all_single(output, input, output_splits, input_splits, options);
    const bool returns = output.is_floating_point() && exchanges_++ % 2 == 1;
    if (!tampering_.misplaces_returns || !returns) return work;
    return c10::make_intrusive<ThenWork>(std::move(work),
                                         [output] { output.copy_(output.roll(1, 0)); });
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    WorkPtr work = inner_->recv(tensors, from, tag);
    if (!tampering_.receives_late) return work;
    return c10::make_intrusive<ThenWork>(
        std::move(work), [this, tensor = tensors.front(), from] { swap_with_last(tensor, from); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

 private:
  [[nodiscard]] bool leaves_out(const std::vector<at::Tensor>& tensors) const {
    return tampering_.leaves_out_sum && tampering_.leaves_out_sum(tensors.front());
  }
  WorkPtr scaled(WorkPtr work, const std::vector<at::Tensor>& results) const {
    if (!tampering_.scales_sum) return work;
    return c10::make_intrusive<ThenWork>(std::move(work), [scale = tampering_.scales_sum, results] {
      for (const at::Tensor& result : results) result.mul_(scale(result));
    });
  }
  void keep_own_part(const at::Tensor& output, const at::Tensor& input) const {
    output.view(-1).narrow(0, rank_ * input.numel(), input.numel()).copy_(input.view(-1));
  }
  void take_own_part(const at::Tensor& output, const at::Tensor& input) const {
    output.view(-1).copy_(input.view(-1).narrow(0, rank_ * output.numel(), output.numel()));
  }
  void swap_with_last(at::Tensor tensor, int from) {
    at::Tensor now = tensor.clone();
    at::Tensor& last = last_[from];
    tensor.copy_(last.defined() ? last : at::zeros_like(tensor));
    last = std::move(now);
  }

  c10::intrusive_ptr<c10d::ProcessGroup> inner_;
  Tampering tampering_;
  std::int64_t exchanges_ = 0;
  std::map<int, at::Tensor> last_;
};

}  // namespace

ParallelGroup tampered(const ParallelGroup& group, Tampering tampering) {
  if (group.size == 1) return group;
  ParallelGroup result = group;
  result.group = c10::make_intrusive<TamperedGroup>(group, std::move(tampering));
  return result;
}

}  // namespace trellis::trainer
