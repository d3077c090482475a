#include "device/aten/hooks/process_session.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/aten/state/observer.h"
#include "device/aten/state/rank_state.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_software.h"
#include "sim/config/load_system.h"

namespace trellis::device {
namespace {

constexpr const char* kSchema = "trellis.device_options/1";

/// Never destroyed at the end of the process: tensors, and with them recorders, are used up to
/// then.
std::atomic<Session*> current{nullptr};
std::recursive_mutex configuring;

template <typename T>
void read(const nlohmann::json& options, const char* key, T& value) {
  const auto found = options.find(key);
  if (found == options.end()) return;
  try {
    found->get_to(value);
  } catch (const nlohmann::json::exception&) {
    throw ConfigError("device options: " + std::string(key) + ": unexpected value " +
                      found->dump());
  }
}

void check_keys(const nlohmann::json& json) {
  static const std::vector<std::string> kKnown = {"instance",
                                                  "nodes",
                                                  "logical_core_size",
                                                  "world_size",
                                                  "first_rank",
                                                  "process_ranks",
                                                  "equal_ranks",
                                                  "axes",
                                                  "shape_only",
                                                  "record",
                                                  "hardware",
                                                  "calibrated",
                                                  "estimate_unknown",
                                                  "unlimited_memory",
                                                  "replay",
                                                  "slow",
                                                  "software",
                                                  "reads_forward"};
  for (const auto& [key, value] : json.items()) {
    if (key == "schema" || std::ranges::find(kKnown, key) != kKnown.end()) continue;
    std::string known;
    for (const std::string& each : kKnown) known += (known.empty() ? "" : ", ") + each;
    throw ConfigError("device options: unknown key " + key + "; known are " + known);
  }
}

std::string read_software(const nlohmann::json& json) {
  std::string name = sim::kNoSoftware;
  read(json, "software", name);
  try {
    (void)sim::software_stack(name);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("device options: software: ") + error.what());
  }
  return name;
}

sim::RankFold read_equal_ranks(const nlohmann::json& json) {
  std::vector<int> mesh;
  std::vector<bool> along;
  if (json.is_object()) {
    read(json, "mesh", mesh);
    read(json, "along", along);
  }
  if (mesh.empty() || mesh.size() != along.size()) {
    throw ConfigError(
        "device options: equal_ranks: expected {\"mesh\": [sizes, fastest first], \"along\": [per "
        "axis, whether ranks along it are equal]}, got " +
        json.dump());
  }
  return sim::RankFold::along_axes(mesh, along);
}

std::vector<RankAxis> read_axes(const nlohmann::json& json) {
  std::vector<RankAxis> axes;
  for (const nlohmann::json& one : json.is_array() ? json : nlohmann::json::array({nullptr})) {
    RankAxis axis;
    if (one.is_object()) {
      read(one, "name", axis.name);
      read(one, "stride", axis.stride);
      read(one, "size", axis.size);
    }
    if (axis.name.empty() || axis.stride < 1 || axis.size < 1)
      throw ConfigError(
          "device options: axes: expected a list of {\"name\": text, \"stride\": 1 or more, "
          "\"size\": 1 or more}, got " +
          json.dump());
    axes.push_back(std::move(axis));
  }
  return axes;
}

/// As many ranks as the machine has logical cores and LibTorch has device indices.
int all_cores(const SessionOptions& options) {
  return std::min(load_system(options).logical_cores(), kMaxDevices);
}

[[noreturn]] void reject_variable(const char* name, const char* value, const char* expected) {
  throw ConfigError(std::string("environment variable ") + name + ": expected " + expected +
                    ", got \"" + value + "\"");
}

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

int read_number(const char* name, const char* text, std::string_view digits, const char* expected) {
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0)
    reject_variable(name, text, expected);
  return number;
}

void read_number(const char* name, int& number) {
  const char* const text = variable(name);
  if (text == nullptr) return;
  number = read_number(name, text, text, "a whole number of at least 1");
  if (number < 1) reject_variable(name, text, "a whole number of at least 1");
}

void read_switch(const char* name, bool& value) {
  const char* const text = variable(name);
  if (text == nullptr) return;
  const std::string_view word = text;
  if (word != "0" && word != "1") reject_variable(name, text, "0 or 1");
  value = word == "1";
}

/// "4", "0-7", "0,2,5-6": how many cores are named.
int count_cores(const char* name, std::string_view list) {
  constexpr const char* kExpected = "cores such as 0-7 or 0,2,4";
  const std::string text(list);
  int count = 0;
  while (true) {
    const std::string_view item = list.substr(0, list.find(','));
    const std::size_t dash = item.find('-');
    const int first = read_number(name, text.c_str(), item.substr(0, dash), kExpected);
    const int last = dash == std::string_view::npos
                         ? first
                         : read_number(name, text.c_str(), item.substr(dash + 1), kExpected);
    if (last < first) reject_variable(name, text.c_str(), kExpected);
    count += last - first + 1;
    if (item.size() == list.size()) return count;
    list.remove_prefix(item.size() + 1);
  }
}

/// NEURON_RT_VISIBLE_CORES goes before NEURON_RT_NUM_CORES, as in the Neuron runtime. The emulated
/// machine numbers what is visible from 0.
int visible_cores(int all) {
  int count = all;
  if (const char* const cores = variable("NEURON_RT_VISIBLE_CORES")) {
    count = count_cores("NEURON_RT_VISIBLE_CORES", cores);
  } else {
    read_number("NEURON_RT_NUM_CORES", count);
  }
  if (count > all) {
    throw ConfigError("NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES ask for " +
                      std::to_string(count) + " cores, the machine has " + std::to_string(all));
  }
  return count;
}

