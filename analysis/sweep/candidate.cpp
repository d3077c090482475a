#include "analysis/sweep/candidate.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "trainer/config/names.h"

namespace trellis::analysis {
namespace {

using trainer::Recompute;

const trainer::Names<Recompute>& recompute_names() { return trainer::names_of<Recompute>(); }

std::string flag(bool value) { return value ? "true" : "false"; }

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_count(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 &&
         text.front() != '0';
}

constexpr const char* kReplicateSize = "distributed_strategy.data_parallel_replicate_size";

bool is_switch(std::string_view axis) { return axis == "sp" || axis == "zero1" || axis == "fsdp"; }

std::string expected_values(const std::string& axis) {
  if (axis == "recompute") return "none, selective or full";
  return is_switch(axis) ? "true or false" : "whole numbers from 1 on";
}

bool can_have(const std::string& axis, const std::string& value) {
  if (axis == "recompute")
    return std::ranges::any_of(recompute_names(),
                               [&](const auto& entry) { return entry.first == value; });
  if (is_switch(axis)) return value == "true" || value == "false";
  return is_count(value);
}

/// Visits the candidates of one number of nodes that the restrictions leave.
class Enumerator {
 public:
  Enumerator(const Space& space, std::vector<Candidate>& found) : space_(space), found_(found) {}

  void run(int nodes) {
    const int ranks = nodes * space_.ranks_per_node;
    for (int tp = 1; tp <= ranks; ++tp) {
      if (ranks % tp != 0 || !allowed("tp", std::to_string(tp))) continue;
      for (int pp = 1; pp <= ranks / tp; ++pp) {
        if (ranks / tp % pp != 0 || !allowed("pp", std::to_string(pp))) continue;
        Candidate c;
        c.nodes = nodes;
        c.tp = tp;
        c.pp = pp;
        contexts(c, ranks / tp / pp);
      }
    }
  }

 private:
  [[nodiscard]] bool allowed(const char* axis, const std::string& value) const {
    const auto found = space_.only.find(axis);
    return found == space_.only.end() ||
           std::ranges::find(found->second, value) != found->second.end();
  }

  void contexts(Candidate c, int ranks) {
    const int most = space_.ring_attention ? ranks : 1;
    for (c.cp = 1; c.cp <= most; ++c.cp) {
      if (ranks % c.cp != 0 || !allowed("cp", std::to_string(c.cp))) continue;
      c.dp = ranks / c.cp;
      if (allowed("dp", std::to_string(c.dp))) experts(c, ranks);
    }
  }

  void experts(Candidate c, int ranks) {
    const int most = std::max(1, std::min(ranks, space_.num_experts));
    for (c.ep = 1; c.ep <= most; ++c.ep) {
      const bool divides = ranks % c.ep == 0 && (c.ep == 1 || space_.num_experts % c.ep == 0);
      if (divides && allowed("ep", std::to_string(c.ep))) stages(c);
    }
  }

  void stages(Candidate c) {
    const int most = c.pp == 1 ? 1 : std::max(1, space_.num_layers / c.pp);
    for (c.vpp = 1; c.vpp <= most; ++c.vpp) {
      if (allowed("vpp", std::to_string(c.vpp))) micro_batches(c);
    }
  }

  void micro_batches(Candidate c) {
    const std::int64_t share =
        space_.global_batch_size % c.dp == 0 ? space_.global_batch_size / c.dp : 1;
    for (std::int64_t size = 1; size <= share; ++size) {
      if (share % size != 0 || !allowed("mbs", std::to_string(size))) continue;
      c.micro_batch_size = static_cast<int>(size);
      switches(c);
    }
  }

  void switches(Candidate c) {
    for (const bool sequence_parallel : {false, true}) {
      if ((sequence_parallel && c.tp == 1) || !allowed("sp", flag(sequence_parallel))) continue;
      for (const bool zero1 : {false, true}) {
        if (!allowed("zero1", flag(zero1))) continue;
        c.sequence_parallel = sequence_parallel;
        c.zero1 = zero1;
        for (const bool fsdp : {false, true}) {
          if ((fsdp && !can_be_fully_sharded(c)) || !allows_fully_sharded(fsdp)) continue;
          c.fsdp = fsdp;
          copies(c);
        }
      }
    }
  }

  [[nodiscard]] static bool can_be_fully_sharded(const Candidate& c) {
    return c.zero1 && c.pp == 1 && c.dp * c.cp > 1;
  }
  /// An axis that is asked for: else each sweep would be twice as long.
  [[nodiscard]] bool allows_fully_sharded(bool fsdp) const {
    return space_.only.contains("fsdp") ? allowed("fsdp", flag(fsdp)) : fsdp == space_.fsdp;
  }

