#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/log.h"
#include "base/process/host_memory.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/hangs/flight_files.h"
#include "runtime/hangs/flight_trace.h"
#include "runtime/ranks/world.h"
#include "traces/report/measured_step.h"
#include "traces/report/run_report.h"
#include "trainer/app/prepare/damaged_start.h"
#include "trainer/app/prepare/failed_allocation.h"
#include "trainer/app/prepare/full_disk.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/host_facts.h"
#include "trainer/app/prepare/host_need.h"
#include "trainer/app/prepare/job.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/prepare/operator_check.h"
#include "trainer/app/prepare/process_records.h"
#include "trainer/app/prepare/run_facts.h"
#include "trainer/app/prepare/stop_on_signal.h"
#include "trainer/app/report/memory_timeline.h"
#include "trainer/app/report/planned_load.h"
#include "trainer/app/report/planned_saves.h"
#include "trainer/app/report/progress.h"
#include "trainer/app/run/verbs.h"
#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/routing_trace.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/files/checkpoint/storage/lease.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/run/exp_manager.h"
#include "trainer/files/run/rank_log.h"
#include "trainer/loop/faults.h"
#include "trainer/loop/replica_check.h"
#include "trainer/loop/trainer.h"
#include "trainer/requests/run_request.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Keeps what is said before the log files are there.
class EarlyMessages {
 public:
  void move_to(RankLogs& logs) {
    tap_.reset();
    for (const auto& [level, text] : messages_) logs.write(0, level, text);
  }

 private:
  std::vector<std::pair<LogLevel, std::string>> messages_;
  std::optional<LogTap> tap_{std::in_place, [this](LogLevel level, std::string_view text) {
                               messages_.emplace_back(level, text);
                             }};
};

/// The numbers of storage and host belong to checkpoints: without them they are unknown.
sim::StorageOverrides overrides_of(const RunRequest& request) {
  return has_planned_saves(request) ? sim::split_overrides(request.hardware)
                                    : sim::StorageOverrides{request.hardware, {}, {}};
}

// Files of ranks that failed.
constexpr const char* kFlightRecorder = "flight_recorder/rank_";
constexpr const char* kTraceOfTheEnd = "trace_of_the_end.pftrace";

/// One run from configuration to files.
class Run {
 public:
  explicit Run(const RunRequest& request)
      : request_(request), config_(load()), facts_(facts_of(request, config_)) {
    if (request.device == "cpu" && request.shape_only)
      throw ConfigError("simulate needs the emulated device: leave --device at neuron");
    if (!request.shape_only) link_ = join_job(request, config_);
    if (!is_first()) be_quiet();
    const sim::StorageOverrides numbers = overrides_of(request);
    device_ = device_choice(request);
    device_.nodes = request.nodes;
    device_.shape_only = request.shape_only;
    device_.hardware = numbers.machine;
    device_.calibrated = request.calibrated;
    choose_ranks();
    facts_.hardware = use_machine(device_, config_);
    if (!request.shape_only && computes_in_host_memory(device_)) refuse_without_memory();
    if (request.shape_only && request.fold) device_.equal_ranks = equal_ranks(config_);
    device_.replay = request.shape_only && request.replay;
    device_.slow = request.slow;
    if (has_planned_saves(request)) planned_saves_.emplace(request, config_, device_, numbers);
    representatives_ = device_.equal_ranks.representatives();
    const VersionSources sources = VersionSources::of_this_process();
    auto resume = find_checkpoint(sources);
    after_first("data", [&] {
      data_ = request.shape_only
                  ? make_empty_data_module(config_)
                  : make_data_module(config_, resume ? resume->point : ResumePoint{});
    });
    if (request.test && data_->num_evaluation_batches(Split::kTest) == 0) {
      throw ConfigError(
          "--test: there are no test data: expected data.test_dir, or a third part above 0 in "
          "data.splits_string, with a global batch of "
          "samples, and trainer.limit_test_batches other than 0");
    }
    plugin_ = load_device(device_, config_);
    if (plugin_ != nullptr)
      after_first("operators", [&] {
        if (is_first()) refuse_lacking_operators(request, device_, *plugin_);
      });
    if (link_ && plugin_ != nullptr && plugin_->api().give_accounts != nullptr)
      process_records_.emplace(*link_, *plugin_, ranks_with_logs());
    open_directory(sources);
    open_checkpoints(std::move(resume));
    if (request.check_replicas > 0) refuse_without_replicas(config_);
    // Once in a job, however often its launcher starts it again.
    if (!request.faults.empty() && (!link_ || link_->launch().restart == 0))
      faults_.emplace(request.faults, config_.world_size(), config_.trainer.max_steps);
    if (faults_) fill_disk(*faults_, config_, checkpoints_.get());
    const std::vector<int> ranks = ranks_with_logs();
    ranks.empty() ? logs_.emplace(directory_, config_) : logs_.emplace(directory_, config_, ranks);
    early_messages_.move_to(*logs_);
    log_info("run directory: " + directory_.string());
    if (request.attempt > 1)
      log_info("attempt " + std::to_string(request.attempt) + " of the run, after failures");
    log_info("data: " + data_->description());
  }

