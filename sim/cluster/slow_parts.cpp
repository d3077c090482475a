#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "sim/cluster/topology.h"
#include "sim/sim.h"

namespace trellis::sim {
namespace {

constexpr double kMostSlow = 1e6;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw ConfigError(
      fmt::format("--slow {}: {}; write core:RANK=FACTOR, such as core:3=1.5, or link:NAME=FACTOR, "
                  "such as link:node0.chip0.neuron_link_east=4",
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
    const double factor = read_factor(text, text.substr(equals + 1));
    bool fresh = false;
    if (kind == "core") {
      fresh = slow.cores.emplace(read_rank(text, name, ranks), factor).second;
    } else if (kind == "link") {
      fresh = slow.links.emplace(Topology(system).find_link(std::string(name)), factor).second;
    } else {
      refuse(text, fmt::format("expected core or link, got \"{}\"", kind));
    }
    if (!fresh) refuse(text, fmt::format("{} {} is there twice", kind, name));
  }
  const auto is_none = [](const auto& part) { return part.second == 1; };
  std::erase_if(slow.cores, is_none);
  std::erase_if(slow.links, is_none);
  return slow;
}

}  // namespace trellis::sim
