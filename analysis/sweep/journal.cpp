#include "analysis/sweep/journal.h"

#include <array>
#include <map>

#include <fmt/format.h>

#include "analysis/sweep/row.h"
#include "base/error.h"
#include "base/escape.h"
#include "traces/report/json_form.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kSchema = "trellis.sweep_journal/1";
constexpr JournalKind kKind{kSchema, "sweep", "sweep", "candidate is simulated"};

json header_of(const SweepSpace& space, const Shard& shard, const json& facts) {
  const SweepRequest& r = space.request;
  return {{"schema", kKind.schema},
          {"shard", shard.text()},
          {"candidates", space.candidates.size()},
          {"request",
           {{"config", fs::absolute(r.config).string()},
            {"overrides", r.overrides},
            {"instance", r.instance},
            {"nodes", r.nodes},
            {"chips", r.chips},
            {"gbs", r.global_batch_size},
            {"only", r.only},
            {"fix", r.fix},
            {"top", r.top}}},
          {"facts", facts}};
}

/// "journal.jsonl:3"
std::string place_of(const fs::path& file, std::size_t line) {
  return fmt::format("{}:{}", file.string(), line);
}

void check_head(const json& head, const std::string& where, Problems& problems) {
  static constexpr std::array kHead = {Key{"shard", Form::kText}, Key{"candidates", Form::kSize},
                                       Key{"request", Form::kMap}, Key{"facts", Form::kMap}};
  static constexpr std::array kRequest = {
      Key{"config", Form::kText}, Key{"overrides", Form::kList}, Key{"instance", Form::kText},
      Key{"nodes", Form::kList},  Key{"chips", Form::kSize},     Key{"gbs", Form::kSize},
      Key{"only", Form::kList},   Key{"fix", Form::kList},       Key{"top", Form::kSize}};
  if (!check_form(head, kHead, where, problems)) return;
  for (const auto& [key, fact] : head.at("facts").items())
    (void)check_value(fact, Form::kText, where + ".facts." + key, problems);
  const json& request = head.at("request");
  if (!check_form(request, kRequest, where + ".request", problems)) return;
  for (const char* key : {"overrides", "only", "fix"}) {
    for (const json& word : request.at(key))
      (void)check_value(word, Form::kText, where + ".request." + key, problems);
  }
  for (const json& nodes : request.at("nodes"))
    (void)check_value(nodes, Form::kSize, where + ".request.nodes", problems);
}

/// A line of a candidate, as result_json() writes it.
void check_result(const json& result, std::size_t candidates, const std::string& where,
                  Problems& problems) {
  static constexpr std::array kResult = {Key{"index", Form::kSize}, Key{"nodes", Form::kCount},
                                         Key{"layout", Form::kText}, Key{"status", Form::kText},
                                         Key{"reason", Form::kText}};
  static constexpr std::array kStep = {
      Key{"step_time_ps", Form::kInteger}, Key{"tokens_per_s", Form::kNumber},
      Key{"mfu", Form::kNumber},           Key{"peak_bytes", Form::kInteger},
      Key{"bottleneck", Form::kText},      Key{"bottleneck_ps", Form::kInteger},
      Key{"evidence", Form::kText},        Key{"range_factor", Form::kNumber},
      Key{"exploratory", Form::kBool}};
  if (result.contains("schema"))
    return problems.add(where,
                        "expected the result of a candidate, got the head of a journal again: was "
                        "the file copied together? Remove the line");
  if (!check_form(result, kResult, where, problems)) return;
  const auto index = result.at("index").get<std::int64_t>();
  if (index >= static_cast<std::int64_t>(candidates))
    problems.add(
        where + ".index",
        fmt::format("expected the number of one of {} candidates, got {}", candidates, index));
  if (!is_status(result.at("status").get<std::string>()))
    problems.add(where + ".status", "expected ok, oom, illegal or dominated, got " +
                                        terminal_line(result.at("status").get<std::string>()));
  if (result.contains("step"))
    (void)check_form(result.at("step"), kStep, where + ".step", problems);
}

/// Checks what was found in the file. Throws for a damaged one.
JournalFile checked(JournalFile journal) {
  Problems problems;
  check_head(journal.head, place_of(journal.file, 1), problems);
  problems.throw_if_any();
  const auto candidates = journal.head.at("candidates").get<std::size_t>();
  for (std::size_t i = 0; i < journal.results.size(); ++i)
    check_result(journal.results[i], candidates, place_of(journal.file, i + 2), problems);
  problems.throw_if_any();
  return journal;
}

}  // namespace

SweepJournal::SweepJournal(const fs::path& folder, const SweepSpace& space, const Shard& shard,
                           const json& facts)
    : writer_(kKind, folder, header_of(space, shard, facts)) {
  (void)checked(writer_.found());
}

JournalFile read_sweep_journal(const fs::path& folder) {
  return checked(read_journal(kKind, folder));
}

SweepRequest request_of(const JournalFile& journal) {
  const json& r = journal.head.at("request");
  SweepRequest request;
  request.config = r.at("config");
  request.overrides = r.at("overrides").get<std::vector<std::string>>();
  request.instance = r.at("instance");
  request.nodes = r.at("nodes").get<std::vector<int>>();
  request.chips = r.at("chips");
  request.global_batch_size = r.at("gbs");
  request.only = r.at("only").get<std::vector<std::string>>();
  request.fix = r.at("fix").get<std::vector<std::string>>();
  request.top = r.at("top");
  return request;
}

std::vector<json> merge_journals(const std::vector<JournalFile>& journals, const json& facts) {
  check_all_shards(journals, facts);
  std::map<std::size_t, std::pair<json, std::string>> results;
  for (const JournalFile& journal : journals) {
    if (journal.head.at("request").at("top") != journals.front().head.at("request").at("top")) {
      throw ConfigError(fmt::format("{}: --top differs from that of {}: run it again with the same",
                                    journal.file.string(), journals.front().file.string()));
    }
    for (const json& result : journal.results) {
      const auto [place, added] = results.emplace(result.at("index").get<std::size_t>(),
                                                  std::pair(result, journal.file.string()));
      if (added || place->second.first == result) continue;
      throw ConfigError(fmt::format("{} and {} disagree about candidate {} ({}): {} there, {} here",
                                    place->second.second, journal.file.string(), place->first,
                                    terminal_line(result.value("layout", "")),
                                    place->second.first.dump(), result.dump()));
    }
  }
  std::vector<json> all;
  for (auto& [index, result] : results) all.push_back(std::move(result.first));
  return all;
}

}  // namespace trellis::analysis