  int execute() {
    const StopOnSignal guard;
    const Clock::time_point start = Clock::now();
    std::optional<Progress> progress;
    if (is_first()) progress.emplace(facts_, directory_, progress_options());
    runtime::WorldOptions world;
    world.link = link_.get();
    world.world_size = config_.world_size();
    world.device_type = request_.device;
    world.plugin = plugin_;
    world.backend = device_.backend;
    world.host_threads = request_.host_threads;
    world.shape_only = request_.shape_only;
    world.representatives = representatives_;
    world.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(request_.timeout_s * 1000));
    world.exit_when_stuck = true;
    if (!request_.shape_only)
      world.dump = [this](const auto& dumps) { return keep_what_ranks_did(dumps); };
    if (process_records_)
      world.before_leave = [&] { process_records_->bring_accounts(world.timeout); };
    clock_origin_ns_ = common_clock_origin();
    Clock::time_point last = start;
    host_.bytes_before = peak_resident_bytes();
    const std::int64_t steps = config_.trainer.max_steps;
    if (is_first()) {
      logs_->lightning("training: " + (steps > 0 ? std::to_string(steps) + " " : "") + "steps of " +
                       std::to_string(config_.data.global_batch_size) + " sequences on " +
                       std::to_string(world.world_size) + " ranks");
      say_step(1);
    }
    run_ranks_on(device_, config_, world, [&](runtime::RankContext& rank) {
      with_logged_errors(rank, [&] {
        Trainer trainer(config_, rank, data_,
                        {&*logs_, checkpoints(), routing(), directory_.string(),
                         faults_ ? &*faults_ : nullptr, request_.check_replicas});
        const StopReason reason = trainer.fit([&](StepResult& result) {
          if (process_records_) process_records_->bring_step(rank, result.step);
          if (!is_first()) return;
          simulate(result.step);
          result.scalars = log_step(*progress, result, seconds_since(last));
          last = Clock::now();
        });
        if (rank.rank() == 0) end_training(reason);
        if (reason == StopReason::kInterrupted) note_interrupt(rank, guard);
        if (request_.test && reason != StopReason::kInterrupted) test(progress, trainer, rank);
      });
    });
    host_.wall_s = seconds_since(start);
    host_.bytes_peak = peak_resident_bytes();
    if (is_first()) {
      host_.steps = progress->host_steps();
      write_results();
    }
    return static_cast<int>(exit_code());
  }

  /// Damage of the checkpoint that the run was to continue from.
  [[nodiscard]] std::optional<checkpoint::native::DamagedCheckpoint> damage() const {
    return checkpoints_ ? checkpoints_->damage() : std::nullopt;
  }

 private:
  std::string keep_what_ranks_did(const std::vector<runtime::FlightDump>& dumps) const {
    const std::string files = write_flight_files(directory_ / kFlightRecorder, dumps);
    const std::string trace =
        append_flight_trace(directory_ / kTraceOfTheEnd, dumps, clock_origin_ns_,
                            link_ == nullptr ? 0 : static_cast<std::uint32_t>(link_->process()));
    return files.empty() ? trace : files + "\n" + trace;
  }

  /// Where the traces of all processes begin.
  [[nodiscard]] std::int64_t common_clock_origin() const {
    const std::int64_t now = runtime::host_time_ns();
    return link_ == nullptr ? now : std::stoll(link_->from_first("clock", std::to_string(now)));
  }

  /// True if this process runs rank 0, and so reports and writes files for the job.
  [[nodiscard]] bool is_first() const { return link_ == nullptr || link_->process() == 0; }

  void choose_ranks() {
    if (!link_) return;
    const int each = config_.world_size() / link_->processes();
    device_.first_rank = link_->process() * each;
    device_.process_ranks = each;
    device_.first_local_rank = link_->launch().local_process * each;
  }

  void note_interrupt(runtime::RankContext& rank, const StopOnSignal& signals) {
    interrupted_ = true;
    const bool saves = !request_.shape_only && config_.exp_manager.checkpoints.create;
    if (!agree_on_sigterm(rank, signals.was_terminated()) || !saves) return;
    saved_for_preemption_ = true;
    if (rank.rank() == 0)
      logs_->lightning("SIGTERM: the last step is in a checkpoint; go on with --resume");
  }

  /// A preempted run whose state is saved has done its duty.
  [[nodiscard]] ExitCode exit_code() const {
    return interrupted_ && !saved_for_preemption_ ? ExitCode::kInterrupted : ExitCode::kOk;
  }

  /// Errors are for those who look at this process's output.
  void be_quiet() {
    set_log_level(LogLevel::kError);
    activity_.now("");
  }

  /// First in the first process, because the others then find what it left in caches.
  void after_first(const std::string& name, const std::function<void()>& work) {
    if (!is_first()) (void)link_->from_first(name, "");
    work();
    if (link_ && is_first()) (void)link_->from_first(name, "ready");
  }

  void open_directory(const VersionSources& sources) {
    if (is_first()) {
      RunDirectory place =
          prepare_run_directory(config_, request_.command_line, sources, request_.began);
      directory_ = std::move(place.path);
      identity_ = {std::move(place.run_id), place.saved_before};
      lock_.emplace(std::move(place.lock));
    }
    if (link_) directory_ = link_->from_first("directory", directory_.string());
  }

  /// Those that run here; empty: all of the world.
  [[nodiscard]] std::vector<int> ranks_with_logs() const {
    if (!link_) return representatives_;
    std::vector<int> ranks(static_cast<std::size_t>(config_.world_size() / link_->processes()));
    std::iota(ranks.begin(), ranks.end(), link_->process() * static_cast<int>(ranks.size()));
    return ranks;
  }

  RunConfig load() const {
    const VerbChanges changes{.steps = request_.steps};
    RunConfig config = load_run_config(request_, changes);
    if (const auto resumed = request_.resume ? resumed_run_directory(config) : std::nullopt) {
      std::vector<std::string> overrides = request_.overrides;
      overrides.push_back("exp_manager.explicit_log_dir=" + resumed->string());
      config = load_run_config(request_.config_file, overrides, request_.instance, changes);
    }
    refuse_unsupported(config, request_.shape_only);
    if (!request_.routing.empty()) set_routing(config);
    return config;
  }

  void set_routing(RunConfig& config) const {
    if (!config.model.moe) {
      throw ConfigError("--routing " + request_.routing + ": " + request_.config_file +
                        " has no mixture of experts: expected section model.moe; leave it out");
    }
    set_simulated_routing(config.model, request_.routing);
  }

  /// Address of the run's own checkpoints.
  [[nodiscard]] std::string checkpoint_folder(const std::filesystem::path& directory) const {
    const std::string& dirpath = config_.exp_manager.checkpoints.dirpath;
    return dirpath.empty() ? (directory / kCheckpointFolder).string() : dirpath;
  }

  std::optional<checkpoint::Resume> find_checkpoint(const VersionSources& sources) const {
    if (request_.shape_only) return std::nullopt;
    std::string folder = checkpoint_folder(named_run_directory(config_, sources).value_or(""));
    if (link_) folder = link_->from_first("folder of checkpoints", folder);
    auto resume = checkpoint::find_resume(config_, folder);
    if (link_) check_equal_start(*link_, resume ? checkpoint::address_of(*resume) : "");
    const std::int64_t steps = config_.trainer.max_steps;
    if (resume && steps > 0 && resume->point.step >= steps)
      log_warning(checkpoint::address_of(*resume) + ": step " + std::to_string(resume->point.step) +
                  " is done and trainer.max_steps is " + std::to_string(steps) +
                  ": nothing is left to do; raise it to train on");
    return resume;
  }

  void open_checkpoints(std::optional<checkpoint::Resume> resume) {
    const CheckpointSection& section = config_.exp_manager.checkpoints;
    if (request_.shape_only || !checkpoint::needs_checkpoints(config_, resume)) return;
    const std::string folder = checkpoint_folder(directory_);
    if (is_first() && section.create && !section.dirpath.empty()) lock_checkpoints(folder);
    checkpoints_ = std::make_unique<checkpoint::RunCheckpoints>(config_, folder, std::move(resume),
                                                                link_.get(), identity_);
    if (lease_) checkpoints_->set_before_save([this] { lease_->check(); });
  }

  void lock_checkpoints(const std::string& folder) {
    const char* advice = "choose another place with exp_manager.checkpoint_callback_params.dirpath";
    if (folder.starts_with("s3://")) {
      lease_.emplace(checkpoint::open_storage(folder), advice);
      return;
    }
    std::filesystem::create_directories(folder);
    checkpoint_lock_.emplace(folder, advice);
  }

  void refuse_without_memory() const {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int threads = request_.host_threads > 0 ? request_.host_threads : cores;
    const HostMemory memory = available_host_memory();
    check_host_memory(config_, threads, memory.available_bytes, memory.limit);
  }

  /// Logs the error that ends a run on the rank where it happened; ranks that end because of it log
  /// nothing.
  void with_logged_errors(const runtime::RankContext& rank, const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      logs_->write(rank.rank(), LogLevel::kError, error.what());
      throw;
    } catch (const std::exception& error) {
      if (const auto failed = failed_allocation(error)) end_without_memory(rank, *failed);
      if (const auto* known = dynamic_cast<const c10::Error*>(&error)) {
        logs_->write(rank.rank(), LogLevel::kError, known->what_without_backtrace());
      }
      throw;
    }
  }

  [[noreturn]] void end_without_memory(const runtime::RankContext& rank, const Error& failed) {
    const Error error(failed.code(), "rank " + std::to_string(rank.rank()) + ": " + failed.what());
    last_resort_.arm(error);
    logs_->write(rank.rank(), LogLevel::kError, error.what());
    throw Error(error);
  }

  /// Null: no routers, or routers without data.
  [[nodiscard]] RoutingLedger* routing() {
    return config_.model.moe && !request_.shape_only ? &routing_ : nullptr;
  }

  void note_routing(const RoutedTokens& layers) {
    facts_.routing =
        request_.shape_only ? planned_load(config_) : std::vector<analysis::ExpertLoad>();
    for (const auto& [layer, load] : layers)
      facts_.routing.push_back({layer, load.assigned, load.kept, load.computed});
  }

  void end_training(StopReason reason) {
    facts_.interrupted = reason == StopReason::kInterrupted;
    logs_->lightning("training ended after step " + std::to_string(facts_.steps) + ": " +
                     name_of(reason));
  }

  void test(std::optional<Progress>& progress, Trainer& trainer, const runtime::RankContext& rank) {
    const std::optional<Evaluation> result = trainer.test();
    if (rank.rank() != 0) return;
    facts_.test_loss = result.value().loss;
    progress->test({facts_.steps, result->loss, result->batches, result->host_s});
  }

  [[nodiscard]] bool emulated() const {
    return plugin_ != nullptr && plugin_->api().simulate_step != nullptr &&
           (link_ == nullptr || process_records_);
  }

  /// A run without lines of progress has none of these.
  void say_step(std::int64_t step) {
    if (!config_.trainer.enable_progress_bar) return activity_.now("");
    const std::size_t ranks = representatives_.empty()
                                  ? static_cast<std::size_t>(config_.world_size())
                                  : representatives_.size();
    activity_.now(
        std::to_string(ranks) + (ranks == 1 ? " rank runs" : " ranks run") + " step " +
        std::to_string(step) +
        (config_.trainer.max_steps > 0 ? " of " + std::to_string(config_.trainer.max_steps) : ""));
  }

  void simulate(std::int64_t step) {
    if (!emulated()) return;
    const Activity device_says("");
    const char* text = nullptr;
    plugin_->check(plugin_->api().simulate_step(step, &text));
    step_report_ = json::parse(text);
  }

  [[nodiscard]] ProgressOptions progress_options() {
    const ExpManagerSection& manager = config_.exp_manager;
    return {.log_every_n_steps = config_.trainer.log_every_n_steps,
            .enable_progress_bar = config_.trainer.enable_progress_bar,
            .tensorboard = manager.create_tensorboard_logger,
            .log_step_timing = manager.log_step_timing,
            .log_gradient_norm = manager.log_gradient_norm,
            .log_line = [this](const std::string& line) { logs_->lightning(line); }};
  }

  std::map<std::string, double> log_step(Progress& progress, const StepResult& result,
                                         double host_s) {
    StepLog log;
    log.step = result.step;
    log.loss = result.loss;
    log.lr = result.lr;
    log.grad_norm = result.grad_norm;
    log.skipped = result.skipped;
    log.scalars = result.scalars;
    log.metrics = result.metrics;
    log.parameter_norm = result.parameter_norm;
    log.val_loss = result.val_loss;
    log.validation_batches = result.validation_batches;
    log.validation_s = result.validation_s;
    log.backward_s = result.backward_s;
    log.data_wait_s = result.data_wait_s;
    host_.data_wait_s += result.data_wait_s;
    log.consumed_samples = result.consumed_samples;
    log.sequences = config_.data.global_batch_size;
    log.has_loss = !request_.shape_only;
    log.host_s = host_s;
    if (!step_report_.is_null()) log.simulated = analysis::simulated_rates(step_report_, facts_);
    std::map<std::string, double> scalars = progress.step(log, step_report_);
    say_step(result.step + 1);
    facts_.steps = result.step;
    note_routing(result.routed_tokens);
    if (log.has_loss) {
      if (!facts_.first_loss) facts_.first_loss = result.loss;
      facts_.last_loss = result.loss;
    }
    return scalars;
  }

  /// A document of the device; null when it has none.
  [[nodiscard]] json ask(int (*document)(const char**)) const {
    if (document == nullptr) return nullptr;
    const char* text = nullptr;
    plugin_->check(document(&text));
    return json::parse(text);
  }

  /// Null: none.
  [[nodiscard]] TrainingCheckpoints* checkpoints() {
    if (planned_saves_) return &planned_saves_->recorder();
    return checkpoints_.get();
  }

  void write_trace() {
    const Activity device_says("");
    const bool one_file = request_.trace_format == "perfetto" || request_.trace_format == "text";
    const std::filesystem::path trace = directory_ / trace_name(request_.trace_format);
    plugin_->check(plugin_->api().write_trace(trace.c_str(), request_.trace_format.c_str()));
    if (planned_saves_ && one_file)
      planned_saves_->add_to_trace(trace, request_.trace_format, step_report_.at("step_time_ps"));
    log_info("trace of the last step: " + trace.string() +
             (request_.trace_format == "perfetto" ? " (open it at ui.perfetto.dev)" : ""));
  }

  void write_results() {
    activity_.now("writing trace and report");
    json memory, portability;
    if (plugin_ != nullptr && (link_ == nullptr || process_records_)) {
      memory = ask(plugin_->api().memory_report);
      portability = ask(plugin_->api().portability_report);
    }
    const json timeline =
        request_.memory_timeline ? memory_timeline_of_fullest(memory) : json(nullptr);
    if (!timeline.is_null())
      write_file_atomically(directory_ / "memory_timeline.json", timeline.dump() + "\n");
    if (!portability.is_null())
      write_file_atomically(directory_ / "portability.json", portability.dump(1) + "\n");
    if (plugin_ != nullptr && plugin_->api().write_trace != nullptr && !step_report_.is_null())
      write_trace();
    log_info(host_memory_text(host_, facts_, memory));
    if (!request_.shape_only) {
      log_info("data: rank 0 waited " + seconds_text(host_.data_wait_s) + " of " +
               seconds_text(host_.wall_s) +
               " of host time for samples; simulated time has no reading of data");
    }
    write_file_atomically(directory_ / "host.json", analysis::host_report(host_).dump(1) + "\n");
    const json saves =
        planned_saves_ ? planned_saves_->report(step_report_.at("step_time_ps")) : json(nullptr);
    json report = analysis::run_report(facts_, step_report_, memory, portability, saves);
    if (plugin_ != nullptr) analysis::add_measured(report, ask(plugin_->api().measured_report));
    write_file_atomically(directory_ / "report.json", report.dump(1) + "\n");
    const std::string text =
        request_.json ? report.dump(1) + "\n" : analysis::print_run_report(report);
    request_.ended ? request_.ended(text) : static_cast<void>(std::cout << text << std::flush);
  }

  Activity activity_{"reading configuration and data"};
  EarlyMessages early_messages_;  ///< first: it receives what the others say
  const RunRequest& request_;
  RunConfig config_;
  std::unique_ptr<runtime::ProcessLink> link_;  ///< null: no other processes
  DeviceChoice device_;
  analysis::RunFacts facts_;
  analysis::HostFacts host_;
  std::shared_ptr<const DataModule> data_;
  const runtime::DevicePlugin* plugin_ = nullptr;
  std::optional<ProcessRecords> process_records_;  ///< of a job of several processes
  std::vector<int> representatives_;               ///< the ranks that run; empty: all
  std::filesystem::path directory_;
  checkpoint::RunIdentity identity_;        ///< of the first process
  std::optional<RunLock> lock_;             ///< of directory_
  std::optional<RunLock> checkpoint_lock_;  ///< of checkpoint_callback_params.dirpath
  std::optional<checkpoint::Lease> lease_;  ///< of the same in S3
  std::optional<FaultPlan> faults_;
  std::unique_ptr<checkpoint::RunCheckpoints> checkpoints_;  ///< null: none are saved or loaded
  std::optional<PlannedSaves> planned_saves_;                ///< of a simulated run
  std::optional<RankLogs> logs_;
  RoutingLedger routing_;
  LastResort last_resort_;
  std::atomic<bool> interrupted_ = false, saved_for_preemption_ = false;
  json step_report_;
  std::int64_t clock_origin_ns_ = 0;  ///< of traces by the host's clock
};

/// A run whose checkpoint is damaged is over, and its locks are free, before what follows from it.
int run(const RunRequest& request) {
  std::optional<checkpoint::native::DamagedCheckpoint> damage;
  try {
    Run run(request);
    try {
      return run.execute();
    } catch (const Error&) {
      damage = run.damage();
      if (!damage) throw;
    }
  } catch (const checkpoint::native::DamagedCheckpoint& found) {
    damage = found;
  }
  after_damage(request, *damage);
}

}  // namespace
int run_training(const RunRequest& request) {
  return guarded([&] { return run(request); });
}

}  // namespace trellis::trainer
