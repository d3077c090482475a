#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

/// −1: no such limit.
std::int64_t read_max_steps(SectionReader& reader) {
  const auto steps = reader.required<std::int64_t>("max_steps");
  if (reader.good({"max_steps"}) && steps < 1 && steps != -1) {
    reader.problem(
        "max_steps",
        fmt::format("must be at least 1, or -1 for as many as max_epochs or max_time needs; got {}",
                    steps));
  }
  return steps;
}

std::optional<std::int64_t> read_minimum(SectionReader& reader, const std::string& key) {
  const auto least = reader.optional<std::int64_t>(key);
  if (!least || *least >= 0) return least;
  reader.problem(key, fmt::format("must not be negative, got {}", *least));
  return std::nullopt;
}

/// Lightning's: −1 for none, "inf" or a number above 0.
std::optional<double> read_track_grad_norm(SectionReader& reader) {
  const std::string text = reader.raw("track_grad_norm");
  if (text == "inf") return std::numeric_limits<double>::infinity();
  const auto norm = reader.optional<double>("track_grad_norm");
  if (!norm || *norm == -1) return std::nullopt;
  if (*norm > 0) return norm;
  reader.problem(
      "track_grad_norm",
      fmt::format("must be a power greater than 0 or inf, or -1 for none; got {}", text));
  return std::nullopt;
}

bool is_integer(const std::string& text) {
  return text.find_first_not_of("+-0123456789") == std::string::npos;
}

/// An integer is a number of batches, anything with a point a part of them.
std::optional<BatchCount> read_batch_count(SectionReader& reader, const std::string& key,
                                           double lowest) {
  const auto value = reader.optional<double>(key);
  if (!value) return std::nullopt;
  if (is_integer(reader.raw(key))) {
    if (*value >= lowest && *value <= 1e15)
      return BatchCount{static_cast<std::int64_t>(*value), std::nullopt};
    reader.problem(key, fmt::format("a number of batches must be at least {}, got {}", lowest,
                                    reader.raw(key)));
    return std::nullopt;
  }
  if (*value >= 0 && *value <= 1 && (lowest == 0 || *value > 0))
    return BatchCount{std::nullopt, *value};
  reader.problem(key, fmt::format("a fraction must be {} 0 and at most 1.0, got {}; write an "
                                  "integer for a number of batches",
                                  lowest == 0 ? "at least" : "above", reader.raw(key)));
  return std::nullopt;
}

int read_max_epochs(SectionReader& reader) {
  const int epochs = reader.get<int>("max_epochs", -1);
  if (epochs == -1 || epochs > 0) return epochs;
  reader.problem(
      "max_epochs",
      fmt::format("must be at least 1, or -1 for as many as max_steps or max_time needs; got {}",
                  epochs));
  return -1;
}

std::optional<int> read_lnc(SectionReader& reader) {
  const auto lnc = reader.optional<int>("lnc");
  if (!lnc || *lnc == 1 || *lnc == 2) return lnc;
  reader.problem("lnc",
                 fmt::format("logical NeuronCores have 1 or 2 physical cores, got {}", *lnc));
  return std::nullopt;
}

/// "auto" or "-1", Lightning's words for all of a node.
int read_devices(SectionReader& reader, const std::string& instance, std::optional<int> lnc) {
  const std::string text = reader.raw("devices");
  if (text != "auto" && text != "-1") return reader.required_positive("devices");
  sim::LoadOptions load;
  load.logical_core_size = lnc;
  try {
    return sim::load_system(instance, load).logical_cores_per_node();
  } catch (const ConfigError& error) {
    reader.problem("devices", fmt::format("{} of {}: {}", text, instance, error.what()));
    return 1;
  }
}

