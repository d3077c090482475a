#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/schedule/tasks.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// A group of some ranks of this rank's pipeline (given by their pipeline ranks, ascending). Its
/// members call in the same order.
using NewPipelineGroup = std::function<ParallelGroup(const std::vector<int>& pipeline_ranks)>;

/// Makes NewPipelineGroup from a rank's world; the pipeline group itself serves when all its ranks
/// are asked for.
[[nodiscard]] NewPipelineGroup pipeline_group_factory(runtime::RankContext& rank,
                                                      const ParallelState& parallel);

/// Keeps the copies of tied weights the same: equal at the start, and each with the sum of all
/// copies' gradients before the optimizer. Then every copy takes the same steps and stays equal bit
/// for bit. Copies are marked `shared`: norms skip them and count the owner.
class TiedWeights {
 public:
  /// Collects the tied weights of this rank's stages and sets every copy to the owner's values.
  /// Throws c10::Error when a copy is not among `parameters`. REQUIRES: no optimizer holds the
  /// parameters yet.
  TiedWeights(const std::vector<std::unique_ptr<PipelineStage>>& stages, ParameterList& parameters,
              const PipelineShape& shape, const ParallelState& parallel,
              const NewPipelineGroup& new_group);

  /// Sums the gradients over the copies, in place. `gradient_of`: where a parameter's gradient has
  /// accumulated after all backward passes.
  void sum_gradients(const std::function<at::Tensor(const Parameter&)>& gradient_of) const;

 private:
  struct Tied {
    std::vector<Parameter*> copies;  ///< on this rank, the owner first where it is here
    ParallelGroup group;             ///< of the ranks that hold copies
  };
  void synchronize(const Tied& tied) const;
  std::vector<Tied> tied_;
};

}  // namespace trellis::trainer
