#include "trainer/loop/rank_model.h"

#include <c10/util/accumulate.h>

#include "trainer/config/schedule/partition.h"
#include "trainer/config/schedule/tasks.h"
#include "trainer/models/factory.h"
#include "trainer/modules/module_names.h"
#include "trainer/modules/moe/router_record.h"
#include "trainer/optimizer/optimizer_options.h"

namespace trellis::trainer {
namespace {

std::vector<LayerRange> partition(const RunConfig& config) {
  const int stages = config.pp() * config.vpp();
  if (config.model.pipeline_cuts.empty()) return partition_layers(config.model.num_layers, stages);
  return partition_layers(layer_names(config.model), config.model.pipeline_cuts, stages);
}

}  // namespace

ModuleContext module_context(const RunConfig& config, const ModelPlace& place,
                             const ParallelState& parallel, ParameterList& parameters) {
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.backward = std::make_shared<BackwardLayer>();
  context.device = place.device;
  context.dtype = model_dtype(config.precision);
  context.wide_dtype = wide_dtype(config.precision);
  context.reduce_dtype = reduce_dtype(config.precision);
  context.decay_biases = config.model.do_layer_norm_weight_decay;
  context.sequence_parallel = config.distributed_strategy.sequence_parallel && config.tp() > 1;
  context.balanced_context = config.distributed_strategy.context_parallel_order == "balanced";
  context.shape_only = place.shape_only;
  context.seed = config.seed;
  return context;
}

std::vector<std::unique_ptr<PipelineStage>> build_stages(const RunConfig& config,
                                                         const ModuleContext& context) {
  const std::vector<LayerRange> ranges = partition(config);
  const PipelineShape shape{config.num_microbatches(), config.pp(), config.vpp()};
  std::vector<std::unique_ptr<PipelineStage>> stages;
  for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
    const int stage = shape.stage(context.parallel->get_pipeline_model_parallel_rank(), chunk);
    const StageSlot slot{stage, shape.num_stages(), ranges[static_cast<std::size_t>(stage)]};
    const std::size_t before = context.parameters->size();
    stages.push_back(make_pipeline_stage(config.model, context, slot));
    for (std::size_t i = before; i < context.parameters->size(); ++i)
      (*context.parameters)[i].stage = stage;
  }
  return stages;
}

BorderTensor stage_border(const RunConfig& config, const ModuleContext& context) {
  const std::int64_t share = context.sequence_parallel ? config.tp() : 1;
  const at::ScalarType dtype = residual_dtype(config.model, context.dtype);
  std::vector<std::int64_t> sizes = {
      config.model.encoder_seq_length / config.cp() / share,
      std::int64_t{config.data.micro_batch_size} * sequences_per_sample(config.model),
      config.model.hidden_size};
  const AuxiliaryLoss auxiliary = auxiliary_loss_of(config.model);
  if (auxiliary.is_on())
    sizes = {c10::multiply_integers(sizes) + packed_elements(auxiliary, dtype)};
  return {sizes, at::TensorOptions().dtype(dtype).device(context.device)};
}

void take_sequence_parts(std::vector<MicroBatch>& batches, const ModuleContext& context) {
  if (context.parallel->get_context_model_parallel_size() == 1) return;
  for (MicroBatch& batch : batches) {
    const SequenceShard sequence = context.sequence(batch.input_ids.size(1));
    for (at::Tensor* tensor : {&batch.input_ids, &batch.labels, &batch.loss_mask,
                               &batch.position_ids, &batch.next_tokens}) {
      if (tensor->defined()) *tensor = sequence.take(*tensor, 1);
    }
  }
}

}  // namespace trellis::trainer
