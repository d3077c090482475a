#include "sim/describe/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/cluster/byte_server.h"
#include "sim/cluster/comm_machine.h"
#include "sim/describe/parameters.h"
#include "sim/describe/totals.h"

namespace trellis::sim {
namespace {

struct LinkSummary {
  const char* kind;
  int count = 0;
  LinkConfig link;
};

/// The links of all nodes by kind, in the order of LinkKind.
std::vector<LinkSummary> link_summaries(const Topology& topology) {
  static constexpr std::array<const char*, kNumLinkKinds> kNames = {
      "on_chip",  "neuron_link", "ultraserver_link", "switch_out", "switch_in",
      "rack_out", "rack_in",     "host_out",         "host_in",    "efa_out",
      "efa_in",   "network_out", "network_in"};
  std::vector<LinkSummary> all(kNumLinkKinds);
  for (std::size_t id = 0; id < topology.link_count(); ++id) {
    const auto kind = static_cast<std::size_t>(topology.ends(static_cast<LinkId>(id)).kind);
    all[kind].kind = kNames.at(kind);
    all[kind].link = topology.link(static_cast<LinkId>(id));
    ++all[kind].count;
  }
  std::erase_if(all, [](const LinkSummary& each) { return each.count == 0; });
  return all;
}

/// The chip's neighbours on its own instance, as neuron-ls prints them.
std::vector<int> printed_neighbours(const Topology& topology, int chip) {
  std::vector<int> result;
  for (const int other : topology.neighbours(chip)) {
    if (topology.node_of_chip(other) == topology.node_of_chip(chip))
      result.push_back(topology.chip_index(other));
  }
  return result;
}

/// -1: not published.
int numa_node(const InstanceConfig& instance, int chip) {
  if (instance.numa_node_0.empty()) return -1;
  return std::count(instance.numa_node_0.begin(), instance.numa_node_0.end(), chip) > 0 ? 0 : 1;
}

/// Host memory that one modelled chip costs at the cluster level: its wires, and a server per link,
/// per core's DMA engines and memory.
std::size_t bytes_per_chip(const CommMachine& machine) {
  const std::size_t servers =
      machine.resource_count() * (sizeof(ByteServer) + sizeof(BytesPerSecond));
  return (machine.topology().bytes() + servers) /
         static_cast<std::size_t>(machine.topology().chips());
}

std::string fabric_text(const InstanceConfig& c) {
  if (c.fabric == Fabric::kTorus) {
    const std::string torus =
        c.chips == 1 ? "one chip"
                     : fmt::format("torus of {} x {} chips", c.torus_rows, c.torus_columns);
    return c.ultraserver_nodes > 1 ? fmt::format("{}; equal chips of {} instances form rings",
                                                 torus, c.ultraserver_nodes)
                                   : torus;
  }
  const bool whole = c.rack_nodes == c.ultraserver_nodes;
  return fmt::format("a switch joins the {} chips of a server, another those of {} servers{}",
                     c.chips, c.rack_nodes,
                     whole ? "" : "; equal chips beyond it are linked directly");
}

nlohmann::json fabric_json(const SystemConfig& system) {
  const CommMachine machine(system);
  const Topology& topology = machine.topology();
  const InstanceConfig& c = system.instance;
  nlohmann::json out = {{"kind", c.fabric == Fabric::kTorus ? "torus" : "switch"},
                        {"text", fabric_text(c)},
                        {"ultraserver_nodes", c.ultraserver_nodes},
                        {"model_bytes_per_chip", bytes_per_chip(machine)}};
  for (const LinkSummary& l : link_summaries(topology)) {
    out["links"].push_back({{"kind", l.kind},
                            {"count", l.count},
                            {"gb_per_s", l.link.bandwidth.value * 1e-9},
                            {"latency_us", to_microseconds(l.link.latency)}});
  }
  for (int chip = 0; chip < c.chips; ++chip) {
    nlohmann::json row = {{"chip", chip},
                          {"neighbours", printed_neighbours(topology, chip)},
                          {"nic", topology.nic_of(chip)}};
    if (const int node = numa_node(c, chip); node >= 0) row["numa_node"] = node;
    out["chips"].push_back(std::move(row));
  }
  return out;
}

nlohmann::json derived_json(const SystemConfig& system) {
  auto out = nlohmann::json::array();
  const auto put = [&out](const std::string& key, double value, const std::string& unit) {
    if (!std::isnan(value)) out.push_back({{"key", key}, {"value", value}, {"unit", unit}});
  };
  for (const CoreFigure& f : core_figures(system)) put("core." + f.key, f.value, f.unit);
  for (const Total& t : totals(system)) {
    put("chip." + t.key, t.chip, t.unit);
    put("instance." + t.key, t.instance, t.unit);
    put("cluster." + t.key, t.cluster, t.unit);
  }
  return out;
}

std::string totals_text(const SystemConfig& system) {
  const auto cell = [](double value) {
    return std::isnan(value) ? std::string("-") : fmt::format("{:.7g}", value);
  };
  std::string text =
      fmt::format("Totals\n  {:<24}{:>12}{:>12}{:>12}\n", "", "chip", "instance",
                  system.nodes == 1 ? "1 node" : fmt::format("{} nodes", system.nodes));
  for (const Total& t : totals(system)) {
    const std::string name = t.unit.empty() ? t.key : t.key + ", " + t.unit;
    text += fmt::format("  {:<24}{:>12}{:>12}{:>12}\n", name, cell(t.chip), cell(t.instance),
                        cell(t.cluster));
  }
  text += "\nPer logical core\n";
  for (const CoreFigure& f : core_figures(system))
    text += fmt::format("  {:<24}{:>12.6g}\n", f.key + ", " + f.unit, f.value);
  return text;
}

std::string fabric_tables(const SystemConfig& system) {
  const CommMachine machine(system);
  const Topology& topology = machine.topology();
  const InstanceConfig& c = system.instance;
  std::string text = fmt::format("Wiring: {}\n  {:<6}{:<8}{:<6}neighbours\n", fabric_text(c),
                                 "chip", "NUMA", "NIC");
  for (int chip = 0; chip < c.chips; ++chip) {
    const int node = numa_node(c, chip);
    text += fmt::format("  {:<6}{:<8}{:<6}{}\n", chip, node < 0 ? "-" : std::to_string(node),
                        topology.nic_of(chip), fmt::join(printed_neighbours(topology, chip), ", "));
  }
  text += fmt::format("\nLinks, each in one direction\n  {:<20}{:>8}{:>10}{:>14}\n", "", "count",
                      "GB/s", "latency, us");
  for (const LinkSummary& l : link_summaries(topology)) {
    text += fmt::format("  {:<20}{:>8}{:>10.5g}{:>14.3g}\n", l.kind, l.count,
                        l.link.bandwidth.value * 1e-9, to_microseconds(l.link.latency));
  }
  return text + fmt::format("  memory of the model: {} bytes per chip\n", bytes_per_chip(machine));
}

std::string contradictions_text(const SystemConfig& system) {
  std::string text = "Where the documents disagree\n";
  for (const Contradiction& c : system.contradictions)
    text += fmt::format("  {}: {} against {}; taken: {}\n", c.item, c.first, c.second, c.taken);
  return text;
}

}  // namespace

nlohmann::json describe(const SystemConfig& system) {
  nlohmann::json out = {{"schema", "trellis.describe/1"},
                        {"instance", system.instance.name},
                        {"generation", system.chip.generation},
                        {"nodes", system.nodes},
                        {"worst_evidence", name(system.worst_evidence())}};
  out["parameters"] = parameters_json(system.parameters);
  out["derived"] = derived_json(system);
  out["fabric"] = fabric_json(system);
  auto& contradictions = out["contradictions"] = nlohmann::json::array();
  for (const Contradiction& c : system.contradictions)
    contradictions.push_back(
        {{"item", c.item}, {"first", c.first}, {"second", c.second}, {"taken", c.taken}});
  return out;
}

std::string describe_text(const SystemConfig& system) {
  return fmt::format("{} ({}), {} node{}\n\n", system.instance.name, system.chip.generation,
                     system.nodes, system.nodes == 1 ? "" : "s") +
         totals_text(system) + "\n" + fabric_tables(system) + "\n" +
         "Parameters, per physical core where they name a core: " +
         parameters_text(system.parameters) + "\n" + contradictions_text(system);
}

}  // namespace trellis::sim
