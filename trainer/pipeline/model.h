#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include "trainer/config/schedule/tasks.h"
#include "trainer/data/data_module.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/comm.h"
#include "trainer/pipeline/replay.h"
#include "trainer/pipeline/stage.h"
#include "trainer/pipeline/timeline.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {

/// Results of a pass, and its use of memory. The names are NxD's.
struct PipelineOptions {
  int num_microbatches = 1;
  std::optional<BorderTensor> border;       ///< none: learned in the first step
  bool deallocate_pipeline_outputs = true;  ///< of a sent output only the graph node is kept
  bool return_mb_loss = false;  ///< the losses of all micro-batches, [M], on the last stage
  bool broadcast_and_average_loss =
      true;  ///< the mean also over data-parallel ranks, on every rank
  std::string trace_file_path =
      {};  ///< "": no timeline; written by the pipeline of data- and tensor-parallel rank 0
  std::string trace_title = {};       ///< what this rank holds, for the timeline
  std::optional<Replay> replay = {};  ///< training passes that repeat are not executed; not with a
                                      ///< timeline, whose times are those of the host
};

/// Executes a rank's schedule: all micro-batches through its stages, forward and backward. One
/// stage (PP = 1) is the same schedule without neighbours.
class NxDPPModel {
 public:
  /// `stages`: this rank's, one per virtual stage, the first chunk first. Throws ConfigError when
  /// the schedule does not exist for these sizes.
  NxDPPModel(std::vector<std::unique_ptr<PipelineStage>> stages, const ModuleContext& context,
             const PipelineOptions& options);

  /// Forward and backward of a training step. The loss, on the device: as PipelineOptions say, by
  /// default the mean over micro-batches and data-parallel ranks on every rank; otherwise the mean
  /// over micro-batches on the last stage and an undefined tensor elsewhere. Where stages weigh
  /// their loss it is the mean over all labels that count in the global batch, not over
  /// micro-batches. `reduce_grads` runs as the schedule's last task.
  at::Tensor run_train(const std::vector<MicroBatch>& micro_batches,
                       const std::function<void()>& reduce_grads);

  /// Factor for the gradients of the last run_train after they are averaged over data-parallel
  /// ranks: labels of the global batch / labels that count in it. One number on the device, the
  /// same on every rank; exactly 1 when all count; undefined where stages do not weigh their loss.
  [[nodiscard]] const at::Tensor& gradient_scale() const { return gradient_scale_; }

  /// Forward only, without gradients, of any number of micro-batches; the loss as of run_train, but
  /// each micro-batch weighs as much as the labels that count in it: rows that only fill a batch
  /// change nothing. Throws ConfigError with virtual stages.
  at::Tensor run_eval(const std::vector<MicroBatch>& micro_batches);
  /// The same pass; [Σ weight · loss, Σ weight] over micro-batches and data-parallel ranks, on
  /// every rank: sums of passes make a mean.
  at::Tensor run_eval_sums(const std::vector<MicroBatch>& micro_batches);

  /// The same pass over preference pairs: the log-probabilities of their rows, micro-batch after
  /// micro-batch, [M · rows] on every rank of the pipeline.
  at::Tensor run_log_probs(const std::vector<MicroBatch>& micro_batches);
  /// PipelineStage::metrics() of the last run_train, averaged as the loss is; undefined without
  /// metrics.
  [[nodiscard]] const at::Tensor& metrics() const { return metrics_; }

  [[nodiscard]] const std::vector<std::unique_ptr<PipelineStage>>& stages() const {
    return stages_;
  }
  [[nodiscard]] const PipelineShape& shape() const { return shape_; }
  /// The work under way, as a part of the whole: the stage of the model, and the micro-batch of the
  /// global batch (by its first row, where the data have that number).
  struct Position {
    int stage = 0;
    std::int64_t microbatch = 0;
  };
  [[nodiscard]] const Position& position() const { return position_; }
  /// Host time of this rank's backward steps in the last pass.
  [[nodiscard]] double backward_s() const { return backward_s_; }

