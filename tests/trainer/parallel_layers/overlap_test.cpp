// Which communication runs concurrently with which product, in which type: the order of events of
// one backward pass.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/qkv_linear.h"

namespace trellis::trainer {
namespace {

using namespace testing_support;
using Log = std::vector<std::string>;

thread_local Log* log_of_products = nullptr;

std::unique_ptr<at::ObserverContext> note_product(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name == "aten::mm" || name == "aten::addmm_") log_of_products->push_back("product");
  return nullptr;
}

struct NotedWork final : c10d::Work {
  NotedWork(c10::intrusive_ptr<c10d::Work> inner, Log& log, std::string name)
      : inner_(std::move(inner)), log_(log), name_(std::move(name)) {}
  bool isCompleted() override { return inner_->isCompleted(); }
  bool wait(std::chrono::milliseconds timeout) override {
    log_.push_back("wait " + name_);
    return inner_->wait(timeout);
  }
  c10::intrusive_ptr<c10d::Work> inner_;
  Log& log_;
  std::string name_;
};

/// Notes each start and each wait.
class NotedGroup final : public c10d::ProcessGroup {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  NotedGroup(const ParallelGroup& inner, Log& log, std::string name)
      : ProcessGroup(inner.rank, inner.size),
        inner_(inner.group),
        log_(log),
        name_(std::move(name)) {}
  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    return noted("sum " + std::string(c10::toString(tensors[0].scalar_type())),
                 inner_->allreduce(tensors, options));
  }
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    return noted("gather", inner_->all_gather_single(output, input, options));
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return noted("scatter " + std::string(c10::toString(input.scalar_type())),
                 inner_->reduce_scatter_single(output, input, options));
  }

 private:
  WorkPtr noted(const std::string& what, WorkPtr work) {
    log_.push_back(name_ + what);
    return c10::make_intrusive<NotedWork>(std::move(work), log_, name_ + what);
  }
  c10::intrusive_ptr<c10d::ProcessGroup> inner_;
  Log& log_;
  std::string name_;
};

/// The log of one backward pass on rank 0.
template <typename Forward>
Log backward_of(const Setup& setup, const Forward& forward) {
  Log result;
  run(setup, [&](Rank& rank) {
    Log log;
    ParallelGroup tp = rank.context.tp(), kv = rank.state.get_kv_shared_group();
    tp.group = c10::make_intrusive<NotedGroup>(tp, log, "");
    if (kv.size > 1) kv.group = c10::make_intrusive<NotedGroup>(kv, log, "kv ");
    rank.state = ParallelState(tp, {}, {}).with_kv_shared_group(kv, setup.order);
    rank.context.dtype = at::kBFloat16;
    at::Tensor x = rank.region(at::ones({8, 2, 12}, at::kBFloat16)).clone().requires_grad_();
    const at::Tensor y = forward(rank, x);
    log.clear();
    log_of_products = &log;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note_product).scopes({at::RecordScope::FUNCTION}));
    y.backward(at::ones_like(y));
    at::removeCallback(handle);
    if (tp.rank == 0) result = log;
  });
  return result;
}

at::Tensor column(Rank& rank, const at::Tensor& x, at::ScalarType reduce_dtype) {
  const ColumnParallelLinear layer(
      rank.context, "p", 12, {{"", 8}},
      {.bias = false, .gather_output = false, .reduce_dtype = reduce_dtype});
  return layer.forward(x)[0];
}

TEST(AsyncGradientAllReduce, OverlapsTheWeightsGradient) {
  for (const auto& [dtype, sum] :
       {std::pair{at::kFloat, "sum Float"}, std::pair{at::kBFloat16, "sum BFloat16"}}) {
    const Log log = backward_of(
        {2}, [dtype = dtype](Rank& rank, const at::Tensor& x) { return column(rank, x, dtype); });
    EXPECT_THAT(log, testing::ElementsAre("product", sum, "product", std::string("wait ") + sum));
  }
}

TEST(AsyncGradientAllReduce, WithSequenceParallelismTheGatherOverlapsTheInputsGradient) {
  const Log log = backward_of(
      {2, true}, [](Rank& rank, const at::Tensor& x) { return column(rank, x, at::kFloat); });
  EXPECT_THAT(log, testing::ElementsAre("gather", "product", "scatter Float", "wait gather",
                                        "product", "wait scatter Float"));
}

TEST(AsyncGradientAllReduce, TheSumOverReplicasOverlapsTheInputsGradient) {
  const Log log = backward_of({4, false, 2}, [](Rank& rank, const at::Tensor& x) {
    rank.context.reduce_dtype = at::kFloat;
    const GQAQKVColumnParallelLinear layer(
        rank.context, "p", {12, 4, 2, 3},
        {.bias = false, .gather_output = false, .kv_size_multiplier = 2});
    const auto [q, k, v] = layer.forward(x);
    return q * k + v;
  });
  EXPECT_THAT(log, testing::ElementsAre("kv sum Float", "product", "sum Float", "wait kv sum Float",
                                        "product", "wait sum Float"));
}

}  // namespace
}  // namespace trellis::trainer
