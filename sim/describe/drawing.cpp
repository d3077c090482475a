#include "sim/describe/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/escape.h"
#include "sim/cluster/topology.h"

namespace trellis::sim {
namespace {

// Points.
constexpr int kColumn = 100;
constexpr int kRow = 70;
constexpr int kHeader = 100;  ///< from the first row of chips up to the instance's box

struct Place {
  double x = 0, y = 0;
};

class Drawing {
 public:
  explicit Drawing(const SystemConfig& system)
      : system_(system), topology_(system), instance_(system.instance) {
    columns_ =
        instance_.fabric == Fabric::kTorus ? instance_.torus_columns : std::min(instance_.chips, 4);
    rows_ = instance_.chips / columns_;
    per_line_ = std::min(system.nodes, instance_.ultraserver_nodes > 4 ? 9 : 4);
  }

  std::string run() {
    text_ = fmt::format(
        "graph {} {{\n  layout=nop; splines=line; outputorder=edgesfirst; fontname=Helvetica; "
        "labelloc=t; label={}\n"
        "  node [shape=box style=\"rounded,filled\" fillcolor=white fontname=Helvetica fontsize=10 "
        "width=0.95 height=0.6 fixedsize=true]\n"
        "  edge [fontname=Helvetica fontsize=9 color=\"#555555\"]\n",
        dot_text(instance_.name), dot_text(title()));
    for (int node = 0; node < topology_.nodes(); ++node) draw_node(node);
    draw_wires();
    draw_bundles();
    return text_ + "}\n";
  }

 private:
  [[nodiscard]] std::string title() const {
    const auto rate = [](const LinkConfig& link) {
      return fmt::format("{:.4g} GB/s each way", link.bandwidth.value * 1e-9);
    };
    std::string text =
        fmt::format("{}, {} node{}", instance_.name, system_.nodes, system_.nodes == 1 ? "" : "s");
    if (instance_.chips > 1) text += fmt::format("\nNeuronLink {}", rate(instance_.neuron_link));
    return text;
  }

  [[nodiscard]] Place header_place(int node) const {
    const double width = columns_ * kColumn + 90;
    const double height = rows_ * kRow + kHeader + 150;
    const int line = node / per_line_;
    return {node % per_line_ * width + (columns_ - 1) * kColumn * 0.5, -line * height};
  }
  [[nodiscard]] Place chip_place(int chip) const {
    const Place top = header_place(topology_.node_of_chip(chip));
    const int local = topology_.chip_index(chip);
    const int row = local / columns_;
    return {top.x + (local % columns_ - (columns_ - 1) * 0.5) * kColumn,
            top.y - kHeader - row * kRow};
  }

  void put(const std::string& id, const std::string& label, Place at,
           const std::string& more = "") {
    text_ += fmt::format("  \"{}\" [label={} pos=\"{:.0f},{:.0f}\"{}]\n", id, dot_text(label), at.x,
                         at.y, more.empty() ? "" : " " + more);
  }
  void line(const std::string& from, const std::string& to, const std::string& more = "") {
    text_ += fmt::format("  \"{}\" -- \"{}\"{}\n", from, to, more.empty() ? "" : " [" + more + "]");
  }
  static std::string chip_id(int chip) { return fmt::format("chip{}", chip); }
  static std::string node_id(int node) { return fmt::format("node{}", node); }

  void draw_node(int node) {
    put(node_id(node),
        fmt::format("node {}\n{} vCPU, {} GiB", node, instance_.vcpus,
                    instance_.host_memory.value >> 30),
        header_place(node), "width=1.8 fillcolor=\"#eeeeee\"");
    for (int local = 0; local < instance_.chips; ++local) {
      const int chip = node * instance_.chips + local;
      const auto& first = instance_.numa_node_0;
      const bool near = std::find(first.begin(), first.end(), local) != first.end();
      const std::string numa = first.empty() ? "" : near ? "\nNUMA 0" : "\nNUMA 1";
      put(chip_id(chip),
          fmt::format("chip {}{}\nNIC {}", local, numa,
                      topology_.nic_of(chip) % instance_.efa_nics),
          chip_place(chip),
          first.empty() ? ""
          : near        ? "fillcolor=\"#d9e8f6\""
                        : "fillcolor=\"#fbe8d0\"");
    }
    if (instance_.fabric != Fabric::kSwitch || instance_.chips == 1) return;
    const Place top = header_place(node);
    put(fmt::format("switch{}", node), "NeuronSwitch", {top.x, top.y - kHeader * 0.5},
        "shape=ellipse width=1.4 height=0.4 fillcolor=\"#dff0dc\"");
  }

  /// Links that begin and end at chips of one instance, or at its switch.
  void draw_wires() {
    for (std::size_t id = 0; id < topology_.link_count(); ++id) {
      const Link& link = topology_.ends(static_cast<LinkId>(id));
      if (link.kind == LinkKind::kSwitchOut)
        line(chip_id(link.from), fmt::format("switch{}", topology_.node_of_chip(link.from)));
      if (link.kind == LinkKind::kNeuronLink) draw_torus_link(link);
    }
  }