 private:
  struct InFlight {
    at::Tensor input;  ///< the received activation; its gradient goes back
    torch::autograd::Edge
        output;  ///< where backward starts. The output's values are free to go once they were sent.
    at::Tensor value;     ///< the output until it was sent; the loss on the last stage
    at::Tensor gradient;  ///< of the output
  };
  /// The tasks of a pass on this rank, and what arrives during it.
  struct Pass {
    std::vector<Task> tasks;
    IncomingMessages incoming;
    std::array<std::size_t, 3> period_ends{};  ///< places of tasks; after the last task without a
                                               ///< replay, which happens at the last of them
    int skipped = 0;                           ///< micro-batches that it leaves out
    /// Number of a micro-batch in the whole pass. `own`: its number in the tasks, which are those
    /// of the executed schedule.
    [[nodiscard]] int microbatch(std::size_t place, int own) const {
      return place >= period_ends.back() ? own + skipped : own;
    }
  };
  class TaskScope;

  [[nodiscard]] Pass make_pass(const std::function<std::vector<Task>(int rank)>& tasks_of) const;
  [[nodiscard]] Pass training_pass() const;
  void begin_pass(const Pass& pass, std::size_t place);
  void repeat_period();
  void run(const Pass& pass, const std::vector<MicroBatch>& micro_batches,
           const std::function<void()>& reduce_grads);
  void evaluate(const std::vector<MicroBatch>& micro_batches);
  void execute(const Task& task, const MicroBatch& micro_batch);
  void forward(const Task& task, const MicroBatch& micro_batch);
  void backward(const Task& task, const MicroBatch& micro_batch);
  at::Tensor loss_of_pass(const MicroBatch& micro_batch);
  at::Tensor average_loss();
  [[nodiscard]] at::Tensor losses_of_micro_batches() const;
  void keep_loss(const at::Tensor& loss, const PipelineStage& stage);
  /// Labels of the step, those of one rank: what a gradient is divided by before it is known how
  /// many count.
  [[nodiscard]] double labels_of_rank(const MicroBatch& micro_batch) const;
  [[nodiscard]] at::Tensor weighted_sums(const std::vector<MicroBatch>& micro_batches) const;
  at::Tensor everywhere(at::Tensor sums);
  [[nodiscard]] at::TensorOptions loss_options() const;
  [[nodiscard]] bool is_last_stage(int chunk) const {
    return shape_.stage(rank_, chunk) == shape_.num_stages() - 1;
  }
  [[nodiscard]] MicroBatch on_device(const MicroBatch& host, bool first, bool last) const;
  InFlight& in_flight(const Task& task);
  void announce(const Task& task, int microbatch, const MicroBatch& data);
  void reserve_for(int num_microbatches);
  [[nodiscard]] const std::string& microbatch_scope(int microbatch) const {
    return microbatch_scopes_[static_cast<std::size_t>(microbatch)];
  }

  std::vector<std::unique_ptr<PipelineStage>> stages_;
  ParallelState parallel_;
  ModuleContext context_;
  PipelineOptions options_;
  PipelineShape shape_;
  int rank_;
  PipelineComm comm_;
  std::optional<ReplayPlan> replay_;
  Pass training_;
  std::deque<std::string> microbatch_scopes_;  ///< stable addresses
  std::vector<InFlight> in_flight_;
  Position position_;
  std::optional<PipelineTimeline> timeline_;
  double backward_s_ = 0;
  bool weighs_;  ///< PipelineStage::weighs_its_loss
  std::int64_t num_metrics_;
  at::Tensor metrics_;
  std::vector<at::Tensor> log_probs_;  ///< one per micro-batch, while they are asked for
  bool keeps_log_probs_ = false;
  at::Tensor gradient_scale_;
  std::vector<at::Tensor> losses_;  ///< one per micro-batch: adding them up as they come would make
                                    ///< the first forward pass differ
  std::size_t losses_at_mark_ = 0;  ///< how many there were when the last period ended
};

/// Labels with a loss, each by its weight in loss_mask; rows where there are no labels; preference
/// pairs.
[[nodiscard]] double loss_weight(const MicroBatch& micro_batch);

}  // namespace trellis::trainer
