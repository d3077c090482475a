#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/torchtitan_rules.h"

namespace trellis::analysis {
namespace {

using Values = TorchtitanValues;
constexpr std::int64_t kMost = 1'000'000;   // of a size: products stay far from overflow
constexpr std::int64_t kCoresOfANode = 32;  // of trn1.32xlarge

std::string text_of(std::int64_t value) { return fmt::format("{}", value); }

std::int64_t degree(const Values& v, const char* name, std::int64_t otherwise) {
  const std::int64_t size = v.integer(std::string("parallelism.") + name, otherwise);
  return size < 1 || size > kMost ? otherwise : size;
}

bool balanced(const Values& v) {
  return v.text("parallelism.context_parallel_load_balancer", "headtail") == "headtail";
}

ImportedKey tensor_parallel(const SourceKey& source, const Values& v) {
  const bool several =
      torchtitan_layout(v).tp > 1 && v.flag("parallelism.enable_sequence_parallel", true);
  return mapped(source,
                {{"distributed_strategy.tensor_model_parallel_size", source.value},
                 {"distributed_strategy.sequence_parallel", several ? "true" : "false"}},
                several ? "norms are sequence-parallel, as torchtitan's are" : "");
}

ImportedKey sequence_parallel(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).tp == 1) return at_default(source, "there is one tensor-parallel rank");
  return mapped(source, {{"distributed_strategy.sequence_parallel", source.value}});
}

ImportedKey replicas(const SourceKey& source, const Values& v) {
  const TorchtitanLayout layout = torchtitan_layout(v);
  if (layout.assumed) return at_default(source, "the number of ranks decides");
  return mapped(
      source,
      {{"trainer.devices", text_of(layout.devices)}, {"trainer.num_nodes", text_of(layout.nodes)}},
      "ranks of all nodes");
}

ImportedKey shards(const SourceKey& source, const Values& v) {
  if (v.integer("parallelism.data_parallel_shard_degree", -1) == 1)
    return at_default(source, "parameters are on every data-parallel rank");
  const TorchtitanLayout layout = torchtitan_layout(v);
  if (v.text("parallelism.fsdp_reshard_after_forward") == "never")
    return unsupported(source,
                       "weights that stay whole after forward (fsdp_reshard_after_forward never): "
                       "ZeRO-1 shards the optimizer's states over the same ranks");
  if (layout.pp > 1)
    return unsupported(source,
                       "pipeline stages are not fully sharded: ZeRO-1 shards the optimizer's "
                       "states over the same ranks, which trellis memory shows");
  const std::int64_t copies = degree(v, "data_parallel_replicate_degree", 1);
  if (copies == 1) return mapped(source, {{"distributed_strategy.fsdp", "true"}});
  return mapped(source,
                {{"distributed_strategy.fsdp", "true"},
                 {"distributed_strategy.data_parallel_replicate_size", std::to_string(copies)}},
                "copies of the whole, each sharded over its part of the ranks");
}

ImportedKey context_parallel(const SourceKey& source, const Values& v) {
  const std::string degree_key = "distributed_strategy.context_parallel_size";
  if (torchtitan_layout(v).cp == 1) return mapped(source, {{degree_key, source.value}});
  return mapped(source, {{degree_key, source.value},
                         {"distributed_strategy.context_parallel_order",
                          balanced(v) ? "balanced" : "contiguous"},
                         {"model.fusions.ring_attention", "true"},
                         {"model.fusions.flash_attention", "false"}});
}

ImportedKey load_balancer(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).cp == 1) return at_default(source, "there is one context-parallel rank");
  if (source.value == "null")
    return mapped(source, {{"distributed_strategy.context_parallel_order", "contiguous"}});
  if (!balanced(v)) return unsupported(source, "expected headtail: blocks of a rank are balanced");
  return mapped(source, {{"distributed_strategy.context_parallel_order", "balanced"}});
}

ImportedKey rotation(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).cp == 1) return at_default(source, "there is one context-parallel rank");
  if (v.text("parallelism.context_parallel_rotate_method") == "alltoall")
    return at_default(source, "keys and values go around a ring");
  return unsupported(source,
                     "expected alltoall: keys and values go around a ring; results are the same, "
                     "times are not");
}

ImportedKey fewer_layers(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).pp == 1) return at_default(source, "there is one pipeline stage");
  if (v.integer(source.key, 1) == 0) return at_default(source, "stages are equal");
  return unsupported(source,
                     "expected 0: stages have equal numbers of layers, unless model.pipeline_cuts "
                     "names the last layer of each");
}

std::string schedule_name(const Values& v) {
  std::string name = v.text("parallelism.pipeline_parallel_schedule", "1F1B");
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  std::erase(name, '_');  // "interleaved_1f1b" of 2024
  return name;
}

/// Chunks of a rank. Without a number of layers torchtitan makes two.
std::optional<std::int64_t> chunks(const Values& v) {
  const std::int64_t pp = torchtitan_layout(v).pp;
  const std::int64_t each = v.integer("parallelism.pipeline_parallel_layers_per_stage", 0);
  const TorchtitanFlavor* flavor = torchtitan_flavor(v);
  const std::int64_t of_model = v.integer(
      "model.layers", flavor == nullptr ? 0 : flavor->layers);  // 0.3 has them in the file
  if (each == 0) return 2;
  if (each < 1 || each > kMost || of_model < 1 || of_model > kMost) return std::nullopt;
  const std::int64_t layers =
      of_model +
      std::clamp<std::int64_t>(
          v.integer("parallelism.pipeline_parallel_first_stage_less_layers", 1), 0, kMost) +
      std::clamp<std::int64_t>(v.integer("parallelism.pipeline_parallel_last_stage_less_layers", 1),
                               0, kMost);
  const std::int64_t stages = (layers + each - 1) / each;
  if (stages % pp != 0) return std::nullopt;
  return stages / pp;
}

