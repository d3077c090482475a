#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "sim/cluster/topology.h"
#include "sim/sim.h"

namespace trellis::sim {
namespace {

constexpr double kMostSlow = 1e6;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw ConfigError(fmt::format(
      "--slow {}: {}; write core:RANK=FACTOR, such as core:3=1.5, link:NAME=FACTOR, such as "
      "link:node0.chip0.neuron_link_east=4, or link:A-B=FACTOR for both ways between chips A and "
      "B, with --fault slow:core=RANK@FACTOR, slow:link=A-B@FACTOR, down:link=A-B",
      text, why));
}

template <typename Number>
bool read_number(std::string_view digits, Number& number) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

double read_factor(std::string_view text, std::string_view digits) {
  double factor = 0;
  if (!read_number(digits, factor) || !(factor >= 1 && factor <= kMostSlow)) {
    refuse(
        text,
        fmt::format(
            "expected a factor of 1 to {:.0f}, how many times as long its work takes, got \"{}\"",
            kMostSlow, digits));
  }
  return factor;
}

int read_rank(std::string_view text, std::string_view digits, int ranks) {
  int rank = -1;
  if (!read_number(digits, rank) || rank < 0 || rank >= ranks)
    refuse(text, fmt::format("expected a rank of 0 to {}, got \"{}\"", ranks - 1, digits));
  return rank;
}

int read_chip(std::string_view text, std::string_view digits, const Topology& topology) {
  int chip = -1;
  if (!read_number(digits, chip) || chip < 0 || chip >= topology.chips())
    refuse(text,
           fmt::format("expected a chip of 0 to {}, got \"{}\"", topology.chips() - 1, digits));
  return chip;
}

/// "node0.chip0.neuron_link_east", or "0-1": both ways between two chips.
std::vector<LinkId> read_links(std::string_view text, std::string_view name,
                               const Topology& topology) {
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos) return {topology.find_link(std::string(name))};
  const int chip = read_chip(text, name.substr(0, dash), topology),
            other = read_chip(text, name.substr(dash + 1), topology);
  std::vector<LinkId> links = topology.links_between(chip, other);
  if (links.empty())
    refuse(text, fmt::format("no link joins chips {} and {}; those of chip {} lead to {}", chip,
                             other, chip, fmt::join(topology.neighbours(chip), ", ")));
  return links;
}

void refuse_without_way_around(std::string_view text, const SlowParts& slow,
                               const SystemConfig& system) {
  SystemConfig changed = system;
  changed.slow = slow;
  const Topology topology(changed);
  for (const LinkId id : slow.down) {
    if (!topology.has_way_around(id))
      refuse(text, fmt::format("{} is down and has no way around: only the chips of a torus reach "
                               "each other over others; make it slow instead, or take fewer down",
                               topology.link_name(id)));
  }
}

/// Adds the links that `name` names. Returns true if none of them was named before.
bool add_link(std::string_view text, std::string_view name, std::string_view how,
              const Topology& topology, SlowParts& slow) {
  bool fresh = true;
  for (const LinkId id : read_links(text, name, topology)) {
    if (slow.links.contains(id) || slow.down.contains(id)) fresh = false;
    if (how == "down") {
      slow.down.insert(id);
    } else {
      slow.links.emplace(id, read_factor(text, how));
    }
  }
  return fresh;
}

}  // namespace

SlowParts read_slow_parts(const std::vector<std::string>& texts, const SystemConfig& system,
                          int ranks) {
  SlowParts slow;
  for (const std::string& whole : texts) {
    const std::string_view text = whole;
    const std::size_t colon = text.find(':'), equals = text.rfind('=');
    if (colon == std::string_view::npos || equals == std::string_view::npos || equals < colon)
      refuse(text, "expected KIND:NAME=FACTOR");
    const std::string_view kind = text.substr(0, colon),
                           name = text.substr(colon + 1, equals - colon - 1);
    const std::string_view how = text.substr(equals + 1);
    bool fresh = false;
    if (kind == "core") {
      fresh = slow.cores.emplace(read_rank(text, name, ranks), read_factor(text, how)).second;
    } else if (kind == "link") {
      fresh = add_link(text, name, how, Topology(system), slow);
    } else {
      refuse(text, fmt::format("expected core or link, got \"{}\"", kind));
    }
    if (!fresh) refuse(text, fmt::format("{} {} is there twice", kind, name));
    if (how == "down") refuse_without_way_around(text, slow, system);
  }
  const auto is_none = [](const auto& part) { return part.second == 1; };
  std::erase_if(slow.cores, is_none);
  std::erase_if(slow.links, is_none);
  return slow;
}

}  // namespace trellis::sim