  void draw_torus_link(const Link& link) {
    const ChipPosition from = topology_.position(link.from);
    const ChipPosition to = topology_.position(link.to);
    const int right = to.column - from.column;
    const int down = to.row - from.row;
    if (std::abs(right) + std::abs(down) == 1) {
      if (link.from < link.to) line(chip_id(link.from), chip_id(link.to));
      return;
    }
    // The wire leaves the grid away from its other end.
    const auto away = [](int step) { return step == 0 ? 0 : step > 0 ? -1 : 1; };
    const Place at = chip_place(link.from);
    const std::string stub =
        fmt::format("{}to{}", chip_id(link.from), topology_.chip_index(link.to));
    put(stub, std::to_string(topology_.chip_index(link.to)),
        {at.x + away(right) * 0.7 * kColumn, at.y - away(down) * 0.75 * kRow},
        "shape=plaintext style=\"\" width=0.2 height=0.2");
    line(chip_id(link.from), stub, "style=dashed");
  }

  /// Links between instances: one line with their number.
  void draw_bundles() {
    std::map<std::pair<int, int>, int> pairs;
    std::map<int, int> rackward, nics;
    for (std::size_t id = 0; id < topology_.link_count(); ++id) {
      const Link& link = topology_.ends(static_cast<LinkId>(id));
      if (link.kind == LinkKind::kUltraServer && link.from < link.to)
        ++pairs[{topology_.node_of_chip(link.from), topology_.node_of_chip(link.to)}];
      if (link.kind == LinkKind::kRackOut) ++rackward[topology_.node_of_chip(link.from)];
      if (link.kind == LinkKind::kEfaOut) ++nics[link.from / instance_.efa_nics];
    }
    const auto label = [](int count, const LinkConfig& link) {
      return fmt::format("label=\"{} x {:.4g} GB/s\" ", count, link.bandwidth.value * 1e-9);
    };
    for (const auto& [ends, count] : pairs)
      draw_pair(ends.first, ends.second, label(count, instance_.ultraserver_link));
    for (const auto& [node, count] : rackward)
      line(node_id(node), rack_switch(node / instance_.rack_nodes),
           label(count, instance_.rack_link) + "color=\"#4f8a45\" penwidth=2");
    if (!nics.empty()) draw_network();
    for (const auto& [node, count] : nics)
      line(node_id(node), "network", label(count, instance_.efa) + "color=\"#b07a2a\" penwidth=2");
  }

  /// Over the heads of the instances in between, if there are any.
  void draw_pair(int first, int second, const std::string& label) {
    const std::string look = "color=\"#3a6ea5\" penwidth=2";
    if (second == first + 1) return line(node_id(first), node_id(second), label + look);
    const Place left = header_place(first);
    const std::string bend = fmt::format("bend{}to{}", first, second);
    put(bend, "", {(left.x + header_place(second).x) / 2, left.y + 50 + 15 * (second % per_line_)},
        "shape=point width=0.01 height=0.01");
    line(node_id(first), bend, label + look);
    line(bend, node_id(second), look);
  }

  /// The rack's second switch, drawn at its first use over the middle of its instances.
  std::string rack_switch(int rack) {
    const std::string id = fmt::format("rack{}", rack);
    if (rack < racks_drawn_) return id;
    racks_drawn_ = rack + 1;
    const int first = rack * instance_.rack_nodes;
    const int last = std::min({first + instance_.rack_nodes,
                               first / per_line_ * per_line_ + per_line_, topology_.nodes()}) -
                     1;
    const Place left = header_place(first);
    put(id,
        fmt::format("NeuronSwitch of nodes {}-{}", first,
                    std::min(first + instance_.rack_nodes, topology_.nodes()) - 1),
        {(left.x + header_place(last).x) / 2, left.y + 80},
        "shape=ellipse width=2.4 height=0.5 fillcolor=\"#dff0dc\"");
    return id;
  }

  void draw_network() {
    const std::string limit =
        system_.network.oversubscription > 1
            ? fmt::format("\n{:.3g} : 1 oversubscribed", system_.network.oversubscription)
            : "";
    put("network", "EFA" + limit, {(header_place(0).x + header_place(per_line_ - 1).x) / 2, 160},
        "shape=ellipse width=3 height=0.6 fillcolor=\"#f6ead0\"");
  }

  const SystemConfig& system_;
  const Topology topology_;
  const InstanceConfig& instance_;
  int columns_, rows_, per_line_;
  int racks_drawn_ = 0;
  std::string text_;
};

}  // namespace

std::string drawing(const SystemConfig& system) { return Drawing(system).run(); }

}  // namespace trellis::sim
