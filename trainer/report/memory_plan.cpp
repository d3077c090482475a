#include "trainer/report/memory_plan.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr double kGB = 1e9;
/// Of the one published breakdown of a core's memory: 18.12 GB = 7.69 I/O + 8.88 scratch + 1.02 rings + a rest. I/O (weights, gradients, states, inputs)
/// and scratch (activations, temporaries) are what the allocator counts.
constexpr const char* kBreakdownSource =
    "torchneuronx ctx_8192.failure.json: Llama-3.1-8B LoRA, sequence 8192, trn1.2xlarge TP 2: 18.12 GB per core = 7.69 I/O + 8.88 scratch + 1.02 DMA rings + rest";

json beyond_allocator() {
  const auto row = [](const char* what, double gb) {
    return json{{"what", what}, {"bytes_per_core", static_cast<std::int64_t>(gb * kGB)}, {"evidence", "estimated"}, {"source", kBreakdownSource}};
  };
  return json::array({row("DMA rings", 1.02), row("the rest that the runtime names no further (code, its own buffers)", 18.12 - 7.69 - 8.88 - 1.02)});
}

std::int64_t beyond_bytes(const json& rows) {
  std::int64_t sum = 0;
  for (const json& row : rows) sum += row.at("bytes_per_core").get<std::int64_t>();
  return sum;
}

/// A node's own memory. The last stage's ranks may weigh more than the first's: the heaviest rank counts for all.
json host_memory(const MemoryRunFacts& facts, const json& ranks) {
  std::int64_t weights = 0;
  for (const json& rank : ranks) weights = std::max(weights, rank.at("at_peak").at("parameter_bytes").get<std::int64_t>());
  const int building = std::clamp(facts.sequential_move_factor, 1, facts.devices);
  return {{"capacity_bytes", facts.host_memory_bytes},
          {"weights_while_building_bytes", weights * building},
          {"ranks_that_build_at_once", building},
          {"evidence", "computed"},
          {"source", "parameter bytes of the heaviest rank × min(trainer.sequential_move_factor, trainer.devices)"},
          {"not_modelled",
           json::array({"the processes and the runtime's server: published for Llama2-70B TP 32 on 32 nodes, 5 GB × 32 processes + 110 GB server = 270 GB "
                        "(SDK known_issues.rst:76-93)",
                        "checkpoints: the same run with asynchronous saving, up to 482 GB (the same page)", "compiler and data loaders"})}};
}

json run_json(const MemoryRunFacts& facts) {
  return {{"name", facts.name},
          {"instance", facts.instance},
          {"nodes", facts.nodes},
          {"devices", facts.devices},
          {"world_size", facts.world_size},
          {"tensor_model_parallel_size", facts.tp},
          {"pipeline_model_parallel_size", facts.pp},
          {"virtual_pipeline_model_parallel_size", facts.vpp},
          {"data_parallel_size", facts.dp},
          {"micro_batch_size", facts.micro_batch_size},
          {"num_microbatches", facts.num_microbatches},
          {"sequence_length", facts.sequence_length},
          {"parameters", facts.parameters},
          {"precision", facts.precision},
          {"zero1", facts.zero1},
          {"sequence_parallel", facts.sequence_parallel},
          {"recompute", facts.recompute},
          {"steps", facts.steps},
          {"logical_cores_per_chip", facts.cores_per_chip}};
}

bool fits(const json& rank) { return rank.at("num_ooms").get<std::int64_t>() == 0; }

/// One that does not fit before one that does, then the one that takes most.
const json& worst_of(const json& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const json& a, const json& b) {
    if (fits(a) != fits(b)) return fits(a);
    return a.at("peak_reserved_bytes").get<std::int64_t>() < b.at("peak_reserved_bytes").get<std::int64_t>();
  });
}

}  // namespace

json memory_plan(const MemoryRunFacts& facts, const json& memory) {
  json ranks = memory.at("ranks");
  const int ranks_per_stage = facts.world_size / facts.pp;
  for (json& rank : ranks) {
    rank["pipeline_rank"] = rank.at("rank").get<int>() / ranks_per_stage;
    rank["fits"] = fits(rank);
    rank.erase("largest_graph");
  }
  const json& worst = worst_of(ranks);
  const json beyond = beyond_allocator();
  const std::int64_t capacity = worst.at("capacity_bytes").get<std::int64_t>(), needed = worst.at("peak_reserved_bytes").get<std::int64_t>();
  const std::int64_t headroom = capacity - needed;
  return {{"schema", "trellis.memory_plan/1"},
          {"run", run_json(facts)},
          {"verdict", !fits(worst) ? "does_not_fit" : headroom < beyond_bytes(beyond) ? "tight" : "fits"},
          {"capacity_bytes", capacity},
          {"needed_bytes", needed},
          {"headroom_bytes", headroom},
          {"headroom_share", static_cast<double>(headroom) / static_cast<double>(capacity)},
          {"worst_rank", worst.at("rank")},
          {"worst_phase", worst.at("peak_phase")},
          {"evidence", "computed"},  // by the trainer's own allocations
          {"ranks", std::move(ranks)},
          {"beyond_allocator", beyond},
          {"not_modelled", json::array({"buffers of collectives", "what neuronx-cc allocates otherwise than LibTorch's operators do: fusion takes less, spilling more"})},
          {"host", host_memory(facts, memory.at("ranks"))}};
}

}  // namespace trellis::trainer
