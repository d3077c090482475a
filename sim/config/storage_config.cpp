#include "sim/config/storage_config.h"

#include <algorithm>
#include <system_error>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "sim/config/overlay.h"
#include "sim/config/parameter_reader.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStoragePrefix = "storage.";
constexpr const char* kHostPrefix = "host.";
constexpr const char* kHostFile = "host";

fs::path folder() { return config_directory() / "storage"; }

/// Reads a divisor: 0 is a problem. A value that cannot be read is a problem already.
template <typename T>
T positive(ParameterReader& r, const YamlMap& map, const std::string& key) {
  const T value = r.read<T>(key);
  bool is_read = map.is_map(key);
  if constexpr (!std::is_arithmetic_v<T>)
    is_read = is_read && parse_quantity<T>(map.map(key).raw("value")).has_value();
  if (is_read && !(value > T{})) map.problem(key, "expected more than 0");
  return value;
}

StorageSide read_side(ParameterReader r, const YamlMap& map) {
  StorageSide side;
  side.connection = positive<BytesPerSecond>(r, map, "connection");
  side.node = r.read_or<BytesPerSecond>("node", {});
  side.cluster = r.read_or<BytesPerSecond>("cluster", {});
  side.file_latency = r.read<Picoseconds>("file_latency");
  side.requests_per_second = r.read_or<double>("requests_per_second", 0);
  r.reject_unknown();
  return side;
}

bool read_scope(const YamlMap& root) {
  const auto word = root.required<std::string>("scope");
  if (word != "node" && word != "cluster" && root.has("scope"))
    root.problem("scope", "expected node or cluster, got \"" + word + "\"");
  return word == "cluster";
}

/// Reads the entry of one instance type; the entries of all others are checked too.
void read_instances(const YamlMap& root, const std::string& instance, StorageConfig& c,
                    Overlay* overlay) {
  if (!root.has("instances")) return;
  const YamlMap instances = root.map("instances");
  bool found = false;
  for (const std::string& name : instances.keys()) {
    const bool ours = name == instance;
    found = found || ours;
    const YamlMap map = instances.map(name);
    ParameterReader r(map, std::string(kStoragePrefix) + "instance.",
                      ours ? &c.parameters : nullptr, ours ? overlay : nullptr);
    const auto capacity = r.read_or<Bytes>("capacity", {});
    const auto write = positive<BytesPerSecond>(r, map, "write");
    const auto read = positive<BytesPerSecond>(r, map, "read");
    r.reject_unknown();
    if (!ours) continue;
    c.capacity = capacity;
    c.write.node = write;
    c.read.node = read;
  }
  if (found) return;
  root.problem("instances", fmt::format("has no {}: expected figures of it, or one of {}; add them "
                                        "in a copy of the file and name that",
                                        instance, fmt::join(instances.keys(), ", ")));
}

StorageConfig read_storage(const YamlMap& root, const std::string& instance, Overlay* overlay) {
  StorageConfig c;
  c.name = root.required<std::string>("name");
  c.description = root.required<std::string>("description");
  c.shared = read_scope(root);
  c.page_cache = root.required<bool>("page_cache");
  ParameterReader r(root, kStoragePrefix, &c.parameters, overlay);
  c.connections = positive<int>(r, root, "connections");
  c.part = r.read_or<Bytes>("part", {});
  c.capacity = r.read_or<Bytes>("capacity", {});
  const auto per_tib = r.read_or<BytesPerSecond>("throughput_per_tib", {});
  c.write = read_side(r.section("write"), root.map("write"));
  c.read = read_side(r.section("read"), root.map("read"));
  read_instances(root, instance, c, overlay);
  root.reject_unknown();
  if (per_tib.value > 0) {
    if (c.capacity.value == 0)
      root.problem("throughput_per_tib", "is of a capacity: expected the key capacity too");
    const double tib = static_cast<double>(c.capacity.value) / 0x1p40;
    for (StorageSide* side : {&c.write, &c.read}) side->cluster = per_tib * tib;
  }
  return c;
}