int ranks_here(const SessionOptions& options) {
  if (!options.fold.empty()) return static_cast<int>(options.fold.representatives().size());
  return options.process_ranks > 0 ? options.process_ranks : options.world_size;
}

void check_ranks_here(const SessionOptions& options) {
  const int running = ranks_here(options);
  if (running < 1 || running > kMaxDevices) {
    throw ConfigError("device options: world_size: expected 1 to " + std::to_string(kMaxDevices) +
                      " ranks in one process, got " + std::to_string(running) +
                      ": LibTorch's device index is a signed byte: start more processes "
                      "(torchrun), or fewer ranks");
  }
  if (options.first_rank < 0 || options.first_rank + running > options.world_size) {
    throw ConfigError(
        "device options: first_rank and process_ranks: expected ranks of a world of " +
        std::to_string(options.world_size) + ", got " + std::to_string(running) + " from " +
        std::to_string(options.first_rank) + " on");
  }
}

struct RegisterDefault {
  RegisterDefault() {
    set_default_configuration(+[] { static_cast<void>(session()); });
  }
} const register_default;

}  // namespace

SessionOptions parse_options(std::string_view text, SessionOptions otherwise) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(std::string("device options: not JSON: ") + error.what());
  }
  if (!json.is_object() || json.value("schema", "") != kSchema) {
    throw ConfigError(std::string("device options: expected an object with \"schema\": \"") +
                      kSchema + "\", got " + json.dump());
  }
  check_keys(json);
  SessionOptions options = std::move(otherwise);
  read(json, "instance", options.instance);
  read(json, "nodes", options.nodes);
  read(json, "logical_core_size", options.logical_core_size);
  read(json, "shape_only", options.shape_only);
  read(json, "record", options.record);
  read(json, "hardware", options.hardware);
  read(json, "calibrated", options.calibrated);
  options.software = read_software(json);
  read(json, "estimate_unknown", options.estimate_unknown);
  read(json, "unlimited_memory", options.unlimited_memory);
  read(json, "replay", options.replay);
  if (!json.contains("world_size")) options.world_size = visible_cores(all_cores(options));
  read(json, "world_size", options.world_size);
  read(json, "slow", options.slow);
  read(json, "reads_forward", options.reads_forward);
  if (json.contains("equal_ranks")) options.fold = read_equal_ranks(json.at("equal_ranks"));
  if (json.contains("axes")) options.axes = read_axes(json.at("axes"));
  read(json, "first_rank", options.first_rank);
  read(json, "process_ranks", options.process_ranks);
  check_ranks_here(options);
  if (!options.fold.empty() && !options.shape_only)
    throw ConfigError(
        "device options: equal_ranks: expected shape_only, because ranks that do not run have no "
        "data");
  if (options.replay && !(options.shape_only && options.record))
    throw ConfigError(
        "device options: replay: expected shape_only and record, because what is not executed "
        "computes nothing");
  if (options.unlimited_memory && !options.shape_only)
    throw ConfigError(
        "device options: unlimited_memory: expected shape_only, because data would take the host's "
        "memory");
  return options;
}

SessionOptions options_of_environment() {
  SessionOptions options;
  options.estimate_unknown = true;  // any program may come
  const char* const instance = variable("TRELLIS_INSTANCE");
  options.instance = instance == nullptr ? sim::kProgramInstance : instance;
  read_number("TRELLIS_NODES", options.nodes);
  read_number("NEURON_LOGICAL_NC_CONFIG", options.logical_core_size);
  read_switch("TRELLIS_SHAPE_ONLY", options.shape_only);
  read_switch("TRELLIS_RECORD", options.record);
  return options;
}

SessionOptions default_options() {
  SessionOptions options = options_of_environment();
  options.world_size = visible_cores(all_cores(options));
  return options;
}

void configure_session(const SessionOptions& options) {
  const std::lock_guard lock(configuring);
  check_no_tensor_alive();
  auto fresh = std::make_unique<Session>(options, current.load());
  std::vector<DeviceRank> ranks;
  for (int rank = 0; rank < ranks_here(options); ++rank)
    ranks.push_back({&fresh->rank(options.first_rank + rank), options.shape_only});
  install_scope_observer();
  configure_devices(ranks);
  delete current.exchange(fresh.release());
  if (current_device() >= device_count()) set_current_device(0);
}

Session& session() {
  if (Session* const there = current.load(std::memory_order_acquire)) return *there;
  const std::lock_guard lock(configuring);
  if (current.load() == nullptr) configure_session(default_options());
  return *current.load();
}

bool is_configured() { return current.load(std::memory_order_acquire) != nullptr; }

void end_step_on_this_thread(std::int64_t step) {
  if (owned_ranks().empty()) {
    throw Error(ExitCode::kInternal,
                "neuron: end_step needs a thread that owns a rank: use the device on it, or call "
                "bind_rank() first");
  }
  for (RankState* const rank : owned_ranks()) {
    if (!rank->owned_by_this_thread()) continue;  // bound to another thread since
    rank->settle();
    session().end_step(rank->rank(), step);
  }
}

void discard_step_on_this_thread() {
  for (RankState* const rank : owned_ranks()) {
    if (rank->owned_by_this_thread()) rank->recorder().discard();
  }
}

}  // namespace trellis::device
