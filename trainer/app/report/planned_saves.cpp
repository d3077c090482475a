#include "trainer/app/report/planned_saves.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/output_error.h"
#include "sim/job/rank_fold.h"
#include "sim/storage/save_time.h"
#include "traces/perfetto_writer.h"
#include "traces/report/checkpoint_report.h"
#include "traces/text_writer.h"
#include "trainer/config/machine.h"

namespace trellis::trainer {
namespace {

constexpr const char* kDefaultStorage = "nvme";
/// Classes of ranks that a trace shows.
constexpr std::size_t kMostTracks = 64;

std::int64_t steps_between(const RunRequest& request, const RunConfig& config) {
  if (request.checkpoint_every > 0) return request.checkpoint_every;
  const CheckpointSection& section = config.exp_manager.checkpoints;
  if (section.create && section.every_n_train_steps) return *section.every_n_train_steps;
  throw ConfigError("--checkpoint-storage " + request.checkpoint_storage +
                    ": how often is a checkpoint saved? Expected --checkpoint-every N, or "
                    "exp_manager.create_checkpoint_callback with "
                    "checkpoint_callback_params.every_n_train_steps, found neither");
}

std::vector<int> representatives_by_rank(const EqualRanks& equal, int world_size) {
  if (equal.mesh.empty()) return {};
  const auto fold = sim::RankFold::along_axes(equal.mesh, equal.along);
  std::vector<int> by_rank(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    by_rank[static_cast<std::size_t>(rank)] =
        fold.representatives()[static_cast<std::size_t>(fold.seat(rank))];
  }
  return by_rank;
}

sim::SystemConfig machine_of(const RunConfig& config, const DeviceChoice& device) {
  sim::LoadOptions load;
  load.nodes = device.nodes;
  load.overrides = device.hardware;
  load.calibrated = device.calibrated;
  return load_machine(config, device.instance, load);
}

}  // namespace

bool has_planned_saves(const RunRequest& request) {
  return request.checkpoint_every > 0 || !request.checkpoint_storage.empty();
}

PlannedSaves::PlannedSaves(const RunRequest& request, const RunConfig& config,
                           const DeviceChoice& device, const sim::StorageOverrides& overrides)
    : recorder_(config),
      system_(machine_of(config, device)),
      host_(sim::load_host_costs(overrides.host)),
      represented_by_(representatives_by_rank(device.equal_ranks, config.world_size())),
      cores_(static_cast<std::size_t>(config.world_size())) {
  if (config.model.dist_ckpt.format == "torch_dist")
    throw ConfigError(
        "model.dist_ckpt_format: torch_dist: the time of writing a checkpoint in a second form is "
        "not modelled: expected null with --checkpoint-every and --checkpoint-storage");
  settings_.storage =
      request.checkpoint_storage.empty() ? kDefaultStorage : request.checkpoint_storage;
  storage_ = sim::load_storage(settings_.storage, system_, overrides.storage);
  settings_.every_n_steps = steps_between(request, config);
  std::iota(cores_.begin(), cores_.end(), 0);
}

sim::CheckpointPlan PlannedSaves::plan() const {
  sim::CheckpointPlan plan = recorder_.plan(represented_by_);
  plan.every_n_steps = settings_.every_n_steps;
  plan.storage = settings_.storage;
  return plan;
}

nlohmann::json PlannedSaves::report(std::int64_t step_time_ps) const {
  return analysis::checkpoint_report(plan(), {system_, storage_, host_, cores_}, step_time_ps);
}

void PlannedSaves::add_to_trace(const std::filesystem::path& trace, const std::string& format,
                                std::int64_t step_time_ps) const {
  const sim::CheckpointPlan files = plan();
  const sim::SaveTiming save = sim::time_save(files, {system_, storage_, host_, cores_});
  const Picoseconds start(step_time_ps);
  traces::Timeline timeline;
  const traces::ProcessId process =
      timeline.add_process("checkpoint on " + files.storage + ", after the step", 0);
  const auto tracks = std::min(files.classes.size(), kMostTracks);
  for (std::size_t c = 0; c < tracks; ++c) {
    const auto first = std::ranges::find(files.class_of, static_cast<int>(c));
    const auto rank = static_cast<std::size_t>(first - files.class_of.begin());
    const sim::RankSave& times = save.ranks[rank];
    const auto count = std::ranges::count(files.class_of, static_cast<int>(c));
    const traces::TrackId track = timeline.add_track(
        process, "rank " + std::to_string(rank) + ", as " + std::to_string(count - 1) + " others",
        static_cast<int>(c));
    const std::array<traces::Arg, 1> bytes{{{"bytes", files.classes[c].bytes()}}};
    timeline.slice(track, "copy to the host", "checkpoint", start + save.begun,
                   times.copied - save.begun, bytes);
    timeline.slice(track, "write", "checkpoint", start + std::max(times.copied, times.write_start),
                   times.written - std::max(times.copied, times.write_start), bytes);
  }
  std::ofstream out(trace, std::ios::binary | std::ios::app);
  format == "text" ? traces::write_text(timeline, out)
                   : traces::write_perfetto(timeline, out, /*part=*/1);
  if (!out.flush())
    throw OutputError(trace.string() + ": the checkpoint could not be added to the trace");
}

}  // namespace trellis::trainer
