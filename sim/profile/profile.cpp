#include "sim/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "sim/profile/xz.h"

namespace trellis::sim {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kMostProblems = 20;
constexpr std::int64_t kMostTime = 3'600'000'000'000;  // an hour, in ns: products stay in int64
constexpr const char* kExpected =
    "expected a profile that `neuron-profile view --output-format json` wrote";

/// Reads the members of one entry of a list; a wrong one is a problem of the file.
class Entry {
 public:
  Entry(const json& value, std::string where, Problems& problems)
      : value_(value), where_(std::move(where)), problems_(problems) {}

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const json* found = member(key);
    if (found == nullptr) return least;
    std::int64_t number = least - 1;
    if (found->is_number_integer()) number = found->get<std::int64_t>();
    if (found->is_string()) number = of_text(found->get_ref<const std::string&>(), least - 1);
    if (number >= least && number <= most) return number;
    problem(key,
            fmt::format("expected an integer from {} to {}, got {}", least, most, shown(*found)));
    return least;
  }
  [[nodiscard]] std::string text(const char* key, bool required = true) const {
    if (!required && (!value_.is_object() || !value_.contains(key))) return "";
    const json* found = member(key);
    if (found == nullptr) return "";
    if (found->is_string()) return found->get<std::string>();
    problem(key, "expected a text, got " + shown(*found));
    return "";
  }
  void problem(const std::string& key, const std::string& what) const {
    if (problems_.lines().size() < kMostProblems) problems_.add(where_ + "." + key, what);
  }

 private:
  [[nodiscard]] const json* member(const char* key) const {
    const auto found = value_.is_object() ? value_.find(key) : value_.end();
    if (value_.is_object() && found != value_.end()) return &*found;
    problem(key, "is missing");
    return nullptr;
  }
  static std::int64_t of_text(const std::string& text, std::int64_t otherwise) {
    if (text.empty() || text.size() > 18 ||
        text.find_first_not_of("0123456789") != std::string::npos)
      return otherwise;
    return std::stoll(text);
  }
  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "…" : text;
  }

  const json& value_;
  std::string where_;
  Problems& problems_;
};

class Reader {
 public:
  Reader(const json& document, const std::string& name) : document_(document) {
    profile_.name = name;
  }

  Profile run() {
    if (!document_.is_object() || !document_.contains("instruction"))
      throw ConfigError(
          fmt::format("{}: has no list \"instruction\"; {}", profile_.name, kExpected));
    read_summary();
    profile_.core = busiest_core();
    each_of_core("instruction", true, [&](const Entry& e, std::size_t at) { instruction(e, at); });
    each_of_core("dma", false, [&](const Entry& e, std::size_t) { packet(e); });
    each_of_core("ham", false, [&](const Entry& e, std::size_t) { clock(e); });
    each_of_core("dma_queues_info", false, [&](const Entry& e, std::size_t) {
      profile_.queues[static_cast<int>(e.integer("q_idx", 0, 1 << 16))] = e.text("q_name");
    });
    problems_.throw_if_any();
    order();
    return std::move(profile_);
  }

 private:
  [[nodiscard]] const json* list(const std::string& key, bool required) {
    const auto found = document_.find(key);
    if (found == document_.end()) {
      if (required) problems_.add(profile_.name, fmt::format("has no list \"{}\"", key));
      return nullptr;
    }
    if (found->is_array()) return &*found;
    problems_.add(fmt::format("{}: {}", profile_.name, key), "expected a list");
    return nullptr;
  }

  template <typename Read>
  void each(const std::string& key, bool required, Read read) {
    const json* entries = list(key, required);
    if (entries == nullptr) return;
    for (std::size_t at = 0; at < entries->size(); ++at)
      read(Entry((*entries)[at], fmt::format("{}: {}[{}]", profile_.name, key, at), problems_), at);
  }
  template <typename Read>
  void each_of_core(const std::string& key, bool required, Read read) {
    std::size_t others = 0;
    each(key, required, [&](const Entry& entry, std::size_t at) {
      if (entry.text("subgraph") == profile_.core) {
        read(entry, at);
      } else {
        ++others;
      }
    });
    if (others > 0 && key == "instruction")
      profile_.notes.push_back(fmt::format(
          "{} instructions of other cores than {}: the pair's other core is not replayed", others,
          profile_.core));
  }

  void read_summary() {
    each("summary", true, [&](const Entry& entry, std::size_t at) {
      if (at > 0) return;
      profile_.instance_type = entry.text("instance_type");
      profile_.versions =
          fmt::format("profiler {}, compiler {}", entry.text("profiler_version", false),
                      entry.text("compiler_version", false));
    });
  }

