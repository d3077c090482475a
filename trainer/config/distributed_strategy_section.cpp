#include "trainer/config/sections.h"

namespace trellis::trainer {

DistributedStrategySection read_distributed_strategy(SectionReader& reader) {
  DistributedStrategySection section;
  section.tensor_model_parallel_size = reader.positive("tensor_model_parallel_size", section.tensor_model_parallel_size);
  section.pipeline_model_parallel_size = reader.positive("pipeline_model_parallel_size", section.pipeline_model_parallel_size);
  section.sequence_parallel = reader.get<bool>("sequence_parallel", section.sequence_parallel);
  section.zero1 = reader.get<bool>("zero1", section.zero1);
  if (!section.zero1) {
    reader.problem("zero1", "`false` is known, but not carried out in this version; remove it or set it to true");
  }
  return section;
}

}  // namespace trellis::trainer