ImportedKey chunked(const SourceKey& source, const Values& v) {
  const auto count = chunks(v);
  if (!count) return unsupported(source, "the stages are no multiple of the pipeline's ranks");
  return mapped(source,
                {{"distributed_strategy.virtual_pipeline_model_parallel_size", text_of(*count)}},
                "chunks of a rank");
}

ImportedKey pipeline_schedule(const SourceKey& source, const Values& v) {
  const std::string name = schedule_name(v);
  if (name == "1f1b") return at_default(source, "the schedule is 1F1B");
  if (torchtitan_layout(v).pp == 1) return at_default(source, "there is one pipeline stage");
  if (name == "interleaved1f1b") return chunked(source, v);
  return unsupported(source, "expected 1F1B or Interleaved1F1B");
}

ImportedKey layers_of_a_stage(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).pp == 1) return at_default(source, "there is one pipeline stage");
  if (schedule_name(v) == "interleaved1f1b") return chunked(source, v);
  return chunks(v) == 1 ? at_default(source, "a stage has the layers of one rank")
                        : unsupported(source, "1F1B has one stage for each rank of the pipeline");
}

ImportedKey local_batch(const SourceKey& source, const Values& v) {
  const TorchtitanLayout layout = torchtitan_layout(v);
  std::vector<Setting> settings;
  if (layout.pp == 1) settings.push_back({"data.micro_batch_size", text_of(layout.micro_batch)});
  if (v.integer("training.global_batch_size", -1) < 1)
    settings.push_back({"data.global_batch_size", text_of(layout.global_batch)});
  if (settings.empty()) return at_default(source, "the pipeline cuts it into micro-batches");
  return mapped(source, settings,
                settings.back().key == "data.global_batch_size"
                    ? fmt::format("times {} data-parallel ranks{}", layout.dp,
                                  layout.assumed ? " of one trn1.32xlarge" : "")
                    : "");
}

ImportedKey global_batch(const SourceKey& source, const Values& v) {
  if (v.integer("training.global_batch_size", -1) < 1)
    return at_default(source, "it is the local batch of all data-parallel ranks");
  return mapped(source, {{"data.global_batch_size", source.value}});
}

ImportedKey micro_batch(const SourceKey& source, const Values& v) {
  if (torchtitan_layout(v).pp == 1) return at_default(source, "there is one pipeline stage");
  return mapped(source, {{"data.micro_batch_size", source.value}});
}

}  // namespace

TorchtitanLayout torchtitan_layout(const Values& v) {
  TorchtitanLayout layout;
  layout.tp = degree(v, "tensor_parallel_degree", 1);
  layout.pp = degree(v, "pipeline_parallel_degree", 1);
  layout.cp = degree(v, "context_parallel_degree", 1);
  const std::int64_t model = std::min(layout.tp * layout.pp, kMost) * layout.cp;
  const std::int64_t copies = degree(v, "data_parallel_replicate_degree", 1);
  const std::int64_t shard = v.integer("parallelism.data_parallel_shard_degree", -1);
  layout.assumed = shard < 1 || shard > kMost;
  const std::int64_t unit = std::min(model * copies, kMost * kMost);
  const std::int64_t left =
      layout.assumed ? std::max<std::int64_t>(1, kCoresOfANode / unit) : shard;
  const std::int64_t world = unit * left;
  layout.dp = copies * left;
  const bool whole = world > kCoresOfANode && world % kCoresOfANode == 0;
  layout.devices = whole ? kCoresOfANode : world;
  layout.nodes = whole ? world / kCoresOfANode : 1;
  const std::int64_t local =
      std::clamp<std::int64_t>(v.integer("training.local_batch_size", 8), 1, kMost);
  layout.micro_batch =
      layout.pp == 1 ? local : v.integer("parallelism.pipeline_parallel_microbatch_size", 1);
  const std::int64_t global = v.integer("training.global_batch_size", -1);
  layout.global_batch = global < 1 ? local * layout.dp : global;
  return layout;
}

TorchtitanRule torchtitan_layout_rule(std::string_view key) {
  static constexpr std::array<std::pair<std::string_view, TorchtitanRule>, 14> kRules = {{
      {"parallelism.tensor_parallel_degree", tensor_parallel},
      {"parallelism.enable_sequence_parallel", sequence_parallel},
      {"parallelism.data_parallel_replicate_degree", replicas},
      {"parallelism.data_parallel_shard_degree", shards},
      {"parallelism.context_parallel_degree", context_parallel},
      {"parallelism.context_parallel_load_balancer", load_balancer},
      {"parallelism.context_parallel_rotate_method", rotation},
      {"parallelism.pipeline_parallel_first_stage_less_layers", fewer_layers},
      {"parallelism.pipeline_parallel_last_stage_less_layers", fewer_layers},
      {"parallelism.pipeline_parallel_layers_per_stage", layers_of_a_stage},
      {"parallelism.pipeline_parallel_schedule", pipeline_schedule},
      {"parallelism.pipeline_parallel_microbatch_size", micro_batch},
      {"training.local_batch_size", local_batch},
      {"training.global_batch_size", global_batch},
  }};
  const auto found =
      std::ranges::find(kRules, key, &std::pair<std::string_view, TorchtitanRule>::first);
  return found == kRules.end() ? nullptr : found->second;
}

}  // namespace trellis::analysis
