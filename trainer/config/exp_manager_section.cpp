#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/escape.h"
#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

std::optional<EarlyStoppingSection> read_early_stopping(SectionReader& reader) {
  SectionReader params = reader.section("early_stopping_callback_params");
  EarlyStoppingSection section;
  section.monitor = params.get<std::string>("monitor", section.monitor);
  section.mode = params.one_of("mode", section.mode, {"min", "max"});
  section.min_delta = params.non_negative("min_delta", section.min_delta);
  section.patience = params.get<int>("patience", section.patience);
  if (section.patience < 0)
    params.problem("patience", fmt::format("must not be negative, got {}", section.patience));
  section.check_finite = params.get<bool>("check_finite", section.check_finite);
  section.stopping_threshold = params.optional<double>("stopping_threshold");
  section.divergence_threshold = params.optional<double>("divergence_threshold");
  if (reader.get<bool>("create_early_stopping_callback", false)) return section;
  return std::nullopt;
}

std::optional<EmaSection> read_ema(SectionReader& reader) {
  SectionReader ema = reader.section("ema");
  EmaSection section;
  section.decay = ema.fraction("decay", section.decay);
  const char* period = ema.has("every_n_steps")
                           ? "every_n_steps"
                           : "apply_ema_every_n_steps";  // newer and older NeMo
  section.apply_ema_every_n_steps = ema.positive(period, section.apply_ema_every_n_steps);
  if (ema.has("every_n_steps") && ema.has("apply_ema_every_n_steps")) {
    ema.problem("apply_ema_every_n_steps",
                "is the older name of every_n_steps; remove one of them");
  }
  section.start_step = ema.non_negative("start_step", section.start_step);
  section.evaluate_ema_weights_instead =
      ema.get<bool>("evaluate_ema_weights_instead", section.evaluate_ema_weights_instead);
  if (ema.get<bool>("enable", false)) return section;
  return std::nullopt;
}

void check_paths(SectionReader& reader, const ExpManagerSection& section) {
  // Both are parts of a path below exp_dir: an empty one would make two runs share a directory.
  for (const auto& [key, value] :
       {std::pair{"exp_dir", &section.exp_dir}, std::pair{"name", &section.name}}) {
    if (reader.good({key}) && value->empty())
      reader.problem(key, "must not be empty; remove it for the default");
  }
  for (const auto& [key, value] :
       {std::pair{"name", &section.name}, std::pair{"version", &section.version}}) {
    if (const std::string why = why_no_folder_below(*value); !why.empty() && reader.good({key}))
      reader.problem(key, why);
  }
  for (const auto& [key, value] : {std::pair{"exp_dir", &section.exp_dir},
                                   std::pair{"explicit_log_dir", &section.explicit_log_dir}}) {
    if (terminal_line(*value) != *value && reader.good({key}))
      reader.problem(key, "expected a path without control characters, got '" + *value + "'");
  }
}

void read_time_limit(SectionReader& reader, TrainerSection& trainer) {
  for (const char* key : {"max_time_per_run", "max_time"}) {
    const auto limit = read_duration(reader, key);
    if (!limit) continue;
    if (trainer.max_time_s && *trainer.max_time_s != *limit) {
      reader.problem(key, fmt::format("{} seconds here and {} seconds in trainer.max_time or "
                                      "another name of it; write one of them",
                                      *limit, *trainer.max_time_s));
    }
    trainer.max_time_s = limit;
  }
}

}  // namespace

std::string why_no_folder_below(const std::string& name) {
  const std::filesystem::path path(name);
  const bool leaves = path.is_absolute() || std::ranges::find(path, "..") != path.end();
  if (leaves)
    return "expected a folder below exp_manager.exp_dir, got '" + name +
           "', which leaves it; exp_dir and explicit_log_dir choose another place";
  return terminal_line(name) == name
             ? ""
             : "expected a name without control characters, got '" + name + "'";
}

ExpManagerSection read_exp_manager(SectionReader& reader, TrainerSection& trainer) {
  ExpManagerSection section;
  section.explicit_log_dir = reader.get<std::string>("explicit_log_dir", "");
  section.exp_dir = reader.get<std::string>("exp_dir", section.exp_dir);
  section.name = reader.get<std::string>("name", section.name);
  section.version = reader.get<std::string>("version", "");
  section.use_datetime_version =
      reader.get<bool>("use_datetime_version", section.use_datetime_version);
  section.create_tensorboard_logger =
      reader.get<bool>("create_tensorboard_logger", section.create_tensorboard_logger);
  section.log_step_timing = reader.get<bool>("log_step_timing", section.log_step_timing);
  section.log_parameter_norm = reader.get<bool>("log_parameter_norm", section.log_parameter_norm);
  section.log_gradient_norm = reader.get<bool>("log_gradient_norm", section.log_gradient_norm);
  section.log_local_rank_0_only =
      reader.get<bool>("log_local_rank_0_only", section.log_local_rank_0_only);
  section.log_global_rank_0_only =
      reader.get<bool>("log_global_rank_0_only", section.log_global_rank_0_only);
  section.files_to_copy = reader.get<std::vector<std::string>>("files_to_copy", {});
  section.early_stopping = read_early_stopping(reader);
  section.ema = read_ema(reader);
  section.checkpoints = read_checkpoints(reader);
  read_time_limit(reader, trainer);
  check_paths(reader, section);
  if (section.log_local_rank_0_only && section.log_global_rank_0_only) {
    reader.problem(
        "log_global_rank_0_only",
        "excludes log_local_rank_0_only: one file per job, or one per node; remove one of them");
  }
  return section;
}

}  // namespace trellis::trainer
