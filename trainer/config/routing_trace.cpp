#include "trainer/config/routing_trace.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "trainer/config/parameter_count.h"
#include "trainer/config/simulated_routing.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kExpected =
    "the report of a run with experts: \"routing\": [{\"layer\": 0, \"assigned\": [12, 4, …]}, …]";

std::vector<int> layers_with_experts(const ModelSection& model) {
  std::vector<int> layers;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    if (is_moe_layer(model, layer)) layers.push_back(layer);
  }
  return layers;
}

/// "0-31"; "1, 3, 5"
std::string span_text(const std::vector<int>& layers) {
  if (layers.empty()) return "none";
  const bool dense = layers.back() - layers.front() + 1 == static_cast<int>(layers.size());
  if (dense && layers.size() > 1) return fmt::format("{}-{}", layers.front(), layers.back());
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, layers.size()); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", layers[i]);
  return layers.size() > kMost ? text + ", …" : text;
}

std::vector<double> shares_of_counts(const std::vector<std::int64_t>& counts, const MoeSection& moe,
                                     const std::string& where) {
  if (static_cast<int>(counts.size()) != moe.num_experts) {
    throw ConfigError(
        fmt::format("{}: expected {} experts, got {}", where, moe.num_experts, counts.size()));
  }
  double sum = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] < 0)
      throw ConfigError(fmt::format("{}: expert {} has {} picks", where, e, counts[e]));
    sum += static_cast<double>(counts[e]);
  }
  if (sum <= 0) throw ConfigError(where + ": no token was routed");
  std::vector<double> shares;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const double share = static_cast<double>(counts[e]) / sum;
    if (share * moe.top_k > 1 + 1e-9) {
      throw ConfigError(
          fmt::format("{}: expert {} has {} of the picks; a token picks an expert "
                      "once: expected at most {} with top_k {}",
                      where, e, share, 1.0 / moe.top_k, moe.top_k));
    }
    shares.push_back(share);
  }
  return shares;
}

bool is_count(const json& value) { return value.is_number_integer(); }

/// {"layer": 3, "assigned": [12, 4]}
void add_row(const json& row, PicksByLayer& picks, const std::string& where) {
  const auto layer = row.is_object() ? row.find("layer") : row.end();
  const auto assigned = row.is_object() ? row.find("assigned") : row.end();
  if (layer == row.end() || assigned == row.end() || !is_count(*layer) || !assigned->is_array() ||
      !std::ranges::all_of(*assigned, is_count))
    throw ConfigError(fmt::format("{}: expected {}", where, kExpected));
  if (!picks.emplace(layer->get<int>(), assigned->get<std::vector<std::int64_t>>()).second)
    throw ConfigError(fmt::format("{}: layer {} for the second time", where, layer->get<int>()));
}

}  // namespace

std::optional<fs::path> file_of_routing_trace(const std::string& routing) {
  constexpr std::string_view kTrace = "trace:";
  if (!routing.starts_with(kTrace)) return std::nullopt;
  const fs::path path = routing.substr(kTrace.size());
  if (path.empty()) {
    throw ConfigError(
        "--routing trace: expected trace:FILE, the folder or the report.json of a "
        "run with the same experts");
  }
  return fs::is_directory(path) ? path / "report.json" : path;
}

PicksByLayer read_routing_trace(const fs::path& file) {
  const json report = parse_json(read_input_file(file), file.string(), kExpected);
  const auto rows = report.is_object() ? report.find("routing") : report.end();
  if (rows == report.end() || !rows->is_array() || rows->empty())
    throw ConfigError(
        fmt::format("{}: no experts are in it; expected {}", file.string(), kExpected));
  PicksByLayer picks;
  for (std::size_t i = 0; i < rows->size(); ++i)
    add_row((*rows)[i], picks, fmt::format("{}: routing[{}]", file.string(), i));
  return picks;
}

std::map<int, std::vector<double>> shares_of_picks(const PicksByLayer& picks,
                                                   const ModelSection& model,
                                                   const std::string& where) {
  const std::vector<int> expected = layers_with_experts(model);
  std::vector<int> found;
  for (const auto& [layer, counts] : picks) found.push_back(layer);
  if (expected != found) {
    throw ConfigError(
        fmt::format("{}: expected experts in the {} layers {} of this model, got {} "
                    "layers ({})",
                    where, expected.size(), span_text(expected), found.size(), span_text(found)));
  }
  std::map<int, std::vector<double>> shares;
  for (const auto& [layer, counts] : picks)
    shares[layer] = shares_of_counts(counts, *model.moe, fmt::format("{}: layer {}", where, layer));
  return shares;
}

void set_simulated_routing(ModelSection& model, const std::string& routing) {
  MoeSection& moe = *model.moe;
  if (const auto file = file_of_routing_trace(routing)) {
    moe.simulated_shares =
        shares_of_picks(read_routing_trace(*file), model, "--routing " + routing);
    return;
  }
  const std::vector<double> shares = parse_routing(routing, moe.num_experts, moe.top_k);
  if (shares.empty()) return;
  for (const int layer : layers_with_experts(model)) moe.simulated_shares[layer] = shares;
}

}  // namespace trellis::trainer
