// The engine with a toy model whose gradients are known: y = w_0 · w_1 · … · x, loss = y · label.
#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/pipeline/model.h"

namespace trellis::trainer {
namespace {

MicroBatch micro_batch(at::Tensor input, at::Tensor label) {
  MicroBatch batch;
  batch.input_ids = std::move(input);
  batch.labels = std::move(label);
  return batch;
}

class Multiply final : public PipelineStage {
 public:
  Multiply(at::Tensor weight, bool is_last) : weight_(std::move(weight)), is_last_(is_last) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& input,
                                   const MicroBatch& batch) const override {
    const at::Tensor output = (input.defined() ? input : batch.input_ids) * weight_;
    return is_last_ ? (output * batch.labels).sum() : output;
  }

 private:
  at::Tensor weight_;
  bool is_last_;
};

std::vector<MicroBatch> micro_batches(int count, int dp_rank) {
  std::vector<MicroBatch> result;
  for (int m = 0; m < count; ++m)
    result.push_back(micro_batch(at::full({1}, m + 1.0 + dp_rank, at::kDouble),
                                 at::full({1}, 2.0 * m - 3, at::kDouble)));
  return result;
}

/// x·label of a micro-batch, and its mean over the micro-batches.
double product_of(int m, int dp_rank) { return (m + 1.0 + dp_rank) * (2.0 * m - 3); }
double mean_product(int count, int dp_rank) {
  double sum = 0;
  for (int m = 0; m < count; ++m) sum += product_of(m, dp_rank);
  return sum / count;
}

struct Mesh {
  int pp, dp, vpp, microbatches;
  bool border_given = true;
};

/// One rank's part of the toy: the weight of stage s starts as s + 2.
struct Toy {
  Toy(const Mesh& mesh, const ParallelState& state, PipelineOptions options = {})
      : context(make_context(state)) {
    const PipelineShape shape{mesh.microbatches, mesh.pp, mesh.vpp};
    std::vector<std::unique_ptr<PipelineStage>> stages;
    for (int chunk = 0; chunk < mesh.vpp; ++chunk) {
      const int stage = shape.stage(state.get_pipeline_model_parallel_rank(), chunk);
      weights.push_back(at::full({1}, stage + 2.0, at::kDouble).requires_grad_());
      stages.push_back(std::make_unique<Multiply>(weights.back(), stage == shape.num_stages() - 1));
    }
    options.num_microbatches = mesh.microbatches;
    if (mesh.border_given)
      options.border = BorderTensor{{1}, at::TensorOptions().dtype(at::kDouble)};
    model.emplace(std::move(stages), context, options);
  }
  static ModuleContext make_context(const ParallelState& state) {
    ModuleContext context;
    context.parallel = &state;
    context.dtype = at::kDouble;
    return context;
  }
  ModuleContext context;
  std::vector<at::Tensor> weights;
  std::optional<NxDPPModel> model;
};

double product_of_weights(const Mesh& mesh) {
  double product = 1;
  for (int stage = 0; stage < mesh.pp * mesh.vpp; ++stage) product *= stage + 2;
  return product;
}

double mean_loss(const Mesh& mesh, int count) {
  double loss = 0;
  for (int d = 0; d < mesh.dp; ++d)
    loss += product_of_weights(mesh) * mean_product(count, d) / mesh.dp;
  return loss;
}

template <class Body>
void on_ranks(const Mesh& mesh, const Body& body) {
  runtime::WorldOptions world;
  world.world_size = mesh.pp * mesh.dp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    body(ParallelState::initialize_model_parallel(rank, 1, mesh.pp));
  });
}

class PipelineEngine : public testing::TestWithParam<Mesh> {};

