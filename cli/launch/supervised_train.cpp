#include "cli/launch/supervised_train.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process/child_process.h"
#include "base/process/launch.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/run/exp_manager.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using trainer::RunConfig;
using trainer::RunRequest;

constexpr seconds kFirstPause{1}, kLongestPause{60};
constexpr int kSignalCodes = 128;

// A signal handler may only touch lock-free atomics.
std::atomic<pid_t> child{0};
std::atomic<int> stopped_by{0};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void pass_on(int signal) {
  if (signal != SIGQUIT) stopped_by = signal;
  if (const pid_t to = child; to > 0) ::kill(to, signal);
}

/// The child is in its own group, so that a Ctrl-C of the terminal reaches it once: from here.
class PassSignalsOn {
 public:
  PassSignalsOn() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      before_[i] = std::signal(kSignals[i], pass_on);
      if (before_[i] == SIG_IGN) std::signal(kSignals[i], SIG_IGN);  // as under nohup
    }
  }
  ~PassSignalsOn() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) std::signal(kSignals[i], before_[i]);
  }
  PassSignalsOn(const PassSignalsOn&) = delete;
  PassSignalsOn& operator=(const PassSignalsOn&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<void (*)(int), kSignals.size()> before_{};
};

bool may_succeed_again(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kInternal:
    case ExitCode::kDoesNotFit:
    case ExitCode::kHang: return true;
    default: return code > kSignalCodes && code != static_cast<int>(ExitCode::kInterrupted);
  }
}

std::string end_text(int code) {
  if (code <= kSignalCodes) return fmt::format("exit code {}", code);
  return fmt::format("signal {}, {}", code - kSignalCodes, strsignal(code - kSignalCodes));
}

void say(const std::string& text) { std::cerr << "trellis train: " << text << "\n" << std::flush; }

/// The number after "@step=" of a fault; none: it has no step.
std::optional<std::int64_t> step_of(const std::string& fault) {
  const std::size_t at = fault.rfind("@step=");
  if (at == std::string::npos) return std::nullopt;
  return std::strtoll(fault.c_str() + at + std::strlen("@step="), nullptr, 10);
}

/// The command line without what belongs to this process, and the faults in it.
struct Words {
  std::vector<std::string> words, faults;

  explicit Words(const std::vector<std::string>& line) {
    for (std::size_t i = 1; i < line.size(); ++i) {
      const std::string name = line[i].substr(0, line[i].find('='));
      const bool takes_next = name == line[i] && i + 1 < line.size();
      if (name == "--elastic") continue;
      if (name == "--max-restarts") {
        i += takes_next ? 1 : 0;
      } else if (name == "--fault") {
        faults.push_back(takes_next ? line[++i] : line[i].substr(name.size() + 1));
      } else {
        words.push_back(line[i]);
      }
    }
  }
};

class Supervisor {
 public:
  Supervisor(const RunRequest& request, const RestartOptions& options)
      : request_(request),
        options_(options),
        words_(request.command_line),
        config_(load(request.overrides)) {
    if (!config_.exp_manager.checkpoints.create)
      throw ConfigError(
          "--max-restarts: expected a run that saves checkpoints, got one without: set "
          "exp_manager.create_checkpoint_callback to true and "
          "exp_manager.checkpoint_callback_params.every_n_train_steps to how much work may be "
          "lost");
    directory_ = directory();
  }

  int run() {
    const PassSignalsOn signals;
    for (int attempt = 0;; ++attempt) {
      const std::int64_t saved = newest_save();
      const int code = run_child(arguments(attempt));
      if (stopped_by != 0 || !may_succeed_again(code)) return code;
      reached_ = last_step();
      const std::string failed = fmt::format("attempt {} failed ({}) after step {}", attempt + 1,
                                             end_text(code), reached_);
      if (attempt == options_.most) {
        say(fmt::format("{}; no restart is left of {}", failed, options_.most));
        return code;
      }
      const seconds pause = newest_save() > saved ? seconds(0) : next_pause();
      if (pause == seconds(0)) pause_ = seconds(0);
      const std::string smaller = options_.elastic ? shrink() : "";
      say(fmt::format(
          "{}; restart {} of {} from {}{}{}", failed, attempt + 1, options_.most,
          newest_save() > 0 ? "the newest complete checkpoint" : "the beginning", smaller,
          pause > seconds(0) ? fmt::format(" in {} s: it saved nothing new", pause.count()) : ""));
      if (is_stopped_within(pause)) return kSignalCodes + stopped_by;
    }
  }

 private:
  [[nodiscard]] RunConfig load(const std::vector<std::string>& overrides) const {
    return trainer::load_run_config(request_.config_file, overrides, request_.instance);
  }

