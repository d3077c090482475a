#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/escape.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

void early_stopping_fields(Fields& fields, EarlyStoppingSection& s) {
  fields.text("monitor", s.monitor);
  fields.one_of("mode", s.mode, {"min", "max"});
  fields.non_negative("min_delta", s.min_delta);
  fields.integer("patience", s.patience);
  fields.rule([&](SectionReader& r) {
    if (s.patience < 0)
      r.problem("patience", fmt::format("must not be negative, got {}", s.patience));
  });
  fields.boolean("check_finite", s.check_finite);
  fields.number("stopping_threshold", s.stopping_threshold);
  fields.number("divergence_threshold", s.divergence_threshold);
}

void ema_fields(Fields& fields, bool& enable, EmaSection& s) {
  fields.boolean("enable", enable);
  fields.fraction("decay", s.decay);
  fields.positive("apply_ema_every_n_steps", s.apply_ema_every_n_steps);
  fields.only_read("every_n_steps", [&](SectionReader& r) {  // its name in newer NeMo
    if (!r.has("every_n_steps")) return;
    s.apply_ema_every_n_steps = r.positive("every_n_steps", EmaSection().apply_ema_every_n_steps);
    if (r.has("apply_ema_every_n_steps"))
      r.problem("apply_ema_every_n_steps",
                "is the older name of every_n_steps; remove one of them");
  });
  fields.non_negative("start_step", s.start_step);
  fields.boolean("evaluate_ema_weights_instead", s.evaluate_ema_weights_instead);
}

std::optional<EarlyStoppingSection> read_early_stopping(SectionReader& reader) {
  SectionReader params = reader.section("early_stopping_callback_params");
  EarlyStoppingSection section;
  Fields fields = Fields::reading(params);
  early_stopping_fields(fields, section);
  if (reader.get<bool>("create_early_stopping_callback", false)) return section;
  return std::nullopt;
}

void write_early_stopping(YamlWriter& out, std::optional<EarlyStoppingSection> section) {
  out.boolean("create_early_stopping_callback", section.has_value());
  if (!section) return;
  out.open("early_stopping_callback_params");
  Fields fields = Fields::writing(out);
  early_stopping_fields(fields, *section);
  out.close();
}

std::optional<EmaSection> read_ema(SectionReader& reader) {
  SectionReader ema = reader.section("ema");
  EmaSection section;
  bool enable = false;
  Fields fields = Fields::reading(ema);
  ema_fields(fields, enable, section);
  return enable ? std::optional(section) : std::nullopt;
}

void write_ema(YamlWriter& out, std::optional<EmaSection> section) {
  if (!section) return;
  out.open("ema");
  bool enable = true;
  Fields fields = Fields::writing(out);
  ema_fields(fields, enable, *section);
  out.close();
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
    if (has_controls(*value) && reader.good({key}))
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
  return has_controls(name) ? "expected a name without control characters, got '" + name + "'" : "";
}

namespace {

void exp_manager_fields(Fields& fields, ExpManagerSection& s) {
  fields.text_or_null("explicit_log_dir", s.explicit_log_dir);
  fields.text("exp_dir", s.exp_dir);
  fields.text("name", s.name);
  fields.text_or_null("version", s.version);
  fields.boolean("use_datetime_version", s.use_datetime_version);
  fields.boolean("create_tensorboard_logger", s.create_tensorboard_logger);
  fields.boolean("log_step_timing", s.log_step_timing);
  fields.boolean("log_parameter_norm", s.log_parameter_norm);
  fields.boolean("log_gradient_norm", s.log_gradient_norm);
  fields.boolean("log_local_rank_0_only", s.log_local_rank_0_only);
  fields.boolean("log_global_rank_0_only", s.log_global_rank_0_only);
  fields.texts("files_to_copy", s.files_to_copy);
  fields.form(
      "create_early_stopping_callback",
      [&](SectionReader& r) { s.early_stopping = read_early_stopping(r); },
      [&](YamlWriter& out) {
        write_early_stopping(out, s.early_stopping);
        write_ema(out, s.ema);
      });
  fields.rule([&](SectionReader& r) { s.ema = read_ema(r); });
  // NeMo's other names of trainer.max_time.
  fields.only_read("max_time_per_run");
  fields.only_read("max_time");
}

}  // namespace

ExpManagerSection read_exp_manager(SectionReader& reader, TrainerSection& trainer) {
  ExpManagerSection section;
  Fields fields = Fields::reading(reader);
  exp_manager_fields(fields, section);
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

void write_exp_manager(YamlWriter& out, ExpManagerSection section, const YamlMap& source) {
  out.open("exp_manager");
  Fields fields = Fields::writing(out);
  exp_manager_fields(fields, section);
  write_checkpoints(out, section.checkpoints, source);
  out.keep(source, "exp_manager");
  out.close();
}

void list_exp_manager_keys(Fields& fields) {
  ExpManagerSection section;
  exp_manager_fields(fields, section);
}

void list_early_stopping_keys(Fields& fields) {
  EarlyStoppingSection section;
  early_stopping_fields(fields, section);
}

void list_ema_keys(Fields& fields) {
  bool enable = false;
  EmaSection section;
  ema_fields(fields, enable, section);
}

}  // namespace trellis::trainer
