#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "sim/config/system_config.h"
#include "trainer/config/sections.h"

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

void read_validation(SectionReader& reader, TrainerSection& section) {
  section.val_check_interval = read_batch_count(reader, "val_check_interval", 1);
  if (reader.has("check_val_every_n_epoch"))
    section.check_val_every_n_epoch = reader.optional_positive("check_val_every_n_epoch");
  section.num_sanity_val_steps =
      reader.get<int>("num_sanity_val_steps", section.num_sanity_val_steps);
  if (section.num_sanity_val_steps < -1) {
    reader.problem("num_sanity_val_steps", fmt::format("must be at least 0, or -1 for all; got {}",
                                                       section.num_sanity_val_steps));
  }
  section.limit_train_batches = read_batch_count(reader, "limit_train_batches", 1);
  section.limit_val_batches = read_batch_count(reader, "limit_val_batches", 0);
  section.limit_test_batches = read_batch_count(reader, "limit_test_batches", 0);
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

TrainerSection read_trainer(SectionReader& reader, const std::string& instance) {
  TrainerSection section;
  section.lnc = read_lnc(reader);
  section.devices = read_devices(reader, instance, section.lnc);
  section.num_nodes = reader.positive("num_nodes", section.num_nodes);
  section.max_steps = read_max_steps(reader);
  section.max_epochs = read_max_epochs(reader);
  section.min_steps = read_minimum(reader, "min_steps");
  section.min_epochs = read_minimum(reader, "min_epochs");
  section.max_time_s = read_duration(reader, "max_time");
  section.log_every_n_steps = reader.positive("log_every_n_steps", section.log_every_n_steps);
  section.gradient_clip_val = reader.optional<double>("gradient_clip_val");
  if (section.gradient_clip_val && *section.gradient_clip_val <= 0) {
    reader.problem("gradient_clip_val",
                   fmt::format("must be greater than 0, got {}; null switches clipping off",
                               *section.gradient_clip_val));
  }
  read_validation(reader, section);
  section.track_grad_norm = read_track_grad_norm(reader);
  section.enable_progress_bar =
      reader.get<bool>("enable_progress_bar", section.enable_progress_bar);
  section.sequential_move_factor =
      reader.positive("sequential_move_factor", section.sequential_move_factor);
  return section;
}

}  // namespace trellis::trainer
