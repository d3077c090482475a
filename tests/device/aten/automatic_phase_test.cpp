#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/device/aten/time_fixture.h"

/// Phases of a program that announces none, as its finished graphs show them.
namespace trellis::device::testing {
namespace {

using at::Tensor;
using Names = std::vector<std::string>;

class AutomaticPhaseTest : public TimedDevice {
 protected:
  AutomaticPhaseTest() {
    w = ones(8).requires_grad_();
    x = ones(8);
    seed = at::ones({}, x.options());
    recorder().cut("test");
    recorder().impl().step.instances.clear();
  }
  Tensor loss() { return x.mm(w).relu().sum(); }
  void backward(const Tensor& value) {
    w.mutable_grad() = torch::autograd::grad(
        {value}, {w}, {seed})[0];  // a seed of the engine's own is made outside of it
  }
  void optimizer_step() {
    at::RecordFunction step(at::RecordScope::USER_SCOPE);
    step.before("Optimizer.step#SGD.step");
    const c10::NoGradGuard no_grad;
    w.sub_(w.grad(), 0.1);
  }
  Tensor w, x, seed;
};

TEST_F(AutomaticPhaseTest, ATrainingStepIsForwardBackwardOptimizer) {
  for (int step = 0; step < 2; ++step) {
    backward(loss());
    optimizer_step();
  }
  recorder().cut("test");
  EXPECT_EQ(graphs(),
            (Names{"forward", "backward", "optimizer", "forward", "backward", "optimizer"}));
  const auto& step = recorder().impl().step.instances;
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(step[i].graph, step[i + 3].graph) << "equal steps are equal graphs";
}

TEST_F(AutomaticPhaseTest, TheGraphsAreThoseOfAnnouncedPhases) {
  const auto train = [&](bool announce) {
    recorder().impl().step.instances.clear();
    Tensor value;
    const auto scope = [&](const char* name, auto body) {
      if (!announce) return body();
      at::RecordFunction phase(at::RecordScope::USER_SCOPE);
      phase.before(name);
      body();
    };
    scope("phase=forward", [&] { value = loss(); });
    scope("phase=backward", [&] { backward(value); });
    scope("phase=optimizer", [&] { optimizer_step(); });
    recorder().cut("test");
    std::vector<std::uint32_t> ids;
    for (const GraphInstance& i : recorder().impl().step.instances) ids.push_back(i.graph);
    return ids;
  };
  train(false);  // gradients exist from here on
  const auto automatic = train(false), announced = train(true);
  ASSERT_EQ(automatic.size(), 3u);
  EXPECT_EQ(automatic, announced);
}

TEST_F(AutomaticPhaseTest, AnnouncingPhasesDisablesAutomaticOnes) {
  {
    at::RecordFunction phase(at::RecordScope::USER_SCOPE);
    phase.before("phase=forward");
    loss().item();
    backward(loss());
  }
  x.add(x);
  recorder().cut("test");
  EXPECT_EQ(graphs(), (Names{"forward", "other"})) << "neither item() nor the engine ends a graph";
}

TEST_F(AutomaticPhaseTest, NoGradStretchesBelongToTheirForward) {
  Tensor y = x.mm(w);
  {
    const c10::NoGradGuard no_grad;
    y = y + x.cos();
  }
  y = y.mm(w);
  recorder().cut("test");
  EXPECT_EQ(graphs(), Names{"forward"});
}

TEST_F(AutomaticPhaseTest, WithoutGradientsItIsEvaluation) {
  {
    const c10::NoGradGuard no_grad;
    loss().item();
  }
  EXPECT_EQ(graphs(), Names{"eval"});
}

TEST_F(AutomaticPhaseTest, TheHostsReadingEndsAGraph) {
  x.add(x).sum().item();
  EXPECT_EQ(graphs().size(), 1u);
  x.add(x).cpu();
  EXPECT_EQ(graphs().size(), 2u);
  x.copy_(at::zeros({8, 8}));  // the other way does not wait
  x.add(x);
  EXPECT_EQ(graphs().size(), 2u);
}

TEST_F(AutomaticPhaseTest, AnOptimizersClosureIsForwardAndBackward) {
  at::RecordFunction step(at::RecordScope::USER_SCOPE);
  step.before("Optimizer.step#LBFGS.step");
  backward(loss());
  {
    const c10::NoGradGuard no_grad;
    w.sub_(w.grad(), 0.1);
  }
  recorder().cut("test");
  EXPECT_EQ(graphs(), (Names{"forward", "backward", "optimizer"}));
}

TEST_F(AutomaticPhaseTest, NoGraphGrowsWithoutBound) {
  for (std::size_t i = 0; i < 2 * RankRecorder::kMaxAutomaticOps + 10; ++i) x.add_(1);
  EXPECT_EQ(graphs().size(), 2u);
  for (const GraphInstance& i : recorder().impl().step.instances) {
    EXPECT_EQ(recorder().impl().graphs[i.graph].nodes.size(), RankRecorder::kMaxAutomaticOps);
  }
}

}  // namespace
}  // namespace trellis::device::testing
