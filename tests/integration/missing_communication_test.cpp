// The layout comparison is only worth something if it fails when a communication is missing. Here
// each communication of the first training step is left out one after the other, on all ranks
// alike, and every time the run must differ from one rank.
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/integration/layout_run.h"

namespace trellis::trainer::missing_communication_test {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

struct DoneWork final : c10d::Work {
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// Counts the collectives of one axis and leaves out the `skip`-th: each rank goes on with what it
/// has.
class ForgetfulGroup final : public c10d::ProcessGroup {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  ForgetfulGroup(const ParallelGroup& inner, int skip)
      : ProcessGroup(inner.rank, inner.size), inner_(inner.group), skip_(skip) {}
  [[nodiscard]] int calls() const { return calls_; }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    if (!forget()) return inner_->allreduce(tensors, options);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    if (!forget()) return inner_->all_gather_single(output, input, options);
    keep_own_part(output, input);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    if (!forget()) return inner_->reduce_scatter_single(output, input, options);
    take_own_part(output, input);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPtr all_gather_single_coalesced(std::vector<at::Tensor>& outputs,
                                      std::vector<at::Tensor>& inputs,
                                      const c10d::AllgatherOptions& options) override {
    if (!forget()) return inner_->all_gather_single_coalesced(outputs, inputs, options);
    for (std::size_t i = 0; i < inputs.size(); ++i) keep_own_part(outputs[i], inputs[i]);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPtr reduce_scatter_single_coalesced(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    if (!forget()) return inner_->reduce_scatter_single_coalesced(outputs, inputs, options);
    for (std::size_t i = 0; i < inputs.size(); ++i) take_own_part(outputs[i], inputs[i]);
    return c10::make_intrusive<DoneWork>();
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return inner_->recv(tensors, from, tag);
  }

 private:
  bool forget() { return calls_++ == skip_; }
  void keep_own_part(const at::Tensor& output, const at::Tensor& input) const {
    output.zero_();
    output.view(-1).narrow(0, rank_ * input.numel(), input.numel()).copy_(input.view(-1));
  }
  void take_own_part(const at::Tensor& output, const at::Tensor& input) const {
    output.view(-1).copy_(input.view(-1).narrow(0, rank_ * output.numel(), output.numel()));
  }
  c10::intrusive_ptr<c10d::ProcessGroup> inner_;
  int skip_;
  int calls_ = 0;
};

enum class Axis { kTensor, kPipeline, kData };

struct Case {
  const char* name;
  Layout layout;
  Axis axis;
  int calls;  ///< communications of the axis in a step, counted by hand
};

RunConfig tiny(const Layout& layout, std::int64_t steps) {
  RunConfig config = small_llama(layout, "fp64", steps);
  config.model.num_layers = 2;
  config.model.encoder_seq_length = 8;
  config.data.global_batch_size = 4;
  config.trainer.gradient_clip_val =
      0.05;  // always active, so that the gradient norm reaches the weights
  return config;
}

/// Trains one step with call `skip` of the axis left out (−1: none). `calls`: communications of the
/// axis on rank 0.
Outcome train_forgetting(const Case& c, int skip, int* calls = nullptr) {
  c10::intrusive_ptr<ForgetfulGroup> of_rank_zero;
  Outcome outcome = train(tiny(c.layout, 1), c.layout, {}, [&](const ParallelState& groups) {
    ParallelGroup axes[] = {groups.get_tensor_model_parallel_group(),
                            groups.get_pipeline_model_parallel_group(),
                            groups.get_data_parallel_group()};
    ParallelGroup& axis = axes[static_cast<int>(c.axis)];
    auto forgetful = c10::make_intrusive<ForgetfulGroup>(axis, skip);
    axis.group = forgetful;
    if (axis.rank == 0) of_rank_zero = forgetful;
    return ParallelState(axes[0], axes[1], axes[2]);
  });
  if (calls != nullptr) *calls = of_rank_zero->calls();
  return outcome;
}

class MissingCommunication : public testing::TestWithParam<Case> {};

TEST_P(MissingCommunication, IsNoticedWhicheverItIs) {
  const Case& c = GetParam();
  const Outcome one_rank = train(tiny({}, 1), {});
  int calls = 0;
  EXPECT_LE(worst_error(train_forgetting(c, -1, &calls), one_rank), 1e-10) << "nothing left out";
  ASSERT_EQ(calls, c.calls);
  for (int skip = 0; skip < calls; ++skip) {
    const Outcome outcome = train_forgetting(c, skip);
    EXPECT_TRUE(worst_error(outcome, one_rank) > 1e-10 || !outcome.replicas_equal)
        << "communication " << skip << " of " << calls;
  }
}

// Tensor: per micro-batch (4) embedding 1, layer (2) forward 2 + backward 2, head 1, loss 2; then
// the gradient norm. With sequence parallelism a sum becomes a reduce-scatter and has an all-gather
// as its backward, and the head and each block gather their input twice. Data, two buckets: reduce
// 2, loss 1 and, with ZeRO-1, norm 1, gather 2. Pipeline: loss and norm.
INSTANTIATE_TEST_SUITE_P(
    Axes, MissingCommunication,
    testing::Values(
        Case{"tensor", {2, 1, 1, false, true}, Axis::kTensor, 4 * (1 + 2 * 4 + 1 + 2) + 1},
        Case{"tensor_sequence_parallel",
             {2, 1, 1, true, true},
             Axis::kTensor,
             4 * (2 + 2 * 10 + 3 + 2) + 2},
        Case{"data_zero1", {1, 1, 2, false, true}, Axis::kData, 6},
        Case{"data", {1, 1, 2, false, false}, Axis::kData, 3},
        Case{"pipeline", {1, 2, 1, false, true}, Axis::kPipeline, 2}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trellis::trainer::missing_communication_test
