// A custom callback: it sees each step of a training, adds its number to the logged ones, and ends
// the training when the loss is low enough. docs/guides/extend.md explains it.
#include <cstdio>

#include "runtime/ranks/world.h"
#include "runtime/rendezvous/stop_request.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"

using namespace trellis::trainer;

/// Called after each step on the first rank of each process, when every rank has ended it.
class StopWhenGood {
 public:
  explicit StopWhenGood(double bar) : bar_(bar) {}
  void operator()(StepResult& step) {
    smooth_ = step.step == 1 ? step.loss : 0.7 * smooth_ + 0.3 * step.loss;
    step.scalars["smooth_loss"] = smooth_;  // early stopping and checkpoints may monitor it
    last_ = step.step;
    std::printf("step %d  loss %.3f  smooth %.3f\n", static_cast<int>(step.step), step.loss,
                smooth_);
    // Every rank ends after the same step.
    if (smooth_ < bar_) trellis::runtime::request_stop();
  }
  [[nodiscard]] std::int64_t last() const { return last_; }

 private:
  double bar_, smooth_ = 0;
  std::int64_t last_ = 0;
};

int main(int, char** argv) {
  const RunConfig config = load_run_config(
      argv[1], {"trainer.devices=2", "model.num_layers=2", "model.hidden_size=64",
                "model.ffn_hidden_size=128", "model.encoder_seq_length=32",
                "distributed_strategy.pipeline_model_parallel_size=1", "precision.type=fp32"});
  const auto data = make_data_module(config);
  StopWhenGood callback(4.5);
  StopReason reason = StopReason::kMaxSteps;
  trellis::runtime::run_ranks({.world_size = config.world_size()}, [&](auto& rank) {
    const StopReason ended =
        Trainer(config, rank, data).fit([&](StepResult& step) { callback(step); });
    if (rank.rank() == 0) reason = ended;
  });
  std::printf("ended by %s after step %d\n", name_of(reason), static_cast<int>(callback.last()));
  const bool early = callback.last() < config.trainer.max_steps;
  return reason == StopReason::kInterrupted && early ? 0 : 1;
}
