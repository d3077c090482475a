#include "traces/report/checkpoint_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/number_text.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr double kPicosecond = 1e-12;
/// Share of the step time below which a save costs too little to be explained.
constexpr double kSmallShare = 0.02;

std::string seconds(const json& ps) {
  return significant(static_cast<double>(ps.get<std::int64_t>()) * kPicosecond, 3) + " s";
}

json save_json(const sim::SaveTiming& save) {
  sim::RankSave last;
  for (const sim::RankSave& rank : save.ranks) {
    last.copied = std::max(last.copied, rank.copied);
    last.written = std::max(last.written, rank.written);
  }
  return {{"begun_ps", save.begun.value},
          {"copied_ps", save.copied.value},
          {"written_ps", last.written.value},
          {"complete_ps", save.complete.value},
          {"limited_by", std::string(save.limit)},
          {"host_buffer_bytes", save.buffer.value},
          {"host_buffer_cap_bytes", save.buffer_cap.value}};
}

json restart_json(const sim::LoadTiming& load, const sim::HostCosts& host) {
  const std::int64_t total =
      host.process_start.value + host.program_load.value + load.total().value;
  return {{"process_start_ps", host.process_start.value},
          {"program_load_ps", host.program_load.value},
          {"read_ps", load.read.value},
          {"copied_ps", load.copied.value},
          {"total_ps", total},
          {"without_compiled_programs_ps", total + host.compile.value}};
}

/// One storage of an instance, or one of all.
std::int64_t bytes_on_one(const sim::CheckpointPlan& plan, const sim::StorageMachine& machine) {
  if (machine.storage.shared) return plan.bytes();
  std::vector<std::int64_t> of_node;
  for (std::size_t rank = 0; rank < machine.cores.size(); ++rank) {
    const auto node =
        static_cast<std::size_t>(machine.cores[rank] / machine.system.logical_cores_per_node());
    of_node.resize(std::max(of_node.size(), node + 1));
    of_node[node] += plan.of(rank).bytes();
  }
  return *std::ranges::max_element(of_node);
}

std::string why_so_long(const json& part) {
  const json& waits = part.at("waits");
  if (waits.at("previous_ps").get<std::int64_t>() > 0)
    return fmt::format("the save before is not complete after {} steps: it takes {}, limited by {}",
                       part.at("every_n_steps").get<std::int64_t>(),
                       seconds(part.at("save").at("complete_ps")),
                       part.at("save").at("limited_by").get<std::string>());
  if (!part.at("asynchronous").get<bool>())
    return "training waits until everything is written, limited by " +
           part.at("save").at("limited_by").get<std::string>() +
           "; exp_manager.async_checkpointing: true lets it go on after the copy to the host";
  return "training waits for the copy to the host" +
         std::string(part.at("save").at("host_buffer_bytes") ==
                             part.at("save").at("host_buffer_cap_bytes")
                         ? ", whose buffer is full until a part is written"
                         : "") +
         ", and few steps share it";
}

}  // namespace

json checkpoint_report(const sim::CheckpointPlan& plan, const sim::StorageMachine& machine,
                       std::int64_t step_time_ps) {
  const sim::SaveTiming save = sim::time_save(plan, machine);
  const Picoseconds interval(step_time_ps * plan.every_n_steps);
  const sim::ExposedSave wait = sim::exposed_time(save, plan.asynchronous, interval);
  const std::int64_t per_step = wait.total().value / plan.every_n_steps;
  json part = {{"storage", plan.storage},
               {"every_n_steps", plan.every_n_steps},
               {"asynchronous", plan.asynchronous},
               {"fully_parallel", plan.fully_parallel},
               {"bytes", plan.bytes()},
               {"files", plan.files()},
               {"storage_bytes", bytes_on_one(plan, machine)},
               {"storage_capacity_bytes", machine.storage.capacity.value},
               {"save", save_json(save)},
               {"waits",
                {{"previous_ps", wait.previous.value},
                 {"own_ps", wait.own.value},
                 {"total_ps", wait.total().value},
                 {"per_step_ps", per_step},
                 {"share_of_step", step_time_ps > 0 ? static_cast<double>(per_step) /
                                                          static_cast<double>(step_time_ps)
                                                    : 0.0}}},
               {"restart", restart_json(sim::time_load(plan, machine), machine.host)},
               {"evidence", "estimated"}};
  if (!plan.gathers.empty()) {
    part["save"]["gathered_bytes"] = plan.gathered_bytes();
    part["save"]["gathered_ps"] = save.gathered.value;
  }
  if (part.at("waits").at("share_of_step").get<double>() > kSmallShare)
    part["waits"]["because"] = why_so_long(part);
  return part;
}

std::string print_checkpoints(const json& part) {
  const json &save = part.at("save"), &waits = part.at("waits"), &restart = part.at("restart");
  const bool async = part.at("asynchronous");
  std::string text =
      fmt::format("Checkpoints on {}, every {} steps, {} ({}; evidence: estimated)\n",
                  part.at("storage").get<std::string>(), thousands(part.at("every_n_steps")),
                  async ? "asynchronous" : "synchronous",
                  part.at("fully_parallel").get<bool>() ? "a file per tensor, shared out over DP"
                                                        : "a file per rank of TP and PP");
  text += fmt::format(
      "  {} in {} files; copied to the host in {}, complete after {}, limited by {}\n",
      human_bytes(part.at("bytes")), thousands(part.at("files")), seconds(save.at("copied_ps")),
      seconds(save.at("complete_ps")), save.at("limited_by").get<std::string>());
  if (save.contains("gathered_bytes"))
    text += fmt::format("  {} of optimizer states are with the ranks that write them after {}\n",
                        human_bytes(save.at("gathered_bytes")), seconds(save.at("gathered_ps")));
  text += fmt::format(
      "  training waits {} at each: {} of its steps' time{}\n", seconds(waits.at("total_ps")),
      share_text(waits.at("share_of_step").get<double>(), 1),
      waits.contains("because") ? ", because " + waits.at("because").get<std::string>() : "");
  text += fmt::format("  host memory for copies: {} of at most {} per instance\n",
                      human_bytes(save.at("host_buffer_bytes")),
                      human_bytes(save.at("host_buffer_cap_bytes")));
  text += fmt::format(
      "  restart: {} (processes {}, programs {}, reading {}, to the devices {}); {} without "
      "compiled programs\n",
      seconds(restart.at("total_ps")), seconds(restart.at("process_start_ps")),
      seconds(restart.at("program_load_ps")), seconds(restart.at("read_ps")),
      seconds(restart.at("copied_ps")), seconds(restart.at("without_compiled_programs_ps")));
  const auto capacity = part.at("storage_capacity_bytes").get<std::int64_t>();
  const auto used = part.at("storage_bytes").get<std::int64_t>();
  if (capacity > 0 && used > capacity)
    text += fmt::format("  DOES NOT FIT: {} of one checkpoint on a storage of {}\n",
                        human_bytes(used), human_bytes(capacity));
  return text;
}

CheckpointCost checkpoint_cost(const json& part) {
  try {
    return {
        static_cast<double>(part.at("waits").at("total_ps").get<std::int64_t>()) * kPicosecond,
        static_cast<double>(part.at("restart").at("total_ps").get<std::int64_t>()) * kPicosecond,
        part.at("every_n_steps"), part.at("bytes")};
  } catch (const json::exception& error) {
    throw ConfigError(std::string("checkpoints of the report: ") + error.what());
  }
}

}  // namespace trellis::analysis
