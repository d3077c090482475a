#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

/// An integer; NxDT's documentation calls it a boolean, and false means 1.
int read_kv_replicator(SectionReader& reader) {
  const std::string text = reader.raw("kv_replicator");
  if (text == "false" || text == "False" || text == "FALSE") return 1;
  return reader.positive("kv_replicator", 1);
}

}  // namespace

DistributedStrategySection read_distributed_strategy(SectionReader& reader) {
  DistributedStrategySection section;
  section.tensor_model_parallel_size =
      reader.positive("tensor_model_parallel_size", section.tensor_model_parallel_size);
  section.pipeline_model_parallel_size =
      reader.positive("pipeline_model_parallel_size", section.pipeline_model_parallel_size);
  section.virtual_pipeline_model_parallel_size = reader.positive(
      "virtual_pipeline_model_parallel_size", section.virtual_pipeline_model_parallel_size);
  section.context_parallel_size =
      reader.positive("context_parallel_size", section.context_parallel_size);
  section.expert_model_parallel_size =
      reader.positive("expert_model_parallel_size", section.expert_model_parallel_size);
  section.token_shuffle_group_size =
      reader.positive("token_shuffle_group_size", section.token_shuffle_group_size);
  section.sequence_parallel = reader.get<bool>("sequence_parallel", section.sequence_parallel);
  if (section.sequence_parallel && section.tensor_model_parallel_size == 1 &&
      reader.good({"tensor_model_parallel_size"})) {
    reader.warn("sequence_parallel",
                "has no effect: there is one tensor-parallel rank, which holds the whole sequence");
    section.sequence_parallel = false;
  }
  section.zero1 = reader.get<bool>("zero1", section.zero1);
  section.kv_replicator = read_kv_replicator(reader);
  if (section.context_parallel_size > 1) {
    reader.unsupported("context_parallel_size",
                       fmt::format("context parallelism (context_parallel_size {})",
                                   section.context_parallel_size));
  }
  return section;
}

}  // namespace trellis::trainer
