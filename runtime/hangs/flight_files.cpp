#include "runtime/hangs/flight_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include "base/files/atomic_file.h"

namespace trellis::runtime {
namespace {

using nlohmann::ordered_json;

constexpr const char* kVersion = "2.10";
/// More communications than a rank makes in a step.
constexpr std::int64_t kRecordsOfStep = std::int64_t{1} << 24;

std::string_view operation(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce: return "all_reduce";
    case CommOp::kAllGather: return "all_gather";
    case CommOp::kReduceScatter: return "reduce_scatter";
    case CommOp::kAllToAll: return "all_to_all";
    case CommOp::kBroadcast: return "broadcast";
    case CommOp::kReduce: return "reduce";
    case CommOp::kGather: return "gather";
    case CommOp::kScatter: return "scatter";
    case CommOp::kBarrier: return "barrier";
    case CommOp::kSend: return "send";
    case CommOp::kRecv: return "recv";
    case CommOp::kNewGroup: return "new_group";
  }
  return "";
}

bool is_message(const FlightEntry& entry) { return entry.sender >= 0; }

/// As PyTorch has it: a name that all members have, its kind, its ranks.
struct Group {
  std::string name, kind;
  std::vector<int> ranks;
};

Group group_of(const FlightEntry& entry) {
  if (!is_message(entry)) return {entry.group->label, entry.group->axis, entry.group->ranks};
  return {c10::str(entry.group->label, " from ", entry.sender, " to ", entry.receiver),
          entry.group->axis,
          {std::min(entry.sender, entry.receiver), std::max(entry.sender, entry.receiver)}};
}

/// "gloo:all_reduce"; "gloo:send 0->1" with places in the group of the two.
std::string name_of(const FlightEntry& entry) {
  std::string name = c10::str("gloo:", operation(entry.call.op));
  if (!is_message(entry)) return name;
  const int from = entry.sender > entry.receiver ? 1 : 0;
  return entry.call.op == CommOp::kSend ? c10::str(name, " ", from, "->", 1 - from)
                                        : c10::str(name, " ", 1 - from, "<-", from);
}

ordered_json sizes(std::int64_t elements) {
  return ordered_json::array({ordered_json::array({elements})});
}

/// The layer is a part of the function's name: a frame has no other place for it.
ordered_json frames_of(const CallPlace& place) {
  ordered_json frames = ordered_json::array();
  for (const SourceFrame& frame : place.frames) {
    const bool innermost = frames.empty() && !place.scopes.empty();
    frames.push_back({{"name", frame.function + (innermost ? " [" + place.scopes + "]" : "")},
                      {"filename", frame.file},
                      {"line", frame.line}});
  }
  if (frames.empty() && !place.scopes.empty())
    frames.push_back({{"name", "[" + place.scopes + "]"}, {"filename", ""}, {"line", 0}});
  return frames;
}

ordered_json entry_value(const FlightEntry& entry, std::int64_t group) {
  const bool message = is_message(entry), done = entry.ended_ns > 0;
  const auto sequence = static_cast<std::int64_t>(entry.sequence);
  const Group place = group_of(entry);
  const ordered_json dtypes = ordered_json::array({c10::toString(entry.call.dtype)});
  return {{"frames", frames_of(entry.place)},
          {"record_id", (entry.step + 1) * kRecordsOfStep + entry.in_step},
          {"pg_id", group},
          {"process_group", ordered_json::array({place.name, place.kind})},
          {"collective_seq_id", sequence},
          {"p2p_seq_id", message ? sequence : std::int64_t{0}},
          {"op_id", sequence},
          {"profiling_name", name_of(entry)},
          {"time_created_ns", entry.began_ns},
          {"input_sizes", sizes(entry.input_elements)},
          {"input_dtypes", dtypes},
          {"output_sizes", sizes(entry.output_elements)},
          {"output_dtypes", dtypes},
          {"state", done ? "completed" : "started"},
          {"time_discovered_started_ns", entry.began_ns},
          {"time_discovered_completed_ns", done ? ordered_json(entry.ended_ns) : ordered_json()},
          {"retired", done},
          {"is_p2p", message},
          {"step", entry.step}};
}

/// Groups by name, numbered in the order of their names.
class Groups {
 public:
  explicit Groups(const FlightDump& dump) {
    for (const auto& group : dump.groups) add({group->label, group->axis, group->ranks});
    for (const FlightEntry& entry : dump.entries) add(group_of(entry));
  }

  [[nodiscard]] std::int64_t number(const std::string& name) const {
    return std::distance(groups_.begin(), groups_.find(name));
  }

