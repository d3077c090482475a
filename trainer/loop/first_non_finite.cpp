#include "trainer/loop/first_non_finite.h"

#include <limits>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/StringUtil.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/fully_sharded.h"

namespace trellis::trainer {
namespace {

constexpr double kNowhere = std::numeric_limits<double>::max();

struct Place {
  double order = kNowhere;
  std::string text;
  void offer(double at, const std::string& what) {
    if (at < order) *this = {at, what};
  }
};

bool is_finite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}

double smallest_of_all_ranks(double value, const ModuleContext& context) {
  at::Tensor negative =
      at::full({}, -value, at::TensorOptions().dtype(at::kDouble).device(context.device));
  negative = all_reduce_max(negative, context.parallel->get_tensor_model_parallel_group());
  negative = all_reduce_max(negative, context.parallel->get_pipeline_model_parallel_group());
  negative = all_reduce_max(negative, context.parallel->get_zero1_sharding_group());
  return -negative.item<double>();
}

/// True on the rank with the smallest order; among equal ones on the lowest rank.
bool is_first(double order, const ModuleContext& context) {
  const double smallest = smallest_of_all_ranks(order, context);
  const double rank = context.parallel->global_rank();
  return smallest_of_all_ranks(order == smallest ? rank : kNowhere, context) == rank;
}

}  // namespace

std::string first_non_finite(NxDPPModel& model, const ModuleContext& context,
                             const std::vector<MicroBatch>& micro_batches) {
  Place first;
  const int stages = model.shape().num_stages(),
            pipeline_rank = context.parallel->get_pipeline_model_parallel_rank();
  {
    const FullySharding::Whole whole(context.fully_sharded.get());
    for (const Parameter& parameter :
         *context.parameters) {  // a weight comes before every micro-batch
      if (!is_finite(parameter.tensor.detach()))
        first.offer(pipeline_rank - stages, "the weight " + parameter.name);
    }
  }
  context.backward->watch([&](const std::string& layer, const at::Tensor& output) {
    if (is_finite(output.detach())) return;
    const NxDPPModel::Position position = model.position();
    first.offer(static_cast<double>(position.microbatch) * stages + position.stage,
                "the output of " + layer.substr(layer.find('=') + 1) + " (micro-batch " +
                    std::to_string(position.microbatch) + ")");
  });
  (void)model.run_train(micro_batches, [] {});
  context.backward->watch({});
  const double order = smallest_of_all_ranks(first.order, context);
  if (order == kNowhere) return "nothing: the repeated step is finite";
  return order == first.order ? first.text : "";
}

std::string first_non_finite_gradient(const NeuronZero1Optimizer& optimizer,
                                      const ModuleContext& context) {
  const at::NoGradGuard no_grad;
  std::map<const Parameter*, double> place;  // in the order of construction
  for (const Parameter& parameter : *context.parameters)
    place.emplace(&parameter, static_cast<double>(place.size()));
  Place first, largest;
  optimizer.for_each_reduced_gradient([&](const ShardSlot& slot, const at::Tensor& rows) {
    if (rows.numel() == 0) return;
    const Parameter& parameter = *slot.parameter;
    const std::string text =
        c10::str("the gradient of ", parameter.name, " on rank ", context.parallel->global_rank(),
                 " (pipeline stage ", parameter.stage, ")");
    constexpr double kParameters = 1e9;  // more than a stage has
    if (!is_finite(rows))
      return first.offer(-(parameter.stage * kParameters + place.at(&parameter)), text);
    const double element = rows.abs().max().item<double>();
    largest.offer(-element, c10::str("the sum of their squares; the largest element, ", element,
                                     ", is in ", text));
  });
  if (smallest_of_all_ranks(first.order, context) == kNowhere) first = largest;
  return is_first(first.order, context) ? first.text : "";
}

}  // namespace trellis::trainer
