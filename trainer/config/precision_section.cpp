#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

/// "0" or "1" as NxDT writes environment variables, quoted or not; true and false too.
bool read_switch(SectionReader& reader, const std::string& key) {
  const auto text = reader.optional<std::string>(key);
  if (!text || *text == "0" || *text == "false" || *text == "False") return false;
  if (*text == "1" || *text == "true" || *text == "True") return true;
  reader.problem(key, fmt::format("expected '0' or '1', got '{}'", *text));
  return false;
}

struct ManualSwitches {
  bool master_weights, fp32_grad_acc, use_bf16, downcast_bf16, stochastic_rounding;
};

ManualSwitches read_switches(SectionReader& reader) {
  return {reader.get<bool>("master_weights", false), reader.get<bool>("fp32_grad_acc", false),
          read_switch(reader, "xla_use_bf16"), read_switch(reader, "xla_downcast_bf16"),
          read_switch(reader, "neuron_rt_stochastic_rounding_en")};
}

void apply_manual(SectionReader& reader, const ManualSwitches& manual, bool zero1,
                  PrecisionSection& section) {
  section.weights_bf16 = manual.use_bf16 || manual.downcast_bf16;
  section.floats_bf16 = manual.use_bf16;
  section.stochastic_rounding = manual.stochastic_rounding;
  section.master_weights = manual.master_weights;
  section.fp32_grad_acc = manual.fp32_grad_acc;
  for (const auto& [key, wanted] : {std::pair{"master_weights", manual.master_weights},
                                    std::pair{"fp32_grad_acc", manual.fp32_grad_acc}}) {
    if (wanted && !zero1) {
      reader.problem(key,
                     "needs distributed_strategy.zero1: true, whose shards hold it; switch ZeRO-1 "
                     "on or set this to false");
    }
  }
  if (manual.stochastic_rounding && !section.weights_bf16) {
    reader.problem("neuron_rt_stochastic_rounding_en",
                   "rounds fp32 to bf16 weights, but xla_use_bf16 and xla_downcast_bf16 are 0; set "
                   "one of them to '1'");
  }
}

/// §5.1 of NxDT's modes: what each type means.
void apply_type(bool zero1, bool bf16_checkpoint, PrecisionSection& section) {
  const std::string& type = section.type;
  const bool mixed = type == "mixed_precision" || type == "mixed_precisionSR";
  section.autocast = type == "autocast";
  section.weights_bf16 = mixed || type == "bf16SR" || (section.autocast && bf16_checkpoint);
  section.floats_bf16 = type == "bf16SR";
  section.stochastic_rounding = type == "mixed_precisionSR" || type == "bf16SR";
  // fp32 masters and accumulators live in the ZeRO-1 shards; a model that is fp32 already needs
  // neither.
  section.master_weights = section.fp32_grad_acc = (mixed || section.autocast) && zero1;
}

/// As narrow as the weights, unless another type is written.
std::string read_reduce_dtype(SectionReader& reader, const std::string& type, bool weights_bf16) {
  const bool full = type == "fp32" || type == "fp64";
  if (!full)
    return reader.one_of("parallel_layers_reduce_dtype", weights_bf16 ? "bf16" : "fp32",
                         {"bf16", "fp32"});
  const std::string dtype = reader.get<std::string>("parallel_layers_reduce_dtype", type);
  if (reader.good({"type", "parallel_layers_reduce_dtype"}) && dtype != type) {
    reader.problem("parallel_layers_reduce_dtype",
                   fmt::format("`{}` contradicts precision.type {}; remove it or set it to {}",
                               dtype, type, type));
  }
  return type;
}

}  // namespace

PrecisionSection read_precision(SectionReader& reader, bool zero1, bool bf16_checkpoint) {
  PrecisionSection section;
  section.type = reader.one_of(
      "type", section.type,
      {"mixed_precision", "mixed_precisionSR", "bf16SR", "autocast", "fp32", "fp64", "manual"});
  const ManualSwitches manual = read_switches(reader);
  if (section.type == "manual") {
    apply_manual(reader, manual, zero1, section);
  } else {
    apply_type(zero1, bf16_checkpoint, section);
  }
  section.parallel_layers_reduce_dtype =
      read_reduce_dtype(reader, section.type, section.weights_bf16);
  return section;
}

}  // namespace trellis::trainer