  [[nodiscard]] ordered_json config() const {
    ordered_json result = ordered_json::object();
    for (const auto& [name, group] : groups_)
      result[name] = {{"name", name},
                      {"desc", group.kind},
                      {"ranks", c10::str("[", c10::Join(", ", group.ranks), "]")}};
    return result;
  }

  /// By number: the last communication that was begun, and that completed; -1: none.
  [[nodiscard]] ordered_json status(const FlightDump& dump) const {
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> last;
    for (const FlightEntry& entry : dump.entries) {
      auto& [begun, ended] =
          last.try_emplace(number(group_of(entry).name), std::pair{-1, -1}).first->second;
      begun = std::max(begun, static_cast<std::int64_t>(entry.sequence));
      if (entry.ended_ns > 0) ended = std::max(ended, static_cast<std::int64_t>(entry.sequence));
    }
    ordered_json result = ordered_json::object();
    for (const auto& [number, sequences] : last)
      result[std::to_string(number)] = {{"last_enqueued_collective", sequences.first},
                                        {"last_started_collective", sequences.first},
                                        {"last_completed_collective", sequences.second}};
    return result;
  }

 private:
  void add(Group group) { groups_.emplace(group.name, std::move(group)); }
  std::map<std::string, Group> groups_;
};

/// Plain data as a pickle of protocol 2, which every Python 3 reads. PyTorch's recorder has a tuple
/// of a group's name and kind: the array of that key is one.
class Pickle {
 public:
  std::string of(const ordered_json& value) {
    bytes_ = "\x80\x02";
    add(value, "");
    return bytes_ + ".";
  }

 private:
  void add(const ordered_json& value, std::string_view key) {
    switch (value.type()) {
      case ordered_json::value_t::null: bytes_ += 'N'; break;
      case ordered_json::value_t::boolean: bytes_ += value.get<bool>() ? '\x88' : '\x89'; break;
      case ordered_json::value_t::string: add_text(value.get_ref<const std::string&>()); break;
      case ordered_json::value_t::array: add_list(value, key == "process_group"); break;
      case ordered_json::value_t::object:
        bytes_ += "}(";
        for (const auto& [name, item] : value.items()) {
          add_text(name);
          add(item, name);
        }
        bytes_ += 'u';
        break;
      default: add_integer(value.get<std::int64_t>());
    }
  }
  void add_list(const ordered_json& items, bool is_tuple) {
    bytes_ += is_tuple ? "(" : "](";
    for (const ordered_json& item : items) add(item, "");
    bytes_ += is_tuple ? 't' : 'e';
  }
  void add_text(const std::string& text) {
    bytes_ += 'X';
    add_low_bytes(static_cast<std::int64_t>(text.size()), 4);
    bytes_ += text;
  }
  void add_integer(std::int64_t value) {
    bytes_ += "\x8a\x08";
    add_low_bytes(value, 8);
  }
  void add_low_bytes(std::int64_t value, int count) {
    for (int i = 0; i < count; ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
  }
  std::string bytes_;
};

std::string pickled(const ordered_json& value) { return Pickle().of(value); }

std::string ranks_text(const std::vector<FlightDump>& dumps) {
  if (dumps.size() == 1) return c10::str("rank ", dumps.front().rank);
  return c10::str("ranks ", dumps.front().rank, " to ", dumps.back().rank);
}

}  // namespace

std::string flight_pickle(const FlightDump& dump) {
  const Groups groups(dump);
  ordered_json entries = ordered_json::array();
  for (const FlightEntry& entry : dump.entries)
    entries.push_back(entry_value(entry, groups.number(group_of(entry).name)));
  return pickled({{"version", kVersion},
                  {"comm_lib_version", "trellis " TRELLIS_VERSION},
                  {"pg_config", groups.config()},
                  {"pg_status", groups.status(dump)},
                  {"entries", std::move(entries)},
                  {"rank", dump.rank}});
}

std::string write_flight_files(const std::filesystem::path& prefix,
                               const std::vector<FlightDump>& dumps) {
  if (dumps.empty()) return "";
  try {
    for (const FlightDump& dump : dumps) {
      const std::filesystem::path file = prefix.string() + std::to_string(dump.rank);
      // A link there would be followed to what it names.
      std::error_code error;
      if (std::filesystem::is_symlink(file, error)) std::filesystem::remove(file, error);
      write_file_atomically(file, flight_pickle(dump));
    }
  } catch (const std::exception& error) {
    return c10::str("  flight recorder: not written: ", error.what());
  }
  const std::string folder = prefix.parent_path().empty() ? "." : prefix.parent_path().string();
  return c10::str("  flight recorder of ", ranks_text(dumps), ": ", folder,
                  "\n  read it with: python -m torch.distributed.flight_recorder.fr_trace ",
                  folder);
}

}  // namespace trellis::runtime