  /// Where every attempt writes, so that a later one finds the checkpoints of the others.
  [[nodiscard]] std::string directory() const {
    const trainer::VersionSources sources = trainer::VersionSources::of_this_process();
    if (request_.resume) {
      if (const auto resumed = trainer::resumed_run_directory(config_)) return resumed->string();
    }
    return trainer::named_or_new_run_directory(config_, sources).string();
  }

  [[nodiscard]] std::vector<std::string> arguments(int attempt) const {
    std::vector<std::string> all = words_.words;
    for (const std::string& fault : words_.faults) {
      const auto step = step_of(fault);
      if (attempt == 0 || !step || *step > reached_ + 1) all.insert(all.end(), {"--fault", fault});
    }
    all.push_back("exp_manager.explicit_log_dir=" + directory_);
    all.insert(all.end(), smaller_.begin(), smaller_.end());
    all.insert(all.end(), {"--attempt", std::to_string(attempt + 1)});
    if (attempt == 0 || newest_save() == 0) return all;
    all.insert(all.end(),
               {"exp_manager.resume_if_exists=true", "exp_manager.resume_from_checkpoint=null"});
    if (config_.model.weight_init_only) all.emplace_back("model.weight_init_only=false");
    return all;
  }

  static int run_child(const std::vector<std::string>& arguments) {
    const Activity silent("");
    child = start_child({.arguments = arguments, .own_group = true});
    if (stopped_by != 0) ::kill(child, stopped_by);  // it came before there was a child
    const int code = wait_for(child);
    child = 0;
    return code;
  }

  /// Number of the newest complete checkpoint; 0: there is none.
  [[nodiscard]] std::int64_t newest_save() const {
    const std::string& dirpath = config_.exp_manager.checkpoints.dirpath;
    const checkpoint::CheckpointFolder folder(
        checkpoint::open_storage(dirpath.empty() ? directory_ + "/checkpoints" : dirpath));
    const auto newest = folder.newest();
    return newest ? newest->sequence : 0;
  }

  /// The last step in the log of the last attempt, or what was reached before when it logged none.
  [[nodiscard]] std::int64_t last_step() const {
    std::ifstream metrics(directory_ + "/metrics.jsonl");
    std::int64_t last = 0;
    for (std::string line; std::getline(metrics, line);) {
      const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (row.is_object() && row.contains("step")) last = row.at("step").get<std::int64_t>();
    }
    return std::max(last, reached_);
  }

  seconds next_pause() {
    pause_ = pause_ == seconds(0) ? kFirstPause : std::min(2 * pause_, kLongestPause);
    return pause_;
  }

  static bool is_stopped_within(seconds pause) {
    constexpr std::chrono::milliseconds kLook{50};
    const auto until = std::chrono::steady_clock::now() + pause;
    while (stopped_by == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(kLook);
    return stopped_by != 0;
  }

  /// Takes the largest smaller data-parallel degree that the configuration allows; says what
  /// changed.
  std::string shrink() {
    const int before = config_.dp();
    const int each = config_.world_size() / before;
    for (int dp = before - 1; dp > 0; --dp) {
      if (config_.data.global_batch_size % (config_.data.micro_batch_size * dp) != 0) continue;
      const int world = dp * each;
      const int nodes = world % config_.trainer.num_nodes == 0 ? config_.trainer.num_nodes : 1;
      std::vector<std::string> smaller = {fmt::format("trainer.devices={}", world / nodes),
                                          fmt::format("trainer.num_nodes={}", nodes)};
      std::vector<std::string> overrides = request_.overrides;
      overrides.insert(overrides.end(), smaller.begin(), smaller.end());
      try {
        config_ = load(overrides);
      } catch (const ConfigError&) {
        continue;  // such as experts that do not share out
      }
      smaller_ = std::move(smaller);
      return fmt::format(" on {} ranks (data-parallel {} → {})", world, before, dp);
    }
    return fmt::format(" on {} ranks again: no smaller data-parallel degree divides the batch",
                       config_.world_size());
  }

  const RunRequest& request_;
  RestartOptions options_;
  Words words_;
  RunConfig config_;
  std::string directory_;
  std::vector<std::string> smaller_;  ///< overrides of an elastic restart
  std::int64_t reached_ = 0;
  seconds pause_{0};
};

}  // namespace

void end_with_parent() { ::prctl(PR_SET_PDEATHSIG, SIGTERM); }

int train_with_restarts(const RunRequest& request, const RestartOptions& options) {
  if (const auto launch = find_launch(process_environment)) {
    throw ConfigError(fmt::format(
        "--max-restarts: {} started {} processes, and only it can start all of them again: use its "
        "own option (torchrun --max-restarts {}) with exp_manager.resume_if_exists=true and "
        "exp_manager.resume_ignore_no_checkpoint=true",
        launch->launcher, launch->processes, options.most));
  }
  set_log_level(LogLevel::kError);  // the child says what is to be said
  return Supervisor(request, options).run();
}

}  // namespace trellis::cli
