#include "trainer/requests/memory_request.h"

#include <chrono>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "sim/config/load_software.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"
#include "traces/report/memory_plan.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/prepare/software_facts.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"

namespace trellis::trainer {
namespace {

RunConfig load(const MemoryRequest& request) {
  RunConfig config = load_run_config(request, {.steps = request.steps, .without_progress = true});
  refuse_unsupported(config, true);
  if (request.functionalization && !sim::software_stack(config.software).is_xla) {
    throw ConfigError(
        "--functionalization: is of PyTorch/XLA: expected software: nxd or optimum-neuron in the "
        "configuration, got " +
        config.software);
  }
  return config;
}

/// Samples of a step that a rank holds; with workers, those of the next one too.
std::int64_t batch_bytes(const RunConfig& config, const DataModule& data) {
  std::int64_t bytes = 0;
  for (const MicroBatch& batch : data.micro_batches(0, 0)) {
    for (const at::Tensor* tensor :
         {&batch.input_ids, &batch.labels, &batch.loss_mask, &batch.position_ids,
          &batch.attention_mask, &batch.token_type_ids, &batch.next_sentence_labels,
          &batch.pixel_values}) {
      if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
    }
  }
  return config.data.num_workers > 0 ? 2 * bytes : bytes;
}

analysis::MemoryRunFacts facts_of(const MemoryRequest& request, const RunConfig& config,
                                  const DataModule& data) {
  sim::LoadOptions load;
  load.nodes = request.nodes;
  const sim::SystemConfig system = load_machine(config, request.instance, load);
  analysis::MemoryRunFacts facts;
  facts.name = config.name;
  facts.instance = request.instance;
  facts.nodes = request.nodes;
  facts.devices = config.trainer.devices;
  facts.world_size = config.world_size();
  facts.tp = config.tp();
  facts.pp = config.pp();
  facts.vpp = config.vpp();
  facts.dp = config.dp();
  facts.micro_batch_size = config.data.micro_batch_size;
  facts.num_microbatches = config.num_microbatches();
  facts.sequence_length = config.model.encoder_seq_length;
  facts.parameters = config.num_parameters();
  facts.precision = config.precision.type;
  facts.zero1 = config.distributed_strategy.zero1;
  facts.fsdp = config.distributed_strategy.fsdp;
  facts.sequence_parallel = config.distributed_strategy.sequence_parallel;
  facts.recompute = config.model.recompute == Recompute::kFull        ? "full"
                    : config.model.recompute == Recompute::kSelective ? "selective"
                                                                      : "none";
  facts.steps = request.steps;
  facts.batch_bytes = batch_bytes(config, data);
  facts.host_memory_bytes = system.instance.host_memory.value;
  facts.sequential_move_factor = config.trainer.sequential_move_factor;
  facts.cores_per_chip = system.logical_cores_per_chip();
  facts.software = software_facts(config, request.functionalization);
  return facts;
}

nlohmann::json run(const MemoryRequest& request) {
  RunConfig config = load(request);
  DeviceChoice choice{.device = "neuron",
                      .instance = request.instance,
                      .nodes = request.nodes,
                      .shape_only = true,
                      .unlimited_memory = true,
                      .replay = true};
  use_machine(choice, config);
  choice.equal_ranks = equal_ranks(config);
  const runtime::DevicePlugin* const plugin = load_device(choice, config);
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  world.device_type = choice.device;
  world.plugin = plugin;
  world.host_threads = request.host_threads;
  world.shape_only = true;
  world.representatives = choice.equal_ranks.representatives();
  world.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(request.timeout_s * 1000));
  const auto data = make_empty_data_module(config);
  Activity activity(std::to_string(world.representatives.size()) +
                    " ranks run a step without data, each for its class of equal ones");
  run_ranks_on(choice, config, world, [&](runtime::RankContext& rank) {
    Trainer(config, rank, data).fit([](const StepResult&) {});
  });
  activity.now("adding up the memory");
  const char* memory = nullptr;
  plugin->check(plugin->api().memory_report(&memory));
  return analysis::memory_plan(facts_of(request, config, *data), nlohmann::json::parse(memory));
}

}  // namespace
int run_memory(const MemoryRequest& request, std::string& report) {
  return guarded([&] {
    report = run(request).dump();
    return 0;
  });
}

}  // namespace trellis::trainer
