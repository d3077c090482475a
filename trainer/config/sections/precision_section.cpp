#include <fmt/format.h>

#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

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

/// The keys of `type: manual`; with another type they are read, but decide nothing.
struct ManualSwitches {
  bool master_weights = false, fp32_grad_acc = false, use_bf16 = false, downcast_bf16 = false,
       stochastic_rounding = false;
};

ManualSwitches switches_of(const PrecisionSection& s) {
  return {s.master_weights, s.fp32_grad_acc, s.floats_bf16, s.weights_bf16 && !s.floats_bf16,
          s.stochastic_rounding};
}

void switch_fields(Fields& fields, ManualSwitches& s, bool manual) {
  const auto boolean = [&](const char* key, bool& value) {
    fields.form(
        key, [&](SectionReader& r) { value = r.get<bool>(key, value); },
        [&](YamlWriter& out) {
          if (manual) out.boolean(key, value);
        });
  };
  const auto variable = [&](const char* key, bool& value) {
    fields.form(
        key, [&](SectionReader& r) { value = read_switch(r, key); },
        [&](YamlWriter& out) {
          if (manual) out.text(key, value ? "1" : "0");
        });
  };
  boolean("master_weights", s.master_weights);
  boolean("fp32_grad_acc", s.fp32_grad_acc);
  variable("xla_use_bf16", s.use_bf16);
  variable("xla_downcast_bf16", s.downcast_bf16);
  variable("neuron_rt_stochastic_rounding_en", s.stochastic_rounding);
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

/// Settings on which the meaning of a type depends.
struct PrecisionSurroundings {
  bool zero1 = false;
  bool bf16_checkpoint = false;
};

void precision_fields(Fields& fields, PrecisionSection& s, ManualSwitches switches,
                      const PrecisionSurroundings& around) {
  fields.one_of(
      "type", s.type,
      {"mixed_precision", "mixed_precisionSR", "bf16SR", "autocast", "fp32", "fp64", "manual"});
  switch_fields(fields, switches, s.type == "manual");
  fields.rule([&](SectionReader& r) {
    if (s.type == "manual") {
      apply_manual(r, switches, around.zero1, s);
    } else {
      apply_type(around.zero1, around.bf16_checkpoint, s);
    }
  });
  fields.form(
      "parallel_layers_reduce_dtype",
      [&](SectionReader& r) {
        s.parallel_layers_reduce_dtype = read_reduce_dtype(r, s.type, s.weights_bf16);
      },
      [&](YamlWriter& out) {
        out.text("parallel_layers_reduce_dtype", s.parallel_layers_reduce_dtype);
      });
}

}  // namespace

PrecisionSection read_precision(SectionReader& reader, bool zero1, bool bf16_checkpoint) {
  PrecisionSection section;
  Fields fields = Fields::reading(reader);
  precision_fields(fields, section, {}, {zero1, bf16_checkpoint});
  return section;
}

void write_precision(YamlWriter& out, PrecisionSection section) {
  out.open("precision");
  Fields fields = Fields::writing(out);
  precision_fields(fields, section, switches_of(section), {});
  out.close();
}

void list_precision_keys(Fields& fields) {
  PrecisionSection section;
  precision_fields(fields, section, {}, {});
}

}  // namespace trellis::trainer
