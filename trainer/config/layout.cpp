#include "trainer/config/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "trainer/config/names.h"

namespace trellis::trainer {

Layout layout_of(const RunConfig& config) {
  const DistributedStrategySection& strategy = config.distributed_strategy;
  return {.tp = config.tp(),
          .pp = config.pp(),
          .vpp = config.vpp(),
          .dp = std::max(1, config.dp()),
          .sequence_parallel = strategy.sequence_parallel,
          .zero1 = strategy.zero1,
          .fsdp = strategy.fsdp,
          .fsdp_replicas = strategy.data_parallel_replicate_size,
          .kv_replicator = strategy.kv_replicator,
          .ep = config.ep(),
          .cp = config.cp(),
          .balanced_context = strategy.context_parallel_order == "balanced",
          .recompute = config.model.recompute};
}

std::vector<std::string> factors_of(const Layout& layout) {
  std::vector<std::string> parts;
  const auto factor = [&](const char* name, int value) {
    if (value > 1) parts.push_back(name + std::to_string(value));
  };
  factor("TP", layout.tp);
  factor("PP", layout.pp);
  factor("VPP", layout.vpp);
  factor("DP", layout.dp);
  factor("CP", layout.cp);
  if (layout.balanced_context) parts.emplace_back("balanced");
  factor("EP", layout.ep);
  return parts;
}

std::vector<std::string> switches_of(const Layout& layout) {
  std::vector<std::string> parts;
  if (layout.sequence_parallel) parts.emplace_back("SP");
  if (layout.zero1) parts.emplace_back(layout.fsdp ? "FSDP" : "ZeRO1");
  if (layout.fsdp_replicas > 1) parts.push_back(fmt::format("copies{}", layout.fsdp_replicas));
  if (layout.kv_replicator > 1) parts.push_back(fmt::format("KV{}", layout.kv_replicator));
  if (layout.recompute != Recompute::kNone) parts.push_back(name_of(layout.recompute));
  return parts;
}

std::string to_string(const Layout& layout) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& parts) {
    for (const std::string& part : parts) text += (text.empty() ? "" : " ") + part;
  };
  add(factors_of(layout));
  add(switches_of(layout));
  return text.empty() ? "one rank" : text;
}

std::vector<std::string> layout_overrides(const Layout& layout) {
  std::vector<std::string> overrides;
  const auto set = [&](const char* key, auto value) {
    overrides.push_back(fmt::format("{}={}", key, value));
  };
  set("distributed_strategy.tensor_model_parallel_size", layout.tp);
  set("distributed_strategy.pipeline_model_parallel_size", layout.pp);
  set("distributed_strategy.virtual_pipeline_model_parallel_size", layout.vpp);
  set("distributed_strategy.context_parallel_size", layout.cp);
  set("distributed_strategy.expert_model_parallel_size", layout.ep);
  set("distributed_strategy.sequence_parallel", layout.sequence_parallel);
  set("distributed_strategy.zero1", layout.zero1);
  set("distributed_strategy.fsdp", layout.fsdp);
  set("distributed_strategy.kv_replicator", layout.kv_replicator);
  set("model.pipeline_cuts", "null");
  set("model.activations_checkpoint_granularity",
      layout.recompute == Recompute::kNone ? "null" : name_of(layout.recompute));
  return overrides;
}

}  // namespace trellis::trainer
