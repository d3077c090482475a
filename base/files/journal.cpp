#include "base/files/journal.h"

#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/atomic_file.h"
#include "base/files/file_stream.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "base/log.h"

namespace trellis {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kNamed = 5;  ///< differences

/// A line that a run was writing when it ended has no end, or is no JSON.
std::vector<json> read_lines(const fs::path& file, const char* item) {
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
      log_warning(fmt::format("{}:{}: the last line is torn, its {} again", file.string(),
                              lines.size() + 1, item));
      break;
    }
    lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

fs::path made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw ConfigError(
        fmt::format("--out {}: the folder cannot be made: {}", folder.string(), error.message()));
  return folder;
}

bool has_facts(const json& head) {
  const auto facts = head.find("facts");
  return facts != head.end() && facts->is_object() &&
         std::ranges::all_of(*facts, [](const json& fact) { return fact.is_string(); }) &&
         head.value("shard", json()).is_string();
}

}  // namespace

JournalFile read_journal(const JournalKind& kind, const fs::path& folder) {
  JournalFile journal{folder / "journal.jsonl", {}, {}};
  if (!fs::is_regular_file(journal.file))
    throw ConfigError(
        fmt::format("{}: no journal.jsonl there: expected a folder that `trellis {} --out` wrote",
                    folder.string(), kind.verb));
  std::vector<json> lines = read_lines(journal.file, kind.item);
  if (lines.empty() || lines.front().value("schema", json()) != kind.schema) {
    throw ConfigError(
        fmt::format("{}:1: expected the head of a journal with \"schema\": \"{}\"; remove the file "
                    "if nothing in it is needed",
                    journal.file.string(), kind.schema));
  }
  if (!has_facts(lines.front()))
    throw ConfigError(fmt::format(
        "{}:1: expected `shard`, a text, and `facts`, names and texts: the head is damaged: remove "
        "the file",
        journal.file.string()));
  (void)parse_shard(lines.front().at("shard"));
  journal.head = lines.front();
  journal.results.assign(lines.begin() + 1, lines.end());
  return journal;
}

std::string differing_facts(const json& there, const json& here) {
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

void check_all_shards(const std::vector<JournalFile>& journals, const json& facts) {
  const std::string first_file = journals.front().file.string();
  const Shard first = parse_shard(journals.front().head.at("shard"));
  std::set<std::size_t> shards;
  for (const JournalFile& journal : journals) {
    if (const std::string text = differing_facts(journal.head.at("facts"), facts); !text.empty())
      throw ConfigError(
          fmt::format("{}: other work than that of {}, as its configuration is now: {}",
                      journal.file.string(), first_file, terminal_line(text)));
    const Shard shard = parse_shard(journal.head.at("shard"));
    if (shard.count != first.count)
      throw ConfigError(
          fmt::format("{}: shard {}, but {} holds {}: expected shards of the same cut",
                      journal.file.string(), shard.text(), first_file, first.text()));
    shards.insert(shard.index);
  }
  for (std::size_t i = 0; i < first.count; ++i) {
    if (!shards.contains(i))
      throw ConfigError(fmt::format("shard {}/{} is missing: give the folders of all shards", i + 1,
                                    first.count));
  }
}

JournalWriter::JournalWriter(const JournalKind& kind, const fs::path& folder, const json& head)
    : lock_(made(folder), "choose another folder with --out"),
      journal_{folder / "journal.jsonl", head, {}} {
  const fs::path& file = journal_.file;
  // An empty journal, or one of which not even the head was written, is a new one.
  if (fs::is_regular_file(file) && read_input_file(file).find('\n') != std::string::npos) {
    JournalFile found = read_journal(kind, folder);
    json there = found.head.at("facts"), here = head.at("facts");
    there["--shard"] = found.head.at("shard");
    here["--shard"] = head.at("shard");
    if (const std::string text = differing_facts(there, here); !text.empty())
      throw ConfigError(
          fmt::format("--out {}: the folder holds another {}: {}; choose another folder, or the "
                      "command of that one to go on with it",
                      folder.string(), kind.work, text));
    journal_.results = std::move(found.results);
  }
  std::string text = head.dump() + "\n";
  for (const json& result : journal_.results) text += result.dump() + "\n";
  write_file_atomically(file, text);
}

void JournalWriter::append(const json& result) {
  FileStream file(journal_.file, FileStream::Mode::kAppend);
  file << result.dump() << "\n";
  file.check();
}

}  // namespace trellis
