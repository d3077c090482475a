#include "analysis/sweep/journal.h"

#include <array>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/input_file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "analysis/sweep/row.h"
#include "analysis/report/json_form.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kSchema = "trellis.sweep_journal/1";
constexpr std::size_t kNamed = 5;  ///< differences

/// "--gbs: 64 there, 128 here"; "" when both are equal.
std::string differences(const json& there, const json& here) {
  std::set<std::string> keys;
  for (const json* facts : {&there, &here}) {
    for (const auto& [key, value] : facts->items()) keys.insert(key);
  }
  std::string text;
  std::size_t count = 0;
  for (const std::string& key : keys) {
    const std::string a = there.value(key, "nothing"), b = here.value(key, "nothing");
    if (a == b) continue;
    if (++count <= kNamed)
      text += fmt::format("{}{}: {} there, {} here", text.empty() ? "" : "; ", key, a, b);
  }
  return count > kNamed ? fmt::format("{}; and {} more", text, count - kNamed) : text;
}

json header_of(const SweepSpace& space, const Shard& shard, const json& facts) {
  const SweepRequest& r = space.request;
  return {{"schema", kSchema},
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

/// A line that a run was writing when it ended has no end, or is no JSON.
std::vector<json> read_lines(const fs::path& file) {
  const std::string text = read_input_file(file);
  std::vector<json> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const bool last = end == std::string::npos || end + 1 == text.size();
    json line(json::value_t::discarded);
    if (end != std::string::npos) {
      try {
        line = parse_json(std::string_view(text).substr(at, end - at), file.string(), "one object");
      } catch (const ConfigError&) {
        // judged below, with its line
      }
    }
    if (line.is_discarded() || !line.is_object()) {
      if (!last)
        throw ConfigError(
            fmt::format("{}:{}: no JSON object: the journal is damaged; expected one object per "
                        "line; remove the line or the file",
                        file.string(), lines.size() + 1));
      log_warning(fmt::format("{}:{}: the last line is torn, its candidate is simulated again",
                              file.string(), lines.size() + 1));
      break;
    }
    lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
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

std::string lines_text(const json& header, const std::vector<json>& results) {
  std::string text = header.dump() + "\n";
  for (const json& result : results) text += result.dump() + "\n";
  return text;
}

}  // namespace

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto number = [](const std::string& digits, std::size_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && value > 0;
  };
  Shard shard;
  if (slash == std::string::npos || !number(text.substr(0, slash), shard.index) ||
      !number(text.substr(slash + 1), shard.count) || shard.index > shard.count) {
    throw ConfigError("--shard " + terminal_line(text) +
                      ": expected i/n with 1 ≤ i ≤ n, e.g. 2/8, the second of eight parts");
  }
  --shard.index;
  return shard;
}

JournalFile read_journal(const fs::path& folder) {
  JournalFile journal;
  journal.file = folder / "journal.jsonl";
  if (!fs::is_regular_file(journal.file))
    throw ConfigError(
        folder.string() +
        ": no journal.jsonl there: expected a folder that `trellis sweep --out` wrote");
  std::vector<json> lines = read_lines(journal.file);
  if (lines.empty() || lines.front().value("schema", json()) != kSchema) {
    throw ConfigError(
        fmt::format("{}:1: expected the head of a journal with \"schema\": \"{}\"; remove the file "
                    "if nothing in it is needed",
                    journal.file.string(), kSchema));
  }
  Problems problems;
  check_head(lines.front(), place_of(journal.file, 1), problems);
  problems.throw_if_any();
  journal.header = lines.front();
  const auto candidates = journal.header.at("candidates").get<std::size_t>();
  for (std::size_t i = 1; i < lines.size(); ++i)
    check_result(lines[i], candidates, place_of(journal.file, i + 1), problems);
  problems.throw_if_any();
  (void)parse_shard(journal.header.at("shard"));
  journal.results.assign(lines.begin() + 1, lines.end());
  return journal;
}

Journal::Journal(const fs::path& folder, const SweepSpace& space, const Shard& shard,
                 const json& facts)
    : file_(folder / "journal.jsonl") {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw ConfigError(
        fmt::format("--out {}: the folder cannot be made: {}", folder.string(), error.message()));
  lock_.emplace(folder, "choose another folder with --out");
  const json header = header_of(space, shard, facts);
  // An empty journal, or one of which not even the head was written, is a new one.
  if (fs::is_regular_file(file_) && read_input_file(file_).find('\n') != std::string::npos) {
    JournalFile found = read_journal(folder);
    json there = found.header.at("facts"), here = facts;
    there["--shard"] = found.header.at("shard");
    here["--shard"] = shard.text();
    if (const std::string text = differences(there, here); !text.empty()) {
      throw ConfigError(
          fmt::format("--out {}: the folder holds another sweep: {}; choose another folder, or the "
                      "command of that sweep to go on with it",
                      folder.string(), text));
    }
    results_ = std::move(found.results);
  }
  write_file_atomically(file_, lines_text(header, results_));
}

void Journal::append(const json& result) {
  FileStream file(file_, FileStream::Mode::kAppend);
  file << result.dump() << "\n";
  file.check();
}

SweepRequest request_of(const JournalFile& journal) {
  const json& r = journal.header.at("request");
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
  std::map<std::size_t, std::pair<json, std::string>> results;
  std::set<std::size_t> shards;
  const Shard first = parse_shard(journals.front().header.at("shard"));
  for (const JournalFile& journal : journals) {
    if (const std::string text = differences(journal.header.at("facts"), facts); !text.empty()) {
      throw ConfigError(
          fmt::format("{}: another sweep than that of {}, as its configuration is now: {}",
                      journal.file.string(), journals.front().file.string(), terminal_line(text)));
    }
    if (journal.header.at("request").at("top") != journals.front().header.at("request").at("top")) {
      throw ConfigError(fmt::format("{}: --top differs from that of {}: run it again with the same",
                                    journal.file.string(), journals.front().file.string()));
    }
    const Shard shard = parse_shard(journal.header.at("shard"));
    if (shard.count != first.count)
      throw ConfigError(fmt::format(
          "{}: shard {}, but {} holds {}: expected shards of the same cut", journal.file.string(),
          shard.text(), journals.front().file.string(), first.text()));
    shards.insert(shard.index);
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
  for (std::size_t i = 0; i < first.count; ++i) {
    if (!shards.contains(i))
      throw ConfigError(fmt::format("shard {}/{} is missing: give the folders of all shards", i + 1,
                                    first.count));
  }
  std::vector<json> all;
  for (auto& [index, result] : results) all.push_back(std::move(result.first));
  return all;
}

}  // namespace trellis::analysis
