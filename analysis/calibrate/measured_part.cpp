#include "analysis/calibrate/measured_part.h"

#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/evaluate.h"
#include "base/files/input_file.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

const std::set<std::string> kKernelWords = {"dtype", "variant", "cores", "measured"};
const std::set<std::string> kCollectiveWords = {"ranks", "size", "dtype", "lnc"};

/// A YAML flow map's entry; JSON's texts are YAML's too.
std::string entry(const std::string& key, const std::string& value) {
  std::int64_t number = 0;
  return fmt::format("{}: {}, ", json(key).dump(),
                     parse_whole(value, number) ? value : json(value).dump());
}

/// "64KiB" → "64 KiB", which YAML rows have.
std::string with_space(std::string size) {
  const std::size_t unit = size.find_first_not_of("0123456789.");
  if (unit != std::string::npos && unit > 0 && size[unit] != ' ') size.insert(unit, " ");
  return size;
}

/// The words of `what` as a row of benchmarks/published/*.yaml.
std::string row_text(PartKind kind, const MeasurementRow& row) {
  std::istringstream words(row.required("what"));
  std::string name, fields, sizes;
  words >> name;
  bool has_measured = false, has_dtype = false;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (value.empty()) {
      row.problem("what", fmt::format("expected words key=value after {}, got '{}'", name, word));
      continue;
    }
    has_measured = has_measured || key == "measured";
    has_dtype = has_dtype || key == "dtype";
    if (kind == PartKind::kKernel) {
      (kKernelWords.contains(key) ? fields : sizes) += entry(key, value);
    } else if (kCollectiveWords.contains(key)) {
      fields += entry(key, key == "size" ? with_space(value) : value);
    } else {
      row.problem("what", fmt::format("unknown word '{}': a collective has {}", key,
                                      fmt::join(kCollectiveWords, ", ")));
    }
  }
  if (kind == PartKind::kKernel)
    return fmt::format("{{kernel: {}, {}{}sizes: {{{}}}}}", json(name).dump(), fields,
                       has_measured ? "" : "measured: profiler, ", sizes);
  return fmt::format("{{op: {}, {}{}}}", json(name).dump(), fields, has_dtype ? "" : "dtype: fp32");
}

/// Microseconds of a profile's program: {"<hash>": {"total_time": seconds, …}}.
double time_of_profile(const MeasurementRow& row, const std::filesystem::path& folder) {
  const std::string named = row.text("profile");
  const std::filesystem::path file =
      std::filesystem::path(named).is_absolute() ? std::filesystem::path(named) : folder / named;
  try {
    json summary = json::parse(read_input_file(file), nullptr, false);
    if (summary.is_object() && summary.size() == 1 && summary.front().is_object())
      summary = json(summary.front());
    const auto total = summary.is_object() ? summary.find("total_time") : summary.end();
    if (summary.is_object() && total != summary.end() && total->is_number() &&
        total->get<double>() > 0)
      return total->get<double>() * 1e6;
    row.problem("profile", file.string() +
                               ": expected total_time, in seconds above 0, as `neuron-profile view "
                               "--output-format summary-json` prints it");
  } catch (const ConfigError& error) {
    row.problem("profile", error.what());
  }
  return 1;
}

double time_us(PartKind kind, const MeasurementRow& row, const std::filesystem::path& folder) {
  if (row.text("profile").empty()) return row.time("time_us", "the microseconds of one execution");
  if (kind != PartKind::kKernel)
    row.problem("profile", "only a kernel's time comes from a profile: expected time_us");
  if (!row.text("time_us").empty()) row.problem("profile", "expected time_us or profile, got both");
  if (row.text("what").find("measured=benchmark") != std::string::npos)
    row.problem("profile", "is the time on the device: expected no measured=benchmark");
  return time_of_profile(row, folder);
}

}  // namespace

std::string_view name(PartKind kind) { return kind == PartKind::kKernel ? "kernel" : "collective"; }

MeasuredPart read_part(PartKind kind, const MeasurementRow& row,
                       const std::filesystem::path& folder, std::size_t line) {
  std::string text = row_text(kind, row);
  const int nodes = row.nodes();
  if (nodes > 1 && kind == PartKind::kKernel)
    row.problem("nodes", "a kernel runs on one instance: expected 1, or an empty cell");
  if (nodes > 1) text.insert(text.size() - 1, fmt::format(", nodes: {}", nodes));
  MeasuredPart part{
      kind, row.where(), row.text("what"), YamlDocument::parse(text, row.where() + ":what"), {}, 0};
  part.row.id = row.id(line);
  part.row.source = "own measurement";
  part.row.instance = row.instance();
  part.row.use = row.use();
  part.row.time_us = time_us(kind, row, folder);
  part.row.spec = part.document.root();
  for (const char* column : {"config", "overrides", "step_s", "run"}) {
    if (!row.text(column).empty())
      row.problem(column, fmt::format("is a step's: a row of kind {} has none", name(kind)));
  }
  return part;
}

void time_parts(std::vector<MeasuredPart>& parts) {
  Evaluator evaluator({}, true);
  Problems problems;
  for (MeasuredPart& part : parts) {
    const std::string subject = part.kind == PartKind::kKernel ? "kernels" : "collectives";
    try {
      part.model_us = evaluator.time_us(subject, part.row);
      part.document.problems().throw_if_any();
    } catch (const Error& error) {
      problems.add(part.where + ":what", error.what());
    }
  }
  problems.throw_if_any();
}

}  // namespace trellis::analysis