/// Through which the instance reaches what it shares with others.
void limit_by_network(StorageConfig& c, const InstanceConfig& instance) {
  const BytesPerSecond network = instance.efa.bandwidth * static_cast<double>(instance.efa_nics);
  for (StorageSide* side : {&c.write, &c.read}) {
    side->node = side->node.value > 0 ? std::min(side->node, network) : network;
    if (side->cluster.value > 0) side->node = std::min(side->node, side->cluster);
  }
}

LoadOptions only(const std::vector<std::string>& overrides) {
  LoadOptions options;
  options.calibrated = false;
  options.overrides = overrides;
  return options;
}

}  // namespace

std::int64_t StorageConfig::parts(std::int64_t bytes) const {
  if (part.value == 0 || bytes <= part.value) return 1;
  return (bytes + part.value - 1) / part.value;
}

std::int64_t StorageConfig::requests(std::int64_t bytes) const {
  const std::int64_t count = parts(bytes);
  return count == 1 ? 1 : count + 2;
}

std::int64_t StorageConfig::round_trips(std::int64_t bytes) const {
  return parts(bytes) == 1 ? 1 : 3;
}

std::vector<std::string> storage_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder(), ignored)) {
    if (entry.path().extension() == ".yaml" && entry.path().stem() != kHostFile)
      names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path storage_file(const std::string& name) {
  if (name.ends_with(".yaml")) return name;
  const std::vector<std::string> known = storage_names();
  if (std::find(known.begin(), known.end(), name) != known.end())
    return folder() / (name + ".yaml");
  const std::string near = nearest_name(name, known);
  throw ConfigError(
      fmt::format("unknown storage \"{}\"{}; known: {}, or a file FILE.yaml in the form of {}",
                  name, near.empty() ? "" : "; did you mean " + near + "?", fmt::join(known, ", "),
                  "sim/configs/storage/nvme.yaml"));
}

StorageConfig load_storage(const std::string& name, const SystemConfig& system,
                           const std::vector<std::string>& overrides) {
  const YamlDocument document = YamlDocument::load(storage_file(name));
  Overlay overlay("", only(overrides));
  StorageConfig config = read_storage(document.root(), system.instance.name, &overlay);
  document.problems().throw_if_any();
  overlay.throw_if_any();
  if (config.shared) limit_by_network(config, system.instance);
  if (!(config.write.node.value > 0) || !(config.read.node.value > 0)) {
    throw ConfigError(storage_file(name).string() +
                      ": write.node and read.node: expected the rates of an instance's own disks, "
                      "or `instances` with them");
  }
  return config;
}

HostCosts load_host_costs(const std::vector<std::string>& overrides) {
  const YamlDocument document = YamlDocument::load(folder() / (std::string(kHostFile) + ".yaml"));
  Overlay overlay("", only(overrides));
  const YamlMap root = document.root();
  HostCosts c;
  ParameterReader r(root, kHostPrefix, &c.parameters, &overlay);
  ParameterReader staging = r.section("staging");
  c.copy_rate = positive<BytesPerSecond>(staging, root.map("staging"), "copy_rate");
  c.buffer_share = positive<double>(staging, root.map("staging"), "buffer_share");
  staging.reject_unknown();
  ParameterReader restart = r.section("restart");
  c.process_start = restart.read<Picoseconds>("process_start");
  c.program_load = restart.read<Picoseconds>("program_load");
  c.compile = restart.read<Picoseconds>("compile");
  restart.reject_unknown();
  r.reject_unknown();
  document.problems().throw_if_any();
  overlay.throw_if_any();
  return c;
}

StorageOverrides split_overrides(const std::vector<std::string>& all) {
  StorageOverrides result;
  for (const std::string& text : all) {
    (text.starts_with(kStoragePrefix) ? result.storage
     : text.starts_with(kHostPrefix)  ? result.host
                                      : result.machine)
        .push_back(text);
  }
  return result;
}

}  // namespace trellis::sim
