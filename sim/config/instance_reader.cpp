#include "sim/config/instance_reader.h"

#include <fmt/format.h>

#include <sstream>

#include "base/error.h"

namespace trellis::sim {
namespace {

LinkConfig neuron_link(BytesPerSecond wire, const Interconnect& shared) {
  return {wire * shared.neuron_link_efficiency, shared.neuron_link_latency};
}

Fabric read_fabric(ParameterReader& r, const YamlMap& map) {
  const auto word = r.read<std::string>("fabric");
  if (word == "switch") return Fabric::kSwitch;
  if (word != "torus" && map.is_map("fabric"))
    map.problem("fabric", "expected torus or switch, got \"" + word + "\"");
  return Fabric::kTorus;
}

void read_torus(ParameterReader& r, const YamlMap& map, InstanceConfig& c) {
  c.torus_rows = r.read<int>("torus_rows");
  c.torus_columns = r.read<int>("torus_columns");
  if (c.torus_rows * c.torus_columns != c.chips) {
    map.problem("chips", fmt::format("is {}, the torus has {} x {}", c.chips, c.torus_rows,
                                     c.torus_columns));
  }
}

void read_switches(ParameterReader& r, const YamlMap& map, const Interconnect& shared,
                   InstanceConfig& c) {
  c.switch_latency = r.read<Picoseconds>("switch_latency");
  c.rack_nodes = r.read<int>("rack_nodes");
  c.rack_link = neuron_link(r.read<BytesPerSecond>("rack_link_bandwidth"), shared);
  if (c.rack_nodes < 1 || c.ultraserver_nodes % c.rack_nodes != 0) {
    map.problem("rack_nodes", fmt::format("is {}, the UltraServer has {} nodes: expected a divisor",
                                          c.rack_nodes, c.ultraserver_nodes));
    c.rack_nodes = 1;
  }
}

void read_ultraserver(ParameterReader& r, const YamlMap& map, InstanceConfig& c) {
  c.ultraserver_nodes = r.read_or<int>("ultraserver_nodes", 1);
  if (c.ultraserver_nodes >= 1) return;
  map.problem("ultraserver_nodes", "expected at least 1");
  c.ultraserver_nodes = 1;
}

/// Links between equal chips: all instances of an UltraServer, or those that share no switch.
bool has_direct_links(const InstanceConfig& c) {
  return c.ultraserver_nodes > (c.fabric == Fabric::kTorus ? 1 : c.rack_nodes);
}

/// "4 5 6 7" → chips.
std::vector<int> read_numa(ParameterReader& r, const YamlMap& map, int chips) {
  std::istringstream words(r.read_or<std::string>("numa_node_0_chips", ""));
  std::vector<int> result;
  for (std::string word; words >> word;) {
    const bool number =
        word.size() < 5 && word.find_first_not_of("0123456789") == std::string::npos;
    const int chip = number ? std::stoi(word) : -1;
    if (chip < 0 || chip >= chips)
      map.problem("numa_node_0_chips",
                  fmt::format("expected chips from 0 to {}, got \"{}\"", chips - 1, word));
    result.push_back(chip);
  }
  return result;
}

bool read_has_efa(ParameterReader& r, const YamlMap& map) {
  const auto word = r.read_or<std::string>("network", "efa");
  if (word != "efa" && word != "ethernet")
    map.problem("network", "expected efa or ethernet, got \"" + word + "\"");
  return word != "ethernet";
}

void read_host(ParameterReader& r, const YamlMap& map, const Interconnect& shared,
               InstanceConfig& c) {
  c.has_efa = read_has_efa(r, map);
  c.efa_nics = r.read<int>("efa_nics");
  c.efa = {r.read<BytesPerSecond>("efa_nic_bandwidth"), shared.efa_latency};
  c.vcpus = r.read<int>("vcpus");
  c.host_memory = r.read<Bytes>("host_memory");
  c.numa_node_0 = read_numa(r, map, c.chips);
  if (c.efa_nics < 1 || c.chips % c.efa_nics != 0)
    map.problem("efa_nics",
                fmt::format("is {}: expected a divisor of the {} chips", c.efa_nics, c.chips));
}

}  // namespace

Interconnect read_interconnect(ParameterReader r) {
  Interconnect c;
  c.on_chip.bandwidth = r.read<BytesPerSecond>("on_chip_bandwidth");
  c.on_chip.latency = r.read<Picoseconds>("on_chip_latency");
  c.neuron_link_efficiency = r.read<double>("neuron_link_efficiency");
  c.neuron_link_latency = r.read<Picoseconds>("neuron_link_latency");
  c.efa_latency = r.read<Picoseconds>("efa_latency");
  r.reject_unknown();
  return c;
}

NetworkConfig read_network(ParameterReader r) {
  NetworkConfig c;
  c.oversubscription = r.read<double>("oversubscription");
  c.multi_node_stretch = r.read<double>("multi_node_stretch");
  r.reject_unknown();
  return c;
}

InstanceConfig read_instance(const YamlMap& map, const std::string& instance,
                             const Interconnect& shared, std::vector<Parameter>* out,
                             Overlay* overlay) {
  ParameterReader r(map, "instance.", out, overlay);
  InstanceConfig c;
  c.name = instance;
  c.on_chip = shared.on_chip;
  c.chips = r.read<int>("chips");
  c.logical_core_size = r.read<int>("logical_core_size");
  c.fabric = read_fabric(r, map);
  c.neuron_link = neuron_link(r.read<BytesPerSecond>("neuron_link_bandwidth"), shared);
  c.neuron_link_per_chip = r.read_or<BytesPerSecond>("neuron_link_per_chip", {});
  read_ultraserver(r, map, c);
  if (c.fabric == Fabric::kTorus) {
    read_torus(r, map, c);
  } else {
    read_switches(r, map, shared, c);
  }
  if (has_direct_links(c))
    c.ultraserver_link = neuron_link(r.read<BytesPerSecond>("ultraserver_link_bandwidth"), shared);
  read_host(r, map, shared, c);
  r.reject_unknown();
  return c;
}

std::vector<Contradiction> read_contradictions(const YamlMap& root) {
  std::vector<Contradiction> result;
  for (const YamlMap& each : root.list_of_maps("contradictions")) {
    result.push_back({each.required<std::string>("item"), each.required<std::string>("first"),
                      each.required<std::string>("second"), each.required<std::string>("taken")});
    each.reject_unknown();
  }
  return result;
}

void check_nodes(const SystemConfig& system) {
  const InstanceConfig& c = system.instance;
  if (system.network.oversubscription < 1) {
    throw ConfigError(
        fmt::format("network.oversubscription: expected at least 1 (the instance's NICs over its "
                    "link into the network), got {}",
                    system.network.oversubscription));
  }
  if (system.nodes > 1 && !c.has_efa) {
    throw ConfigError(
        fmt::format("instance {}: it has no EFA, which collectives between instances need: "
                    "expected 1 node, got {}; use 1 node, or instances with EFA",
                    c.name, system.nodes));
  }
  const bool fits = system.nodes <= 2 || system.nodes % c.ultraserver_nodes == 0;
  if (fits || !has_direct_links(c)) return;
  throw ConfigError(
      fmt::format("instance {}: {} nodes leave an UltraServer of {} incomplete, and its chip to "
                  "chip links form only single nodes, pairs and whole UltraServers: "
                  "use 1, 2 or a multiple of {} nodes",
                  c.name, system.nodes, c.ultraserver_nodes, c.ultraserver_nodes));
}

}  // namespace trellis::sim
