#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

/// An integer; NxDT's documentation calls it a boolean, and false means 1.
int read_kv_replicator(SectionReader& reader) {
  const std::string text = reader.raw("kv_replicator");
  if (text == "false" || text == "False" || text == "FALSE") return 1;
  return reader.positive("kv_replicator", 1);
}

void check_sequence_parallel(SectionReader& reader, DistributedStrategySection& s) {
  if (!s.sequence_parallel || s.tensor_model_parallel_size > 1 ||
      !reader.good({"tensor_model_parallel_size"}))
    return;
  reader.warn("sequence_parallel",
              "has no effect: there is one tensor-parallel rank, which holds the whole sequence");
  s.sequence_parallel = false;
}

void strategy_fields(Fields& fields, DistributedStrategySection& s) {
  fields.positive("tensor_model_parallel_size", s.tensor_model_parallel_size);
  fields.positive("pipeline_model_parallel_size", s.pipeline_model_parallel_size);
  fields.positive("virtual_pipeline_model_parallel_size", s.virtual_pipeline_model_parallel_size);
  fields.positive("context_parallel_size", s.context_parallel_size);
  fields.positive("expert_model_parallel_size", s.expert_model_parallel_size);
  fields.positive("token_shuffle_group_size", s.token_shuffle_group_size);
  fields.boolean("zero1", s.zero1);
  fields.boolean("sequence_parallel", s.sequence_parallel);
  fields.form(
      "kv_replicator", [&](SectionReader& r) { s.kv_replicator = read_kv_replicator(r); },
      [&](YamlWriter& out) { out.integer("kv_replicator", s.kv_replicator); });
  fields.rule([&](SectionReader& r) { check_sequence_parallel(r, s); });
  fields.own().one_of("context_parallel_order", s.context_parallel_order,
                      {"contiguous", "balanced"});
  fields.own().boolean("fsdp", s.fsdp);
  fields.own().positive("data_parallel_replicate_size", s.data_parallel_replicate_size);
}

}  // namespace

DistributedStrategySection read_distributed_strategy(SectionReader& reader) {
  DistributedStrategySection section;
  Fields fields = Fields::reading(reader);
  strategy_fields(fields, section);
  return section;
}

void write_distributed_strategy(YamlWriter& out, DistributedStrategySection section) {
  out.open("distributed_strategy");
  Fields fields = Fields::writing(out);
  strategy_fields(fields, section);
  out.close();
}

void list_distributed_strategy_keys(Fields& fields) {
  DistributedStrategySection section;
  strategy_fields(fields, section);
}

}  // namespace trellis::trainer