/// The arguments of Python's timedelta.
template <typename Report>
std::optional<double> read_timedelta(SectionReader parts, const Report& report) {
  static const std::map<std::string, double> kUnits = {
      {"weeks", 604800}, {"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}};
  double total = 0;
  for (const auto& [unit, seconds] : kUnits) total += parts.non_negative(unit, 0.0) * seconds;
  for (const std::string& key : parts.keys()) {
    if (kUnits.contains(key)) continue;
    parts.problem(key, "unknown unit of time; expected weeks, days, hours, minutes or seconds");
    return std::nullopt;
  }
  if (total > 0) return total;
  report("must be more than 0 seconds; remove it for no limit");
  return std::nullopt;
}

void write_batch_count(YamlWriter& out, std::string_view key,
                       const std::optional<BatchCount>& value) {
  if (!value) return out.raw(key, "null");
  if (value->count) return out.integer(key, *value->count);
  const std::string text = fmt::format("{}", *value->fraction);
  out.raw(key, text.find_first_of(".e") == std::string::npos
                   ? text + ".0"
                   : text);  // an integer would be a count
}

void write_duration(YamlWriter& out, std::string_view key, const std::optional<double>& seconds) {
  if (!seconds) return out.raw(key, "null");
  if (*seconds != std::floor(*seconds))
    return out.raw(key, fmt::format("{{seconds: {}}}", *seconds));
  const auto s = static_cast<std::int64_t>(std::llround(*seconds));
  out.text(key,
           fmt::format("{:02}:{:02}:{:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60, s % 60));
}

void write_norm_type(YamlWriter& out, const std::optional<double>& norm) {
  if (!norm) return;
  std::isinf(*norm) ? out.text("track_grad_norm", "inf") : out.number("track_grad_norm", *norm);
}

}  // namespace

std::optional<double> read_duration(SectionReader& reader, const std::string& key) {
  if (reader.is_map(key)) {
    const auto report = [&](const std::string& problem) { reader.problem(key, problem); };
    return read_timedelta(reader.section(key), report);
  }
  const auto text = reader.optional<std::string>(key);
  if (!text) return std::nullopt;
  constexpr std::array<double, 4> kSeconds = {86400, 3600, 60, 1};
  double total = 0;
  const char* at = text->data();
  const char* end = at + text->size();
  for (std::size_t i = 0; i < kSeconds.size(); ++i) {
    std::uint32_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    const bool last = i + 1 == kSeconds.size();
    const bool legal = error == std::errc() && (last ? next == end : next != end && *next == ':');
    if (!legal) {
      reader.problem(
          key, fmt::format("expected DD:HH:MM:SS such as \"00:04:00:00\" (four hours), got '{}'",
                           *text));
      return std::nullopt;
    }
    total += value * kSeconds[i];
    at = next + 1;
  }
  if (total > 0) return total;
  reader.problem(key, "must be more than 0 seconds; remove it for no limit");
  return std::nullopt;
}

namespace {

void batch_counts(Fields& fields, TrainerSection& s) {
  const auto count = [&](const char* key, std::optional<BatchCount>& value, double lowest) {
    fields.form(
        key, [&, lowest](SectionReader& r) { value = read_batch_count(r, key, lowest); },
        [&](YamlWriter& out) { write_batch_count(out, key, value); });
  };
  count("val_check_interval", s.val_check_interval, 1);
  fields.form(
      "check_val_every_n_epoch",
      [&](SectionReader& r) {
        if (r.has("check_val_every_n_epoch"))
          s.check_val_every_n_epoch = r.optional_positive("check_val_every_n_epoch");
      },
      [&](YamlWriter& out) {
        out.integer_or_null("check_val_every_n_epoch", s.check_val_every_n_epoch);
      });
  fields.integer("num_sanity_val_steps", s.num_sanity_val_steps);
  fields.rule([&](SectionReader& r) {
    if (s.num_sanity_val_steps < -1) {
      r.problem("num_sanity_val_steps",
                fmt::format("must be at least 0, or -1 for all; got {}", s.num_sanity_val_steps));
    }
  });
  count("limit_train_batches", s.limit_train_batches, 1);
  count("limit_val_batches", s.limit_val_batches, 0);
  count("limit_test_batches", s.limit_test_batches, 0);
}

/// How long a run lasts.
void length_fields(Fields& fields, TrainerSection& s) {
  fields.form(
      "max_steps", [&](SectionReader& r) { s.max_steps = read_max_steps(r); },
      [&](YamlWriter& out) { out.integer("max_steps", s.max_steps); });
  fields.form(
      "max_epochs", [&](SectionReader& r) { s.max_epochs = read_max_epochs(r); },
      [&](YamlWriter& out) { out.integer("max_epochs", s.max_epochs); });
  for (const auto& [key, value] :
       {std::pair{"min_epochs", &s.min_epochs}, std::pair{"min_steps", &s.min_steps}}) {
    fields.form(
        key, [&](SectionReader& r) { *value = read_minimum(r, key); },
        [&](YamlWriter& out) { out.integer_or_null(key, *value); });
  }
  fields.form(
      "max_time", [&](SectionReader& r) { s.max_time_s = read_duration(r, "max_time"); },
      [&](YamlWriter& out) { write_duration(out, "max_time", s.max_time_s); });
}

void gradient_fields(Fields& fields, TrainerSection& s) {
  fields.number("gradient_clip_val", s.gradient_clip_val);
  fields.rule([&](SectionReader& r) {
    if (s.gradient_clip_val && *s.gradient_clip_val <= 0) {
      r.problem("gradient_clip_val",
                fmt::format("must be greater than 0, got {}; null switches clipping off",
                            *s.gradient_clip_val));
    }
  });
  fields.form(
      "track_grad_norm", [&](SectionReader& r) { s.track_grad_norm = read_track_grad_norm(r); },
      [&](YamlWriter& out) { write_norm_type(out, s.track_grad_norm); });
}

/// `instance`: whose logical cores `devices: auto` counts.
void trainer_fields(Fields& fields, TrainerSection& s, const std::string& instance) {
  fields.rule([&](SectionReader& r) { s.lnc = read_lnc(r); });
  fields.form(
      "devices", [&](SectionReader& r) { s.devices = read_devices(r, instance, s.lnc); },
      [&](YamlWriter& out) { out.integer("devices", s.devices); });
  fields.positive("num_nodes", s.num_nodes);
  length_fields(fields, s);
  fields.positive("log_every_n_steps", s.log_every_n_steps);
  batch_counts(fields, s);
  gradient_fields(fields, s);
  fields.boolean("enable_progress_bar", s.enable_progress_bar);
  fields.form(
      "lnc", [](SectionReader&) {}, [&](YamlWriter& out) { out.integer_or_null("lnc", s.lnc); });
  fields.positive("sequential_move_factor", s.sequential_move_factor);
}

}  // namespace

TrainerSection read_trainer(SectionReader& reader, const std::string& instance) {
  TrainerSection section;
  Fields fields = Fields::reading(reader);
  trainer_fields(fields, section, instance);
  return section;
}

void write_trainer(YamlWriter& out, TrainerSection section, const YamlMap& source) {
  out.open("trainer");
  Fields fields = Fields::writing(out);
  trainer_fields(fields, section, "");
  out.keep(source, "trainer");
  out.close();
}

void list_trainer_keys(Fields& fields) {
  TrainerSection section;
  trainer_fields(fields, section, "");
}

}  // namespace trellis::trainer
