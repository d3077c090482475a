#include "cli/accuracy/published_rows.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/nearest.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 3> kUses = {"fit", "test", "excluded"};

RowUse read_use(const YamlMap& row) {
  const auto word = row.required<std::string>("use");
  for (std::size_t i = 0; i < kUses.size(); ++i) {
    if (kUses[i] == word) return static_cast<RowUse>(i);
  }
  if (row.has("use")) row.problem("use", "expected fit, test or excluded, got \"" + word + "\"");
  return RowUse::kTest;
}

PublishedRow read_row(const YamlMap& row) {
  PublishedRow out;
  out.id = row.required<std::string>("id");
  out.source = row.required<std::string>("source");
  out.group = row.required<std::string>("group");
  out.instance = row.required<std::string>("instance");
  out.use = read_use(row);
  out.reason = row.get<std::string>("reason", "");
  out.time_us = row.required<double>("time_us");
  if (out.use == RowUse::kExcluded && out.reason.empty()) row.problem("reason", "is missing: an excluded row says why");
  if (out.time_us <= 0 && row.has("time_us")) row.problem("time_us", "must be positive");
  out.spec = row;
  return out;
}

}  // namespace

fs::path published_directory() {
  std::error_code ignored;
  if (const char* chosen = std::getenv("TRELLIS_PUBLISHED_DIR"); chosen != nullptr && *chosen != '\0') return chosen;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path() / "share/trellis/published";
  return fs::is_directory(beside, ignored) ? beside : fs::path(TRELLIS_SOURCE_PUBLISHED_DIR);
}

std::string_view name(RowUse use) { return kUses.at(static_cast<std::size_t>(use)); }

PublishedRows read_published_rows(const std::string& subject) {
  const fs::path file = published_directory() / (subject + ".yaml");
  PublishedRows out{YamlDocument::load(file), {}};
  const YamlMap root = out.document.root();
  std::set<std::string> ids;
  for (const YamlMap& row : root.list_of_maps("rows")) {
    out.rows.push_back(read_row(row));
    if (!ids.insert(out.rows.back().id).second) row.problem("id", "\"" + out.rows.back().id + "\" is there twice");
  }
  if (out.rows.empty()) root.problem("rows", "is missing or empty");
  root.reject_unknown();
  out.document.problems().throw_if_any();
  return out;
}

}  // namespace trellis::cli