TEST_P(PipelineEngine, LossAndGradientsAreTheMeanOverMicroBatches) {
  const Mesh mesh = GetParam();
  on_ranks(mesh, [&](const ParallelState& state) {
    Toy toy(mesh, state);
    const int d = state.get_data_parallel_rank();
    for (int step = 1; step <= 2; ++step) {
      int reductions = 0;
      const at::Tensor loss =
          toy.model->run_train(micro_batches(mesh.microbatches, d), [&] { ++reductions; });
      EXPECT_NEAR(loss.item<double>(), mean_loss(mesh, mesh.microbatches),
                  1e-12 * std::abs(loss.item<double>()))
          << "the same on every rank";
      for (int chunk = 0; chunk < mesh.vpp; ++chunk) {
        const int stage = chunk * mesh.pp + state.get_pipeline_model_parallel_rank();
        const double expected =
            step * product_of_weights(mesh) / (stage + 2) * mean_product(mesh.microbatches, d);
        EXPECT_NEAR(toy.weights[static_cast<std::size_t>(chunk)].grad().item<double>(), expected,
                    1e-12 * std::abs(expected));
      }
      EXPECT_EQ(reductions, 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, PipelineEngine,
                         testing::Values(Mesh{1, 1, 1, 5}, Mesh{2, 1, 1, 5}, Mesh{3, 1, 1, 5},
                                         Mesh{7, 1, 1, 5}, Mesh{1, 2, 1, 5}, Mesh{2, 2, 1, 5},
                                         Mesh{2, 1, 2, 4}, Mesh{2, 1, 2, 2}, Mesh{2, 2, 3, 6},
                                         Mesh{3, 1, 2, 9}, Mesh{4, 1, 3, 4}, Mesh{4, 1, 2, 8},
                                         Mesh{1, 1, 3, 2}, Mesh{2, 1, 1, 5, false},
                                         Mesh{3, 2, 1, 2, false}, Mesh{2, 1, 2, 4, false},
                                         Mesh{3, 1, 3, 6, false}, Mesh{1, 1, 2, 3, false}),
                         [](const auto& test) {
                           const Mesh& mesh = test.param;
                           return "PP" + std::to_string(mesh.pp) + "VPP" +
                                  std::to_string(mesh.vpp) + "DP" + std::to_string(mesh.dp) + "M" +
                                  std::to_string(mesh.microbatches) +
                                  (mesh.border_given ? "" : "_learned");
                         });

TEST(PipelineEngineOutput, TheMeanLossOnTheLastStageOnly) {
  const Mesh mesh{3, 2, 1, 4};
  on_ranks(mesh, [&](const ParallelState& state) {
    PipelineOptions options;
    options.broadcast_and_average_loss = false;
    Toy toy(mesh, state, options);
    const int d = state.get_data_parallel_rank();
    const at::Tensor loss = toy.model->run_train(micro_batches(4, d), [] {});
    ASSERT_EQ(loss.defined(), state.is_pipeline_last_stage());
    if (!loss.defined()) return;
    EXPECT_NEAR(loss.item<double>(), product_of_weights(mesh) * mean_product(4, d), 1e-12)
        << "of this data-parallel rank";
  });
}

TEST(PipelineEngineOutput, TheLossOfEachMicroBatch) {
  const Mesh mesh{2, 1, 2, 4};
  on_ranks(mesh, [&](const ParallelState& state) {
    PipelineOptions options;
    options.broadcast_and_average_loss = false;
    options.return_mb_loss = true;
    Toy toy(mesh, state, options);
    const at::Tensor losses = toy.model->run_train(micro_batches(4, 0), [] {});
    ASSERT_EQ(losses.defined(), state.is_pipeline_last_stage());
    for (int m = 0; m < 4 && losses.defined(); ++m)
      EXPECT_EQ(losses[m].item<double>(), product_of_weights(mesh) * product_of(m, 0));
  });
}

TEST(PipelineEngineOutput, BothAtOnceIsRefused) {
  on_ranks({1, 1, 1, 1}, [&](const ParallelState& state) {
    PipelineOptions options;
    options.return_mb_loss = true;
    EXPECT_THROW(Toy({1, 1, 1, 1}, state, options), c10::Error);
  });
}

TEST(PipelineEngineEval, TheLossWithoutAGradient) {
  for (const Mesh& mesh :
       {Mesh{1, 1, 1, 2}, Mesh{3, 1, 1, 2}, Mesh{2, 2, 1, 2}, Mesh{3, 1, 1, 2, false}}) {
    on_ranks(mesh, [&](const ParallelState& state) {
      Toy toy(mesh, state);
      const int d = state.get_data_parallel_rank();
      for (int count : {5, 1}) {
        EXPECT_NEAR(toy.model->run_eval(micro_batches(count, d)).item<double>(),
                    mean_loss(mesh, count), 1e-12);
        EXPECT_FALSE(toy.weights[0].grad().defined());
      }
      (void)toy.model->run_train(micro_batches(2, d), [] {});
      EXPECT_TRUE(toy.weights[0].grad().defined()) << "training after an evaluation";
    });
  }
}

/// The text of what `call` throws.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(PipelineEngineEval, VirtualStagesAreANamedError) {
  on_ranks({2, 1, 2, 2}, [&](const ParallelState& state) {
    Toy toy({2, 1, 2, 2}, state);
    EXPECT_THAT(message_of([&] { (void)toy.model->run_eval(micro_batches(2, 0)); }),
                testing::HasSubstr("virtual_pipeline_model_parallel_size 1, got 2"));
  });
}

TEST(PipelineEngineInput, AWrongNumberOfMicroBatchesIsNamed) {
  const ParallelState state;
  Toy toy({1, 1, 1, 3}, state);
  EXPECT_THAT(message_of([&] { (void)toy.model->run_train(micro_batches(5, 0), [] {}); }),
              testing::HasSubstr("expected 3 micro-batches, got 5"));
}

TEST(PipelineEngineInput, AChangeOfShapeIsNamed) {
  const Mesh mesh{2, 1, 1, 2, false};
  const auto run = [&] {
    on_ranks(mesh, [&](const ParallelState& state) {
      Toy toy(mesh, state);
      (void)toy.model->run_train(micro_batches(2, 0), [] {});
      auto batches = micro_batches(2, 0);
      batches[1].input_ids = at::ones({3}, at::kDouble);
      (void)toy.model->run_train(batches, [] {});
    });
  };
  EXPECT_THAT(
      message_of(run),
      testing::AllOf(testing::HasSubstr("stage 0 sends to stage 1 changed its shape"),
                     testing::HasSubstr("expected Double [1], got Double [3] (micro-batch 1)")));
}

TEST(PipelineEngineInput, ALossOfSeveralNumbersIsNamed) {
  const ParallelState state;
  ModuleContext context = Toy::make_context(state);
  std::vector<std::unique_ptr<PipelineStage>> stages;
  stages.push_back(std::make_unique<Multiply>(at::ones({2}, at::kDouble).requires_grad_(), false));
  NxDPPModel model(std::move(stages), context, {});
  EXPECT_THAT(message_of([&] { (void)model.run_train(micro_batches(1, 0), [] {}); }),
              testing::HasSubstr("one number: got sizes [2]"));
}

/// A loss in bf16 would round each of the sums: 1/3 of three micro-batches' losses of 257 is 257,
/// which bf16 does not have.
TEST(PipelineEngineInput, LossesAreAveragedInFp32) {
  const ParallelState state;
  ModuleContext context = Toy::make_context(state);
  std::vector<std::unique_ptr<PipelineStage>> stages;
  const at::Tensor weight = at::ones({1}, at::kBFloat16).requires_grad_();
  stages.push_back(std::make_unique<Multiply>(weight, true));
  PipelineOptions options;
  options.num_microbatches = 3;
  NxDPPModel model(std::move(stages), context, options);
  std::vector<MicroBatch> batches;
  for (double x : {256.0, 256.0, 260.0})
    batches.push_back(micro_batch(at::full({1}, x, at::kBFloat16), at::ones({1}, at::kBFloat16)));
  const at::Tensor loss = model.run_train(batches, [] {});
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(loss.item<float>(), 772.0F / 3);
}

/// The first stage; remembers which of its outputs are still alive.
struct Remember final : PipelineStage {
  mutable std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> outputs;
  at::Tensor weight = at::ones({1}, at::kDouble).requires_grad_();
  [[nodiscard]] at::Tensor forward(const at::Tensor&, const MicroBatch& batch) const override {
    at::Tensor output = batch.input_ids * weight;
    outputs.emplace_back(output.getIntrusivePtr());
    return output;
  }
  [[nodiscard]] int alive() const {
    return static_cast<int>(std::count_if(outputs.begin(), outputs.end(),
                                          [](const auto& output) { return !output.expired(); }));
  }
};

TEST(PipelineEngineMemory, DeallocationKeepsOnlyTheGraphOfASentOutput) {
  for (const bool deallocate : {true, false}) {
    on_ranks({2, 1, 1, 4}, [&](const ParallelState& state) {
      ModuleContext context = Toy::make_context(state);
      PipelineOptions options;
      options.num_microbatches = 4;
      options.deallocate_pipeline_outputs = deallocate;
      std::vector<std::unique_ptr<PipelineStage>> stages;
      if (state.is_pipeline_last_stage()) {
        stages.push_back(
            std::make_unique<Multiply>(at::ones({1}, at::kDouble).requires_grad_(), true));
        (void)NxDPPModel(std::move(stages), context, options).run_train(micro_batches(4, 0), [] {});
        return;
      }
      auto first = std::make_unique<Remember>();
      const Remember& remember = *first;
      std::vector<int> alive;
      at::Tensor weight = first->weight;
      weight.register_hook([&](const at::Tensor& grad) {
        alive.push_back(remember.alive());
        return grad;
      });
      stages.push_back(std::move(first));
      NxDPPModel model(std::move(stages), context, options);
      (void)model.run_train(micro_batches(4, 0), [] {});
      // Two forwards ran before the first backward, whose own output is free in both cases.
      EXPECT_EQ(alive.at(0), deallocate ? 0 : 1);
      EXPECT_DOUBLE_EQ(weight.grad().item<double>(), mean_product(4, 0));
    });
  }
}

}  // namespace
}  // namespace trellis::trainer