  /// A profile of a logical core has both physical ones; one of them may run no program.
  std::string busiest_core() {
    std::map<std::string, std::int64_t> of_program;
    each("instruction", true, [&](const Entry& entry, std::size_t) {
      of_program[entry.text("subgraph")] += entry.text("instruction_type").empty() ? 0 : 1;
    });
    problems_.throw_if_any();
    const auto most =
        std::max_element(of_program.begin(), of_program.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == of_program.end() || most->second == 0)
      throw ConfigError(fmt::format(
          "{}: instruction: none is of a program (instruction_type is \"\" everywhere); {}",
          profile_.name, kExpected));
    return most->first;
  }

  void instruction(const Entry& entry, std::size_t place) {
    ProfileInstruction i;
    i.place = place;
    const std::string label = entry.text("label");
    static const std::map<std::string, isa::Engine> kEngines = {
        {"Tensor", isa::Engine::kTensor}, {"TensorMatrix", isa::Engine::kTensor},
        {"Vector", isa::Engine::kVector}, {"Scalar", isa::Engine::kScalar},
        {"GpSimd", isa::Engine::kGpSimd}, {"Sync", isa::Engine::kSync}};
    const auto engine = kEngines.find(label);
    if (engine == kEngines.end()) {
      entry.problem("label", fmt::format("expected Tensor, TensorMatrix, Vector, Scalar, GpSimd or "
                                         "Sync, got \"{}\"",
                                         label));
      return;
    }
    i.engine = engine->second;
    i.of_program = !entry.text("instruction_type").empty();
    i.pc = entry.integer("pc", 0, std::int64_t{1} << 40);
    i.start = entry.integer("timestamp", 0, kMostTime);
    i.duration = entry.integer("duration", 0, kMostTime);
    i.opcode = entry.text("opcode");
    i.operands = entry.text("operands");
    i.function = entry.text("activation_fn", false);
    profile_.instructions.push_back(std::move(i));
  }

  void packet(const Entry& entry) {
    ProfilePacket p;
    p.engine = static_cast<int>(entry.integer("dma_engine", 0, 1 << 16));
    p.queue = static_cast<int>(entry.integer("dma_queue", 0, 1 << 16));
    p.kind = entry.text("queue_type");
    p.bytes = entry.integer("transfer_size", 0, std::int64_t{1} << 40);
    p.start = entry.integer("timestamp", 0, kMostTime);
    p.duration = entry.integer("duration", 0, kMostTime);
    profile_.packets.push_back(std::move(p));
  }

  void clock(const Entry& entry) {
    profile_.clock.push_back({entry.integer("timestamp", 0, kMostTime),
                              entry.integer("duration", 0, kMostTime), entry.integer("k", 0, 1000),
                              entry.integer("n", 1, 1000)});
  }

  /// Stamps of an engine are not in program order: what only waits may run while what comes before
  /// it is still queued. Where a pc comes twice the stamps have to do.
  void order() {
    std::set<std::pair<isa::Engine, std::int64_t>> pcs;
    std::size_t again = 0;
    for (const auto& i : profile_.instructions) {
      if (i.of_program && !pcs.insert({i.engine, i.pc}).second) ++again;
    }
    const bool by_pc = again == 0;
    if (!by_pc)
      profile_.notes.push_back(
          fmt::format("{} instructions have the pc of another one: a loop; they are taken in the "
                      "order of their "
                      "stamps",
                      again));
    std::stable_sort(profile_.instructions.begin(), profile_.instructions.end(),
                     [&](const ProfileInstruction& a, const ProfileInstruction& b) {
                       const auto key = [&](const ProfileInstruction& i) {
                         return std::tuple(i.engine, by_pc ? i.pc : i.start, i.pc, i.start);
                       };
                       return key(a) < key(b);
                     });
    const auto earlier = [](const auto& a, const auto& b) { return a.start < b.start; };
    std::stable_sort(profile_.packets.begin(), profile_.packets.end(), earlier);
    std::stable_sort(profile_.clock.begin(), profile_.clock.end(), earlier);
    profile_.begin = profile_.instructions.front().start;
    for (const auto& i : profile_.instructions) {
      profile_.begin = std::min(profile_.begin, i.start);
      profile_.end = std::max(profile_.end, i.end());
    }
  }

  const json& document_;
  Problems problems_;
  Profile profile_;
};

}  // namespace

bool looks_like_profile(std::string_view bytes) {
  const auto first = bytes.find_first_not_of(" \t\r\n");
  return is_xz(bytes) || (first != std::string_view::npos && bytes[first] == '{');
}

Profile parse_profile(std::string_view text, const std::string& name) {
  if (is_xz(text)) return parse_profile(unpack_xz(text, name, kMostBytes), name);
  return Reader(parse_json(text, name, kExpected + 9), name).run();
}

Profile read_profile(const std::filesystem::path& file) {
  return parse_profile(read_input_file(file, static_cast<std::int64_t>(kMostBytes)), file.string());
}

}  // namespace trellis::sim