  void copies(Candidate c) {
    for (c.kv_replicator = 1; c.kv_replicator <= c.tp; ++c.kv_replicator) {
      if (c.tp % c.kv_replicator != 0 || !allowed("kv", std::to_string(c.kv_replicator))) continue;
      for (const auto& [name, recompute] : recompute_names()) {
        if (!allowed("recompute", name)) continue;
        found_.push_back(c);
        found_.back().recompute = recompute;
      }
    }
  }

  const Space& space_;
  std::vector<Candidate>& found_;
};

}  // namespace

std::string to_string(const Candidate& c) {
  std::vector<std::string> parts = trainer::factors_of(c);
  parts.push_back(fmt::format("MBS{}", c.micro_batch_size));
  std::ranges::move(trainer::switches_of(c), std::back_inserter(parts));
  return fmt::format("{}", fmt::join(parts, " "));
}

const std::vector<std::string>& axis_names() {
  static const std::vector<std::string> names = {"tp",  "pp", "vpp",   "dp",   "cp", "ep",
                                                 "mbs", "sp", "zero1", "fsdp", "kv", "recompute"};
  return names;
}

std::string value_on(const Candidate& c, std::string_view axis) {
  if (axis == "tp") return std::to_string(c.tp);
  if (axis == "pp") return std::to_string(c.pp);
  if (axis == "vpp") return std::to_string(c.vpp);
  if (axis == "dp") return std::to_string(c.dp);
  if (axis == "cp") return std::to_string(c.cp);
  if (axis == "ep") return std::to_string(c.ep);
  if (axis == "mbs") return std::to_string(c.micro_batch_size);
  if (axis == "sp") return flag(c.sequence_parallel);
  if (axis == "zero1") return flag(c.zero1);
  if (axis == "fsdp") return flag(c.fsdp);
  return axis == "kv" ? std::to_string(c.kv_replicator) : trainer::name_of(c.recompute);
}

void restrict_axis(AxisValues& only, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string axis = text.substr(0, equals);
  if (std::ranges::find(axis_names(), axis) == axis_names().end()) {
    const std::string nearest = nearest_name(axis, axis_names());
    throw ConfigError(
        fmt::format("--only {}: no axis is called `{}`{}; expected one of {}", text, axis,
                    nearest.empty() ? "" : fmt::format(", did you mean `{}`?", nearest),
                    fmt::join(axis_names(), ", ")));
  }
  const std::vector<std::string> values = equals == std::string::npos
                                              ? std::vector<std::string>{}
                                              : split(text.substr(equals + 1), ',');
  if (values.empty())
    throw ConfigError(fmt::format("--only {}: which values? Expected {}={}, e.g. --only {}={}",
                                  text, axis, expected_values(axis), axis,
                                  axis == "recompute" ? "none,full"
                                  : is_switch(axis)   ? "true"
                                                      : "1,2"));
  for (const std::string& value : values) {
    if (!can_have(axis, value))
      throw ConfigError(
          fmt::format("--only {}: \"{}\": expected {}", text, value, expected_values(axis)));
  }
  if (!only.emplace(axis, values).second)
    throw ConfigError(
        fmt::format("--only {}: the axis {} is restricted twice: write all its values after one "
                    "--only, or leave it out of --fix",
                    text, axis));
}

std::vector<Candidate> enumerate(const Space& space) {
  std::vector<Candidate> found;
  Enumerator enumerator(space, found);
  for (const int nodes : space.nodes) enumerator.run(nodes);
  return found;
}

std::vector<std::string> overrides_of(const Candidate& c, int ranks_per_node,
                                      std::int64_t global_batch_size) {
  std::vector<std::string> overrides;
  const auto set = [&](const char* key, const std::string& value) {
    overrides.push_back(std::string(key) + "=" + value);
  };
  set("trainer.devices", std::to_string(ranks_per_node));
  set("trainer.num_nodes", std::to_string(c.nodes));
  std::ranges::move(trainer::layout_overrides(c), std::back_inserter(overrides));
  set("data.micro_batch_size", std::to_string(c.micro_batch_size));
  set("data.global_batch_size", std::to_string(global_batch_size));
  if (!c.fsdp) set(kReplicateSize, "1");
  if (c.recompute != Recompute::kSelective) set("model.activations_checkpoint_recompute", "null");
  return overrides;
}

bool is_axis_key(const std::string& key) {
  if (key == "data.global_batch_size" || key == "model.activations_checkpoint_recompute" ||
      key == kReplicateSize)
    return false;  // the user's own; candidates follow them
  return std::ranges::any_of(overrides_of(Candidate{}, 1, 1), [&](const std::string& set) {
    return set.substr(0, set.find('=')) == key;
  });
}

}  // namespace trellis::analysis
