#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

/// The dtype of the reductions inside the parallel layers follows the type; NxDT's key may only repeat it.
void check_reduce_dtype(SectionReader& reader, const std::string& type) {
  const std::string expected = type == "mixed_precision" ? "bf16" : type;
  const std::string dtype = reader.get<std::string>("parallel_layers_reduce_dtype", expected);
  if (!reader.good({"type", "parallel_layers_reduce_dtype"}) || dtype == expected) return;
  reader.problem("parallel_layers_reduce_dtype",
                 fmt::format("`{}` is not carried out in this version with precision.type {}; remove it or set it to {}", dtype, type, expected));
}

}  // namespace

PrecisionSection read_precision(SectionReader& reader, bool zero1) {
  PrecisionSection section;
  section.type = reader.one_of("type", section.type, {"mixed_precision", "fp32", "fp64"},
                               {"mixed_precisionSR", "bf16SR", "autocast", "manual"});
  // fp32 masters and accumulators live in the ZeRO-1 shards; a model that is fp32 already needs neither.
  section.master_weights = section.fp32_grad_acc = section.type == "mixed_precision" && zero1;
  check_reduce_dtype(reader, section.type);
  return section;
}

}  // namespace trellis::trainer
