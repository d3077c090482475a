#include "trainer/verify/layout.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

#include "base/error.h"

namespace trellis::trainer {
namespace {

/// "TP2", "SP", …: what to_string() joins and a filter looks for.
std::vector<std::string> parts_of(const Layout& layout) {
  std::vector<std::string> parts = factors_of(layout);
  std::ranges::move(switches_of(layout), std::back_inserter(parts));
  return parts;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

bool is_part(const std::string& part) {
  for (const char* word : {"sp", "zero1", "fsdp", "selective", "full", "balanced"}) {
    if (part == word) return true;
  }
  for (const std::string_view factor : {"tp", "pp", "vpp", "dp", "cp", "ep", "kv", "copies"}) {
    const bool digits =
        part.size() > factor.size() &&
        std::all_of(part.begin() + static_cast<std::ptrdiff_t>(factor.size()), part.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (part.starts_with(factor) && digits && part.substr(factor.size()) != "1") return true;
  }
  return false;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

template <typename Visit>
void for_each_factorisation(int ranks, int num_layers, Visit visit) {
  for (int tp = 1; tp <= ranks; ++tp) {
    for (int pp = 1; ranks % tp == 0 && pp <= ranks / tp; ++pp) {
      if (ranks / tp % pp != 0) continue;
      const int most = pp == 1 ? 1 : std::max(1, num_layers / pp);
      for (int vpp = 1; vpp <= most; ++vpp)
        visit(Layout{.tp = tp, .pp = pp, .vpp = vpp, .dp = ranks / tp / pp});
    }
  }
}

/// Context parallelism takes ranks from data parallelism.
std::vector<Layout> with_contexts(Layout layout, const ModelAxes& axes) {
  std::vector<Layout> layouts{layout};
  if (!axes.ring_attention) return layouts;
  const int ranks = layout.dp;
  for (layout.cp = 2; layout.cp <= ranks; ++layout.cp) {
    if (ranks % layout.cp != 0) continue;
    layout.dp = ranks / layout.cp;
    for (const bool balanced : {false, true}) {
      if (balanced && axes.sliding_window) continue;
      layout.balanced_context = balanced;
      layouts.push_back(layout);
    }
  }
  return layouts;
}

/// Adds the variants of a layout that leave its factors TP, PP, DP and CP unchanged.
void add_variants(Layout layout, std::vector<Layout>& layouts) {
  struct Sharding {
    bool zero1, fsdp;
    int replicas;
  };
  std::vector<Sharding> shardings{{false, false, 1}, {true, false, 1}};
  const int holders = layout.dp * layout.cp;
  for (int replicas = 1; layout.pp == 1 && replicas <= layout.dp; ++replicas) {
    const int shards = holders / replicas;
    if (layout.dp % replicas == 0 && shards > 1 && shards % layout.ep == 0)
      shardings.push_back({true, true, replicas});
  }
  for (const bool sequence_parallel : {false, true}) {
    if (sequence_parallel && layout.tp == 1) continue;
    for (const auto& [zero1, fsdp, replicas] : shardings) {
      for (int copies = 1; copies <= layout.tp; ++copies) {
        if (layout.tp % copies != 0) continue;
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          layout.sequence_parallel = sequence_parallel;
          layout.zero1 = zero1;
          layout.fsdp = fsdp;
          layout.fsdp_replicas = replicas;
          layout.kv_replicator = copies;
          layout.recompute = recompute;
          layouts.push_back(layout);
        }
      }
    }
  }
}

}  // namespace

std::vector<Layout> all_layouts(int ranks, int num_layers, const ModelAxes& axes) {
  std::vector<Layout> layouts;
  for_each_factorisation(ranks, num_layers, [&](const Layout& factors) {
    for (const Layout& layout : with_contexts(factors, axes)) {
      const int copies = layout.dp * layout.cp;
      for (int ep = 1; ep <= copies; ++ep) {
        const bool legal = ep == 1 || (axes.experts > 0 && axes.experts % ep == 0);
        if (copies % ep != 0 || !legal) continue;
        Layout with_experts = layout;
        with_experts.ep = ep;
        add_variants(with_experts, layouts);
      }
    }
  });
  return layouts;
}

LayoutFilter::LayoutFilter(std::string_view text) {
  if (text.empty() || text == "all") return;
  for (const std::string& item : split(text, ',')) {
    std::vector<std::string> parts;
    for (const std::string& part : split(item, '.')) {
      parts.push_back(lower(part));
      if (is_part(parts.back())) continue;
      throw ConfigError(
          "--layouts " + std::string(text) + ": \"" + part +
          "\": expected TP2, PP2, VPP2, DP2, CP2, EP2, KV2, copies2 (any numbers from 2 on), SP, "
          "ZeRO1, FSDP, balanced, selective or full; "
          "parts of one layout are joined by a dot, layouts by a comma: TP2.PP2.SP,DP8");
    }
    items_.push_back(std::move(parts));
  }
}

bool LayoutFilter::chooses(const Layout& layout) const {
  if (items_.empty()) return true;
  std::vector<std::string> have;
  for (const std::string& part : parts_of(layout)) have.push_back(lower(part));
  return std::ranges::any_of(items_, [&](const std::vector<std::string>& item) {
    return std::ranges::all_of(
        item, [&](const std::string& part) { return std::ranges::find(have, part) != have.end(); });
  });
}

std::vector<std::string> overrides_of(const Layout& layout) {
  std::vector<std::string> overrides = layout_overrides(layout);
  const auto set = [&](const char* key, const std::string& value) {
    overrides.push_back(std::string(key) + "=" + value);
  };
  set("trainer.devices", std::to_string(layout.world_size()));
  set("trainer.num_nodes", "1");
  set("distributed_strategy.context_parallel_order",
      layout.balanced_context ? "balanced" : "contiguous");
  set("distributed_strategy.data_parallel_replicate_size", std::to_string(layout.fsdp_replicas));
  return overrides;
}

}  // namespace trellis::trainer
