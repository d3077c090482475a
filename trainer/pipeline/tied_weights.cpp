#include "trainer/pipeline/tied_weights.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {
namespace {

/// The next parameter of this name that is not among `taken`: a rank with virtual stages may hold
/// several of one name.
Parameter& find(const std::string& name, const std::vector<Parameter*>& taken,
                ParameterList& parameters) {
  for (Parameter& parameter : parameters) {
    if (parameter.name == name && std::find(taken.begin(), taken.end(), &parameter) == taken.end())
      return parameter;
  }
  TORCH_CHECK(false, "tied weight ", name, ": its stage has no parameter of this name");
}

/// By the owner's name: every member meets the weights in the same order.
std::map<std::string, TiedWeight> tied_weights_of(
    const std::vector<std::unique_ptr<PipelineStage>>& stages) {
  std::map<std::string, TiedWeight> weights;
  for (const auto& stage : stages) {
    for (const TiedWeight& weight : stage->tied_weights())
      weights[weight.copies.front().parameter] = weight;
  }
  return weights;
}

}  // namespace

NewPipelineGroup pipeline_group_factory(runtime::RankContext& rank, const ParallelState& parallel) {
  return [&rank, parallel](const std::vector<int>& pipeline_ranks) {
    const ParallelGroup& pipeline = parallel.get_pipeline_model_parallel_group();
    ParallelGroup group;
    group.size = static_cast<int>(pipeline_ranks.size());
    if (group.size == 1) return group;
    if (group.size == pipeline.size) return pipeline;
    const RankMesh mesh{parallel.get_tensor_model_parallel_size(), pipeline.size,
                        parallel.get_data_parallel_size(),
                        parallel.get_context_model_parallel_size()};
    std::vector<int> ranks;
    for (std::size_t i = 0; i < pipeline_ranks.size(); ++i) {
      if (pipeline_ranks[i] == pipeline.rank) group.rank = static_cast<int>(i);
      ranks.push_back(mesh.rank(pipeline_ranks[i], parallel.get_data_parallel_rank(),
                                parallel.get_tensor_model_parallel_rank(),
                                parallel.get_context_model_parallel_rank()));
    }
    group.group = rank.new_group("pp", ranks);
    return group;
  };
}

TiedWeights::TiedWeights(const std::vector<std::unique_ptr<PipelineStage>>& stages,
                         ParameterList& parameters, const PipelineShape& shape,
                         const ParallelState& parallel, const NewPipelineGroup& new_group) {
  const int rank = parallel.get_pipeline_model_parallel_rank();
  std::map<std::set<int>, ParallelGroup> groups;
  for (const auto& [name, weight] : tied_weights_of(stages)) {
    Tied tied;
    std::set<int> ranks;
    for (const TiedWeight::Copy& copy : weight.copies) {
      ranks.insert(shape.rank_of(copy.stage));
      if (shape.rank_of(copy.stage) != rank) continue;
      Parameter& parameter = find(copy.parameter, tied.copies, parameters);
      parameter.tied = true;
      parameter.shared = &copy != &weight.copies.front();
      tied.copies.push_back(&parameter);
    }
    auto group = groups.find(ranks);
    if (group == groups.end())
      group = groups.emplace(ranks, new_group({ranks.begin(), ranks.end()})).first;
    tied.group = group->second;
    synchronize(tied);
    tied_.push_back(std::move(tied));
  }
}

/// The sum over the copies, of which all but the owner's count as zero.
void TiedWeights::synchronize(const Tied& tied) const {
  const at::NoGradGuard no_grad;
  const Parameter& first = *tied.copies.front();
  at::Tensor value = first.shared ? at::zeros_like(first.tensor) : first.tensor.detach().clone();
  value = all_reduce(value, tied.group);
  for (Parameter* copy : tied.copies) copy->tensor.copy_(value);
}

void TiedWeights::sum_gradients(
    const std::function<at::Tensor(const Parameter&)>& gradient_of) const {
  if (tied_.empty()) return;
  const Scope scope("phase=grad_reduce");
  const at::NoGradGuard no_grad;
  for (const Tied& tied : tied_) {
    if (!tied.copies.front()->tensor.requires_grad()) continue;  // frozen next to adapters
    std::vector<at::Tensor> gradients;
    for (const Parameter* copy : tied.copies) {
      gradients.push_back(gradient_of(*copy));
      TORCH_CHECK(gradients.back().defined(), "tied weight ", copy->name,
                  ": a copy got no gradient in this step");
    }
    at::Tensor& sum = gradients.front();
    for (std::size_t i = 1; i < gradients.size(); ++i) sum.add_(gradients[i]);
    all_reduce(sum, tied.group);
    for (std::size_t i = 1; i < gradients.size(); ++i) gradients[i].copy_(sum);
  }
}

}  // namespace trellis::trainer
