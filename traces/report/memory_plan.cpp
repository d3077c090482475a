#include "traces/report/memory_plan.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace trellis::analysis {
namespace {

using nlohmann::json;

/// Bytes that a process of a rank and its part of the runtime's server take on a node: published
/// for Llama2-70B TP 32 on 32 nodes.
constexpr std::int64_t kProcessBytes = (std::int64_t{5'000'000'000} * 32 + 110'000'000'000) / 32;

/// A node's own memory: while weights are built, and while a step trains. The heaviest rank counts
/// for all. Exact is what the run itself holds there; the published share of processes and runtime
/// decides between "fits" and "tight" only, since it was measured on one run.
json host_memory(const MemoryRunFacts& facts, const json& ranks) {
  std::int64_t weights = 0;
  for (const json& rank : ranks)
    weights = std::max(weights, rank.at("at_peak").at("parameter_bytes").get<std::int64_t>());
  const int building = std::clamp(facts.sequential_move_factor, 1, facts.devices);
  const std::int64_t batches = facts.batch_bytes * facts.devices,
                     counted = std::max(weights * building, batches),
                     processes = kProcessBytes * facts.devices;
  const std::int64_t capacity = facts.host_memory_bytes;
  return {{"capacity_bytes", capacity},
          {"verdict", counted > capacity               ? "does_not_fit"
                      : counted + processes > capacity ? "tight"
                                                       : "fits"},
          {"counted_bytes", counted},
          {"weights_while_building_bytes", weights * building},
          {"ranks_that_build_at_once", building},
          {"batches_bytes", batches},
          {"evidence", "computed"},
          {"source",
           "parameter bytes of the heaviest rank × min(trainer.sequential_move_factor, "
           "trainer.devices); samples that each rank of a node holds, with "
           "data.num_workers those of the next step too"},
          {"processes_bytes", processes},
          {"processes_evidence", "estimated"},
          {"processes_source",
           "SDK known_issues.rst:76-93, Llama2-70B TP 32 on 32 nodes: 5 GB × 32 processes + 110 GB "
           "of the runtime's server = 270 GB a node; "
           "here per rank of a node"},
          {"not_modelled", json::array({"checkpoints: the same run with asynchronous saving, up to "
                                        "482 GB a node (the same page)",
                                        "compiler", "what data sets map or cache in memory"})}};
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
          {"fsdp", facts.fsdp},
          {"sequence_parallel", facts.sequence_parallel},
          {"recompute", facts.recompute},
          {"steps", facts.steps},
          {"software", facts.software.name},
          {"functionalization", facts.software.functionalization},
          {"logical_cores_per_chip", facts.cores_per_chip}};
}

bool fits(const json& rank) { return rank.at("num_ooms").get<std::int64_t>() == 0; }

/// One that does not fit before one that does, then the one that takes most.
const json& worst_of(const json& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const json& a, const json& b) {
    if (fits(a) != fits(b)) return fits(a);
    return a.at("peak_reserved_bytes").get<std::int64_t>() <
           b.at("peak_reserved_bytes").get<std::int64_t>();
  });
}

json not_modelled(bool software) {
  if (software)
    return json::array({"graphs that the software cuts where this trainer does not know of it"});
  return json::array({"buffers of collectives",
                      "what neuronx-cc allocates otherwise than LibTorch's operators do: fusion "
                      "takes less, spilling more"});
}

/// The judged values: the worst rank, where it takes most, and whether that fits.
struct Judgement {
  json rank, phase;
  std::int64_t needed = 0;
  std::string verdict;
};

Judgement judge_allocations(const json& ranks, std::int64_t capacity) {
  const json& worst = worst_of(ranks);
  const auto needed = worst.at("peak_reserved_bytes").get<std::int64_t>();
  return {worst.at("rank"), worst.at("peak_phase"), needed,
          !fits(worst)                          ? "does_not_fit"
          : capacity - needed < runtime_bytes() ? "tight"
                                                : "fits"};
}

Judgement judge_software(const json& software) {
  return {software.at("rank"), software.at("phase"), software.at("total_bytes"),
          software.at("verdict")};
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
  const auto capacity = ranks.at(0).at("capacity_bytes").get<std::int64_t>();
  const json software = software_memory(facts.software, ranks);
  const Judgement judged =
      software.is_null() ? judge_allocations(ranks, capacity) : judge_software(software);
  const std::int64_t headroom = capacity - judged.needed;
  json plan = {
      {"schema", "trellis.memory_plan/1"},
      {"run", run_json(facts)},
      {"verdict", judged.verdict},
      {"capacity_bytes", capacity},
      {"needed_bytes", judged.needed},
      {"headroom_bytes", headroom},
      {"headroom_share", static_cast<double>(headroom) / static_cast<double>(capacity)},
      {"worst_rank", judged.rank},
      {"worst_phase", judged.phase},
      {"evidence", software.is_null() ? "computed"
                                      : "estimated"},  // computed: by the trainer's own allocations
      {"ranks", std::move(ranks)},
      {"beyond_allocator", runtime_memory()},
      {"not_modelled", not_modelled(!software.is_null())},
      {"host", host_memory(facts, memory.at("ranks"))}};
  if (!software.is_null()) plan["software"] = software;
  return plan;
}

}  // namespace trellis::analysis
