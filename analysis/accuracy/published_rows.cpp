#include "analysis/accuracy/published_rows.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "traces/report/validity.h"

namespace trellis::analysis {
namespace {

const std::array<std::string, 3> kUses = {"fit", "test", "excluded"};

RowUse read_use(const YamlMap& row) {
  const auto word = row.required<std::string>("use");
  for (std::size_t i = 0; i < kUses.size(); ++i) {
    if (kUses[i] == word) return static_cast<RowUse>(i);
  }
  if (row.has("use")) row.problem("use", "expected fit, test or excluded, got \"" + word + "\"");
  return RowUse::kTest;
}

/// Training rows are summed up by the software that trained, and by three more properties.
void read_training_groups(const YamlMap& row, PublishedRow& out) {
  out.group = "path " + row.required<std::string>("path");
  out.size = row.required<std::string>("size");
  out.also = {"instance " + out.instance, "size " + out.size,
              "family " + row.required<std::string>("family")};
  const YamlMap measured = row.map("measured");
  for (const std::string& release : measured.keys()) {
    out.measured_us[release] = 1e6 * measured.required<double>(release);
    if (out.measured_us[release] <= 0) measured.problem(release, "must be positive");
  }
  const bool there = std::any_of(out.measured_us.begin(), out.measured_us.end(),
                                 [&](const auto& each) { return each.second == out.time_us; });
  if (!there) row.problem("measured", "none of the releases has step_s");
}

PublishedRow read_row(const YamlMap& row, bool training) {
  PublishedRow out;
  const char* time = training ? "step_s" : "time_us";
  out.id = row.required<std::string>("id");
  out.source = row.required<std::string>("source");
  out.instance = row.required<std::string>("instance");
  out.use = read_use(row);
  out.reason = row.get<std::string>("reason", "");
  out.time_us = row.required<double>(time) * (training ? 1e6 : 1);
  if (training) {
    read_training_groups(row, out);
  } else {
    out.group = row.required<std::string>("group");
  }
  if (out.use == RowUse::kExcluded && out.reason.empty())
    row.problem("reason", "is missing: an excluded row says why");
  if (out.time_us <= 0 && row.has(time)) row.problem(time, "must be positive");
  out.spec = row;
  return out;
}

}  // namespace

std::string_view name(RowUse use) { return kUses.at(static_cast<std::size_t>(use)); }

PublishedRows read_published_rows(const std::string& subject) {
  const std::filesystem::path file = published_directory() / (subject + ".yaml");
  PublishedRows out{YamlDocument::load(file), {}};
  const YamlMap root = out.document.root();
  std::set<std::string> ids;
  for (const YamlMap& row : root.list_of_maps("rows")) {
    out.rows.push_back(read_row(row, subject == "training"));
    if (!ids.insert(out.rows.back().id).second)
      row.problem("id", "\"" + out.rows.back().id + "\" is there twice");
  }
  if (out.rows.empty()) root.problem("rows", "is missing or empty");
  root.reject_unknown();
  out.document.problems().throw_if_any();
  return out;
}

}  // namespace trellis::analysis
