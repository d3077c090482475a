#include "trainer/modules/moe/experts.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include "trainer/modules/activations.h"
#include "trainer/modules/module_names.h"

namespace trellis::trainer {
namespace {

struct ExpertWeight {
  std::string name;
  std::int64_t rows = 0, columns = 0;  ///< of one expert
  int partition_dim = 0;
  int blocks = 1;  ///< of one expert's rows, each sharded for itself
  double std = 0.02;
};

/// Blocks of one expert after the other.
Partition partition_of(const ExpertWeight& weight, std::int64_t experts) {
  if (weight.partition_dim == 1) return strided_partition(1, weight.columns, 1);
  return strided_partition(0, experts * weight.rows, static_cast<int>(experts) * weight.blocks);
}

at::Tensor make_stacked(const ModuleContext& context, const ExpertWeight& weight, int experts) {
  const ParallelGroup& ep = context.parallel->get_expert_model_parallel_group();
  const int count = experts / ep.size, first = ep.rank * count;
  WeightSpec spec{.name = weight.name,
                  .shape = {count * weight.rows, weight.columns},
                  .init = weight.std,
                  .partition = partition_of(weight, count)};
  for (int expert = first; expert < first + count; ++expert)
    spec.parts.push_back({weight.name + "." + std::to_string(expert), weight.rows});
  Parameter& parameter = make_parameter(context, spec);
  parameter.experts = {first, count, experts};
  return parameter.tensor;
}

}  // namespace

ExpertMlps::ExpertMlps(const ModuleContext& context, const std::string& path,
                       const ModelSection& config)
    : activation_(config.activation),
      recomputes_activation_(RecomputePlan::of(config).activation),
      position_(context.position),
      count_(config.moe->num_experts / context.parallel->get_expert_model_parallel_group().size),
      hidden_size_(config.hidden_size) {
  const int gates = is_gated(config.activation) ? 2 : 1;
  const std::int64_t ffn = config.ffn_hidden_size, h = config.hidden_size;
  input_ = make_stacked(
      context, {path + ".gate_up_proj.weight", gates * ffn, h, 0, gates, config.init_method_std},
      config.moe->num_experts);
  output_ =
      make_stacked(context, {path + ".down_proj.weight", h, ffn, 1, 1, output_init_std(config)},
                   config.moe->num_experts);
}

at::Tensor ExpertMlps::activated(const at::Tensor& hidden) const {
  return maybe_checkpoint(
      recomputes_activation_, position_, {hidden},
      [this](const std::vector<at::Tensor>& inputs) { return activate(activation_, inputs[0]); });
}

at::Tensor ExpertMlps::forward(const at::Tensor& rows) const {
  const at::Tensor in = input_.view({count_, -1, hidden_size_}).to(rows.scalar_type());
  const at::Tensor out = output_.view({count_, hidden_size_, -1}).to(rows.scalar_type());
  return at::bmm(activated(at::bmm(rows, in.transpose(1, 2))), out.transpose(1, 2));
}

at::Tensor ExpertMlps::forward(const at::Tensor& rows,
                               const std::vector<std::int64_t>& counts) const {
  const std::vector<at::Tensor> in = input_.view({count_, -1, hidden_size_}).unbind(0);
  const std::vector<at::Tensor> out = output_.view({count_, hidden_size_, -1}).unbind(0);
  const std::vector<at::Tensor> parts = rows.split_with_sizes(counts);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    results.push_back(at::linear(activated(at::linear(parts[i], in[i].to(rows.scalar_type()))),
                                 out[i].to(rows.scalar_type())));
  }
  return at::cat(results);
}

}  // namespace trellis::trainer
