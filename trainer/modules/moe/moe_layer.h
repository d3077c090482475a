#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/modules/mlp.h"
#include "trainer/modules/moe/dispatch.h"
#include "trainer/modules/moe/experts.h"
#include "trainer/modules/moe/router.h"
#include "trainer/modules/moe/token_shuffle.h"

namespace trellis::trainer {

/// A mixture of experts in place of an MLP. [s, b, h] → [s, b, h] (with sequence parallelism
/// [s/TP, b, h], gathered before and reduce-scattered after all experts):
///
///   tokens ─ shuffle ─ router ─ slots by expert ─ all-to-all over EP ─ experts ─ all-to-all ─
///     weighted sum of each token's experts ─ shuffle back ─ sum over TP     (+ shared experts)
///
/// Without a capacity each expert's rows are padded to whole blocks (block_size), as NxD's
/// block-wise kernel computes them. Capacities are counted on the rank that has the tokens, before
/// the exchange: what is dropped does not depend on EP or TP.
class MoeLayer {
 public:
  /// `layer`: index in the whole model.
  MoeLayer(const ModuleContext& context, const std::string& path, const ModelSection& config,
           const ModuleNames& names, int layer);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input,
                                   const std::shared_ptr<RouterRecord>& record) const;

 private:
  /// Tokens that arrive on a rank without capacities: from each member of the EP group, for each of
  /// the rank's experts.
  struct Arrivals;
  using Layer = RouterRecord::Layer;
  [[nodiscard]] at::Tensor run(const at::Tensor& input,
                               const std::shared_ptr<RouterRecord>& record) const;
  [[nodiscard]] at::Tensor mix(const at::Tensor& tokens,
                               const std::shared_ptr<RouterRecord>& record) const;
  [[nodiscard]] at::Tensor run_experts(const at::Tensor& slots, const DispatchPlan& plan) const;
  /// Distributes tokens to slots, runs the experts, and returns their outputs by pick.
  [[nodiscard]] at::Tensor run_with_capacity(const at::Tensor& tokens, const DispatchPlan& plan,
                                             Layer& layer) const;
  [[nodiscard]] at::Tensor run_dropless(const at::Tensor& tokens, const at::Tensor& experts,
                                        const DispatchPlan& plan, Layer& layer) const;
  void note_rows(const std::vector<std::int64_t>& computed, Layer& layer) const;
  void announce(const std::vector<std::int64_t>& tokens) const;
  [[nodiscard]] std::vector<std::int64_t> planned_counts(std::int64_t tokens) const;
  [[nodiscard]] std::vector<std::int64_t> planned_rows(const DispatchPlan& plan) const;
  [[nodiscard]] Arrivals arrivals(const DispatchPlan& plan) const;
  [[nodiscard]] std::int64_t block_of(const DispatchPlan& plan) const;
  [[nodiscard]] at::Tensor weights_of(const Choice& choice, const DispatchPlan& plan) const;

  MoeSection moe_;
  int layer_;
  ParallelGroup tp_, ep_;
  bool sequence_parallel_, shape_only_;
  at::ScalarType reduce_dtype_;
  RecomputePlan recompute_;
  std::shared_ptr<StepPosition> position_;
  TokenShuffle shuffle_;
  Router router_;
  ExpertMlps experts_;
  std::optional<ParallelMLP> shared_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
